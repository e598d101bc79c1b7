"""Each plug-in behind one small interface, through the real classes of its engine.

An Engine puts named blocks and gets them back, as a restarted process would: what it puts goes
through the plug-in into the store, what it gets comes from the store alone.
"""

import contextlib
import importlib
import logging
import os
import signal
import sys
import traceback
import uuid

import numpy as np

LAYERS, TOKENS, HEADS, DIM = 3, 32, 4, 32
SHAPE = (2, LAYERS, TOKENS, HEADS * DIM)
N_BYTES = 2 * int(np.prod(SHAPE))


def block(name: str, seed: int = 0) -> np.ndarray:
    """The bytes of a block: f16 numbers as keys have them, the same for the same name."""
    numbers = np.random.default_rng([seed, *name.encode()]).standard_normal(N_BYTES // 2)
    return numbers.astype(np.float16).view(np.uint8)


def expected(engine: str, name: str, seed: int = 0, **identity) -> np.ndarray:
    """The bytes that come back of a block: the same, or those of its quantized numbers."""
    made = ENGINES[engine]
    data = block(name, seed)
    return data if made.quantize is None else made.quantized(data, **identity)


def through_page_codec(data, shape, order, dtype):
    """What quantizing a page and decoding it makes of its numbers."""
    import torch
    from tqcache._pages import Layout, PageCodec

    codec = PageCodec(Layout(shape, order), getattr(torch, dtype))
    again = np.zeros_like(data)
    codec.decode(b"".join(bytes(part) for part in codec.encode(data.copy())), again)
    return again


def key_hash(name: str) -> bytes:
    return name.encode().ljust(32, b"\0")


def need(engine: str) -> None:
    """Skips the test if the engine's package is missing."""
    import pytest

    try:
        importlib.import_module(ENGINES[engine].module)
    except (ImportError, KeyError) as error:  # KeyError: an earlier import of it failed half way
        pytest.skip(f"{ENGINES[engine].peer} is missing: {error}")


class Vllm:
    """The tier below vLLM's own manager: a primary tier in memory, of 8 chunks."""

    module, peer = "vllm.v1.kv_offload.tiering.manager", "vllm"
    logger = "tqcache.vllm"
    quantize = None
    layout = None

    def __init__(self, store: str, *, model="tiny", dtype="float16", layers=LAYERS, tp_size=1,
                 salt="", layout=None):
        from vllm.v1.kv_offload import config as c
        from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

        from tqcache.vllm_plugin import register

        register()
        groups = (c.OffloadingGroupConfig(TOKENS, tuple(f"layer{i}" for i in range(layers)), 0),)
        tier = {"type": "tqcache", "store": store, "salt": salt}
        if self.quantize is not None:
            tier["quantize"] = self.quantize
        self.spec = TieringOffloadingSpec(c.OffloadingConfig(
            groups=groups, worker_kv_bytes_per_block=N_BYTES // tp_size,
            enable_kv_cache_events=False, engine_id=uuid.uuid4().hex,
            extra_config={"cpu_bytes_to_use": 8 * N_BYTES, "secondary_tiers": [tier]},
            model=c.OffloadingModelConfig(model, dtype),
            cache=c.OffloadingCacheConfig(tokens_per_hash=TOKENS, blocks_per_chunk=1),
            parallel=c.OffloadingParallelConfig(
                rank=0, world_size=tp_size, tp_size=tp_size, pp_size=1, pcp_size=1, dcp_size=1,
                data_parallel_index=0, data_parallel_size=1, data_parallel_rank_local=None,
                is_parallelism_agnostic=self.layout is not None),
            canonical_layout=self.layout is not None, kv_cache_layout=layout or self.layout))
        self.manager = self.spec.get_manager()
        self.view = self.manager.primary_tier.get_kv_memoryview().cast("B")
        self.stride = self.spec.kv_bytes_per_chunk
        self.n_requests = 0

    @contextlib.contextmanager
    def _request(self):
        from vllm.v1.kv_offload.base import ReqContext

        self.n_requests += 1
        request = ReqContext(req_id=f"request {self.n_requests}")
        self.manager.on_new_request(request)
        yield request
        self.manager.on_request_finished(request)

    def _step(self):
        from vllm.v1.kv_offload.base import ScheduleEndContext

        self.manager.on_schedule_end(ScheduleEndContext((), ()))

    def _wait(self):
        for tier in self.manager.secondary_tiers:
            tier.drain_jobs()
        self._step()

    @staticmethod
    def _key(name):
        from vllm.v1.kv_offload.base import make_offload_key

        return make_offload_key(key_hash(name), 0)

    def put(self, blocks: dict) -> bool:
        with self._request() as request:
            for name, data in blocks.items():
                key = self._key(name)
                output = self.manager.prepare_store([key], request)
                for chunk in output.store_spec.block_ids:
                    begin = int(chunk) * self.stride
                    self.view[begin:begin + len(data)] = data
                self.manager.complete_store([key], request)
                self._step()
                self._wait()
        return True

    def get(self, names) -> list:
        from vllm.v1.kv_offload.base import LookupResult

        found = []
        for name in names:
            key = self._key(name)
            with self._request() as request:
                while (result := self.manager.lookup(key, request)) in (
                        LookupResult.RETRY, LookupResult.HIT_PENDING):
                    self._step()
                    self._wait()
                if result is LookupResult.MISS:
                    found.append(None)
                    continue
                chunk, = self.manager.prepare_load([key], request).block_ids
                begin = int(chunk) * self.stride
                found.append(np.frombuffer(self.view[begin:begin + N_BYTES], np.uint8).copy())
                self.manager.complete_load([key], request)
        return found

    def close(self):
        self.view.release()
        self.manager.shutdown()


class VllmQuantized(Vllm):
    """The same, quantized, with pages [heads, tokens, K and V, components] of each layer."""

    quantize = {"head_dim": DIM, "kv_heads": HEADS}
    layout = "LBHNC"

    @staticmethod
    def quantized(data, dtype="float16", layout="LBHNC", **_):
        if layout == "LBNHC":
            shape, order = (LAYERS, 1, TOKENS, HEADS, 2, DIM), (4, 0, 3, 1, 2, 5)
        else:
            shape, order = (LAYERS, 1, HEADS, TOKENS, 2, DIM), (4, 0, 2, 1, 3, 5)
        return through_page_codec(data, shape, order, dtype)


class Sglang:
    """The storage backend that SGLang's factory makes, with a real host pool of SGLang."""

    module, peer = "sglang.srt.mem_cache.pool_host.mha", "sglang"
    logger = "tqcache.sglang"
    interface_v1 = 0
    quantize = None

    def __init__(self, store: str, *, model="tiny", dtype="float16", layers=LAYERS, tp_rank=0,
                 tp_size=1, salt="", layout="layer_first"):
        import torch
        from sglang.srt.managers import cache_controller
        from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
        from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

        quantize = {} if self.quantize is None else {"quantize": self.quantize}
        self.pool = self._host_pool(getattr(torch, dtype), layers, layout)
        config = HiCacheStorageConfig(
            tp_rank=tp_rank, tp_size=tp_size, pp_rank=0, pp_size=1, attn_cp_rank=0,
            attn_cp_size=1, is_mla_model=False, enable_storage_metrics=False,
            is_page_first_layout=layout != "layer_first", model_name=model,
            extra_config={"backend_name": "tqcache", "module_path": "tqcache.sglang",
                          "class_name": "TqcacheStorage", "store": store, "salt": salt,
                          "interface_v1": self.interface_v1, **quantize})
        self.storage = StorageBackendFactory.create_backend("dynamic", config, self.pool)
        self.storage.register_mem_pool_host(self.pool)
        self.storage.on_host_pools_registered()
        self.controller = cache_controller.HiCacheController
        self.storage_host_pool, self.storage_backend = self.pool, self.storage
        self.page_size = self.pool.page_size

    @staticmethod
    def _host_pool(dtype, layers, layout):
        import torch
        from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

        pool = MHATokenToKVPoolHost.__new__(MHATokenToKVPoolHost)
        pool.layout, pool.dtype, pool.device, pool.pin_memory = layout, dtype, "cpu", False
        pool.page_size, pool.page_num, pool.size = TOKENS, 8, TOKENS * 8
        pool.layer_num, pool.head_num, pool.head_dim, pool.v_head_dim = layers, HEADS, DIM, DIM
        dims = {"layer_first": (2, layers, pool.size, HEADS, DIM),
                "page_first": (2, pool.size, layers, HEADS, DIM),
                "page_first_direct": (2, 8, layers, TOKENS, HEADS, DIM),
                "page_head": (2, 8, HEADS, TOKENS, layers, DIM)}[layout]
        pool.kv_buffer = torch.zeros(dims, dtype=dtype)
        return pool

    def _page(self, data):
        import torch

        return torch.from_numpy(data.copy()).view(self.pool.dtype)

    def _indices(self, n):
        import torch

        return torch.arange(n * self.page_size)

    def put(self, blocks: dict) -> bool:
        for i, data in enumerate(blocks.values()):
            self.pool.set_from_flat_data_page(i * self.page_size, self._page(data))
        transfer = (self.controller._page_set_zero_copy if self.interface_v1
                    else self.controller._generic_page_set)
        return transfer(self, list(blocks), self._indices(len(blocks)))

    def is_terminated(self):
        return False

    request_id = "a request"

    def get(self, names) -> list:
        import torch

        transfer = (self.controller._page_get_zero_copy if self.interface_v1
                    else self.controller._generic_page_get)
        found = []
        for name in names:
            self.pool.kv_buffer.zero_()
            n_known = self.storage.batch_exists([name])
            n = transfer(self, self, [name], self._indices(1)) if n_known else 0
            if n == 0:
                assert not self.pool.kv_buffer.any(), "a miss left something in the pool"
            page = self.pool.get_data_page(0)
            found.append(page.view(torch.uint8).numpy().copy() if n else None)
        return found

    def close(self):
        self.storage.close()


class SglangV1(Sglang):
    """The same by the interface v1, with indices instead of pages."""

    interface_v1 = 1


class SglangQuantized(Sglang):
    """The same, quantized."""

    quantize = {"keys": "mse:4", "values": "mse:4"}

    @staticmethod
    def quantized(data, dtype="float16", layout="layer_first", **_):
        shape, order = {
            "layer_first": ((2, LAYERS, TOKENS, HEADS, DIM), (0, 1, 3, 2, 4)),
            "page_first": ((2, TOKENS, LAYERS, HEADS, DIM), (0, 2, 3, 1, 4)),
            "page_first_direct": ((2, LAYERS, TOKENS, HEADS, DIM), (0, 1, 3, 2, 4)),
            "page_head": ((2, HEADS, TOKENS, LAYERS, DIM), (0, 3, 1, 2, 4))}[layout]
        return through_page_codec(data, shape, order, dtype)


class SglangQuantizedV1(SglangQuantized):
    interface_v1 = 1


def memory_object(data: np.ndarray, shape, dtype):
    """A MemoryObj of LMCache over these bytes."""
    import torch
    from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

    raw = torch.from_numpy(data)
    size = torch.Size(shape)
    meta = MemoryObjMetadata(shape=size, dtype=dtype, address=0, phy_size=len(data), ref_count=1,
                             fmt=MemoryFormat.KV_2LTD, shapes=[size], dtypes=[dtype])
    return TensorMemoryObj(raw, meta, None)


class Lmcache:
    """The L2 adapter that LMCache's factory makes."""

    module, peer = "lmcache.v1.distributed.l2_adapters.factory", "lmcache"
    logger = "tqcache.lmcache"
    serde = None
    quantize = None
    is_alone = True  # no other process puts blocks meanwhile

    def __init__(self, store: str, *, model="tiny", dtype="float16", shape=SHAPE, tp_rank=0,
                 tp_size=1, salt="", cache_salt=""):
        import torch
        from lmcache.v1.distributed.l2_adapters import config, factory
        from lmcache.v1.distributed.l2_adapters import create_l2_adapter

        self.dtype, self.shape, self.model = getattr(torch, dtype), shape, model
        self.tp_rank, self.tp_size, self.cache_salt = tp_rank, tp_size, cache_salt
        spec = self.spec(store, salt)
        factory.ensure_adapter_loaded(spec["type"])
        made = config.get_l2_adapter_config_class(spec["type"])
        self.adapter = create_l2_adapter(made.from_dict(spec), None)
        self.adapter.set_backend_identity(spec["type"])

    @staticmethod
    def spec(store, salt):
        return {"type": "plugin", "module_path": "tqcache.lmcache",
                "class_name": "TqcacheL2Adapter", "adapter_params": {"store": store, "salt": salt}}

    def key(self, name):
        from lmcache.v1.distributed.api import ObjectKey

        rank = ObjectKey.ComputeKVRank(self.tp_size, self.tp_rank, self.tp_size, self.tp_rank)
        return ObjectKey(chunk_hash=key_hash(name), model_name=self.model, kv_rank=rank,
                         cache_salt=self.cache_salt)

    def _await(self, fd, poll):
        import select

        while (result := poll()) is None:
            select.select([fd], [], [], 0.2)
        return result

    def object(self, data):
        return memory_object(data, self.shape, self.dtype)

    def put(self, blocks: dict) -> bool:
        keys = [self.key(name) for name in blocks]
        # They have to live until the task is completed: LMCache's views do not hold them.
        objects = [self.object(data.copy()) for data in blocks.values()]
        task = self.adapter.submit_store_task(keys, objects)
        done = {}

        def poll():
            done.update(self.adapter.pop_completed_store_tasks())
            return done.get(task)
        return self._await(self.adapter.get_store_event_fd(), poll).is_successful()

    def get(self, names) -> list:
        keys = [self.key(name) for name in names]
        task = self.adapter.submit_lookup_and_lock_task(keys, {})
        known = self._await(self.adapter.get_lookup_and_lock_event_fd(),
                            lambda: self.adapter.query_lookup_and_lock_result(task))
        buffers = [np.zeros(N_BYTES, np.uint8) for _ in names]
        load = self.adapter.submit_load_task(keys, [self.object(data) for data in buffers])
        loaded = self._await(self.adapter.get_load_event_fd(),
                             lambda: self.adapter.query_load_result(load))
        self.adapter.submit_unlock(keys)
        for i, data in enumerate(buffers):
            assert loaded.test(i) or not data.any(), "a miss left something in the buffer"
            # Another process may store a block between our lookup and our load.
            assert known.test(i) or not loaded.test(i) or not self.is_alone
        return [data if loaded.test(i) else None for i, data in enumerate(buffers)]

    def close(self):
        self.adapter.close()


class LmcacheNative(Lmcache):
    """The native connector below LMCache's own adapter."""

    @staticmethod
    def spec(store, salt):
        return {"type": "native_plugin", "module_path": "tqcache.lmcache",
                "class_name": "TqcacheConnector",
                "adapter_params": {"store": store, "geometry": "tiny-3-32-4x32 " + salt}}


class LmcacheCpp(Lmcache):
    """The native connector in C++, where python/lmcache_connector/build.sh has compiled it."""

    module, logger = "tqcache_lmcache_native", None

    @staticmethod
    def spec(store, salt):
        return {"type": "native_plugin", "module_path": "tqcache_lmcache_native",
                "class_name": "TqcacheNativeConnector",
                "adapter_params": {"store": store, "geometry": "tiny-3-32-4x32 " + salt}}


ENGINES = {"vllm": Vllm, "vllm-quantized": VllmQuantized, "sglang": Sglang,
           "sglang-v1": SglangV1, "sglang-quantized": SglangQuantized,
           "sglang-quantized-v1": SglangQuantizedV1, "lmcache": Lmcache,
           "lmcache-native": LmcacheNative, "lmcache-cpp": LmcacheCpp}


def say(name: str, what: str) -> None:
    # In one call: print() makes several where Python does not buffer, and processes share the pipe.
    sys.stdout.write(f"{name} {what}\n")


def child(engine: str, verb: str, store: str, *names: str) -> None:
    """One process: puts blocks, or prints which of them it gets and whether they are right."""
    made = ENGINES[engine](store)
    right = {name: expected(engine, name) for name in names}
    try:
        if verb == "put":
            assert made.put({name: block(name) for name in names})
        elif verb == "get":
            for name, data in zip(names, made.get(names)):
                say(name, "miss" if data is None
                    else "right" if np.array_equal(data, right[name]) else "WRONG")
        elif verb == "both":  # whoever is first puts
            made.is_alone = False
            rng = np.random.default_rng(os.getpid())
            for name in rng.permutation(list(names) * 3):
                data, = made.get([name])
                if data is None:
                    made.put({name: block(name)})  # a store that is busy for long may refuse it
                else:
                    # vLLM gives what a process has put from its own memory, not from the store.
                    wanted = [right[name], block(name)] if engine == "vllm-quantized" \
                        else [right[name]]
                    is_right = any(np.array_equal(data, one) for one in wanted)
                    say(name, "right" if is_right else "WRONG")
    finally:
        made.close()


def main(engine: str, verbs: str, n_processes: str, store: str, *names: str) -> None:
    """Runs each verb in processes of its own, one verb after another. They are forked, so that the
    engine's package, which takes its time, is imported once."""
    importlib.import_module(ENGINES[engine].module)
    for verb in verbs.split(","):
        pids = []
        for _ in range(int(n_processes)):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    child(engine, verb, store, *names)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                sys.stdout.flush()
                os._exit(status)
            pids.append(pid)
        while pids:
            pid, status = os.wait()
            pids.remove(pid)
            if status != 0:  # the others need not end: nobody waits for them
                for other in pids:
                    os.kill(other, signal.SIGKILL)
                sys.exit(f"a process failed: {verb}, wait status {status}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    main(*sys.argv[1:])
