"""vLLM: a secondary tier of the offloading connector that keeps blocks in a store of tqcache.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
      "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 8589934592,
        "secondary_tiers": [{"type": "tqcache", "store": "dir:/var/lib/prompts"}]}}'

vLLM finds the name "tqcache" by the entry point `vllm.general_plugins`. Without installed entry
points write {"type": "TqcacheTier", "module_path": "tqcache.vllm", ...}.

Blocks are bytes of all layers of a group and of all workers, as the primary tier in the CPU has
them. They are kept without loss, as byte planes, and need no knowledge of their layout. They are
read only by an engine with the same model, dtype, geometry, parallelism and version of vLLM, since
the layout of a block is an internal matter of that version.

They can be quantized where vLLM vouches for their layout, that is, with "canonical_layout": true in
kv_connector_extra_config, and a model whose layers all have full attention with the same heads:

    {"type": "tqcache", "store": "dir:/var/lib/prompts",
     "quantize": {"head_dim": 128, "kv_heads": 8, "keys": "mse:4", "values": "mse:4"}}

Written for vLLM 0.33; docs/guide/plugins.md.
"""

import logging
import queue
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import vllm
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from ._blocks import Blocks, element_size_of, identity_bytes, identity_name
from ._pages import DTYPES, Layout, PageCodec

_logger = logging.getLogger("tqcache.vllm")

# The axes of a canonical page of a layer. All of the layers follow one another in a chunk, each
# with all blocks of the chunk. K and V of a head stand side by side ("packed": all backends of vLLM
# 0.33 whose caches are [blocks, heads, tokens, 2 * head_dim]) or in halves of the page ("split").
_PAGES = {("LBNHC", "packed"): "tokens heads kv dim", ("LBHNC", "packed"): "heads tokens kv dim",
          ("LBNHC", "split"): "kv tokens heads dim", ("LBHNC", "split"): "kv heads tokens dim"}


def _page_codec(config, quantize: dict, chunk_bytes: int) -> PageCodec:
    """Quantizes the chunks of this engine. Errors: ValueError if their layout is not known."""
    unknown = set(quantize) - {"head_dim", "kv_heads", "keys", "values", "pages", "device"}
    if unknown or not {"head_dim", "kv_heads"} <= set(quantize):
        raise ValueError('"quantize" needs "head_dim" and "kv_heads" of the model, and takes '
                         f'"keys", "values", "pages" and "device": {sorted(quantize)}')
    if not (config.canonical_layout and config.parallel.is_parallelism_agnostic):
        raise ValueError('"quantize" needs "canonical_layout": true in kv_connector_extra_config, '
                         "and a model for which vLLM can make that layout")
    if len(config.groups) != 1 or config.replicated_layout:
        raise ValueError('"quantize" is for models whose layers all have full attention with keys '
                         "and values, in one group")
    axes = _PAGES.get((config.kv_cache_layout, quantize.get("pages", "packed")))
    if axes is None:
        raise ValueError(f"pages of layout {config.kv_cache_layout}, "
                         f"{quantize.get('pages', 'packed')}: not known")
    if config.model.dtype not in DTYPES:
        raise ValueError(f"a cache of {config.model.dtype} cannot be quantized")
    dtype, group = DTYPES[config.model.dtype], config.groups[0]
    heads, dim = int(quantize["kv_heads"]), int(quantize["head_dim"])
    n_layers, n_blocks = len(group.layer_names), config.cache.blocks_per_chunk
    heads_per_worker = max(1, heads // config.parallel.tp_size)
    expected = n_layers * group.tokens_per_block * heads_per_worker * 2 * dim * dtype.itemsize
    if expected != config.worker_kv_bytes_per_block:
        raise ValueError(
            f"{n_layers} layers, {heads} heads of {dim} and {group.tokens_per_block} tokens are "
            f"{expected} bytes of a worker, and vLLM has {config.worker_kv_bytes_per_block}")
    sizes = {"layers": n_layers, "blocks": n_blocks, "tokens": group.tokens_per_block,
             "heads": heads, "kv": 2, "dim": dim}
    names = ["layers", "blocks", *axes.split()]
    order = ["kv", "layers", "heads", "blocks", "tokens", "dim"]
    made = PageCodec(Layout(tuple(sizes[name] for name in names),
                            tuple(names.index(name) for name in order)),
                     dtype, str(quantize.get("keys", "mse:4")),
                     str(quantize.get("values", "mse:4")), str(quantize.get("device", "cpu")))
    if made.n_bytes > chunk_bytes:
        raise ValueError(f"a chunk of {chunk_bytes} bytes, and its pages take {made.n_bytes}")
    return made


def _identity(offloading_spec, block_bytes: int, salt: str, codec: PageCodec | None) -> bytes:
    config = offloading_spec.config
    parallel = config.parallel
    return identity_bytes(
        engine="vllm", version=vllm.__version__, salt=salt,
        model=config.model.name, dtype=str(config.model.dtype),
        tokens_per_hash=config.cache.tokens_per_hash,
        blocks_per_chunk=config.cache.blocks_per_chunk,
        groups=[[group.group_id, group.tokens_per_block, list(group.layer_names)]
                for group in config.groups],
        worker_bytes=config.worker_kv_bytes_per_block, block_bytes=block_bytes,
        ranks=[parallel.rank, parallel.world_size, parallel.tp_size, parallel.pp_size,
               parallel.pcp_size, parallel.dcp_size],
        layout=[config.kv_cache_layout, config.canonical_layout, config.replicated_layout],
        **({} if codec is None else {"quantized": codec.identity()}))


class _Lookup(AsyncLookupManager):
    def __init__(self, tier: "TqcacheTier"):
        self._tier = tier
        super().__init__(tier_type=tier.tier_type)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        return self._tier.blocks.exists(self._tier.identity, [bytes(key) for key in keys])


class TqcacheTier(SecondaryTierManager):
    """Keeps the chunks of the primary tier in a store."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(self, offloading_spec, primary_kv_view: memoryview, tier_type: str, store: str,
                 salt: str = "", key_file: str | None = None, threads: int = 4,
                 enable_kv_events: bool = False, locality: str | None = None,
                 quantize: dict | None = None, backpressure_detector=None):
        """store: URL (docs/reference/store.md). salt: joins the identity; give models that have the
        same name and other weights different salts. key_file: encrypts. threads: of transfers.
        quantize: None keeps every bit; otherwise "head_dim" and "kv_heads" of the model (of all
        workers), and optionally "keys", "values" ("mse:4"), "pages" ("packed" or "split") and
        "device": "cuda:0" packs and unpacks on that GPU."""
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = Locality(locality) if locality is not None else None
        self._codec = None
        if quantize is not None:
            self._codec = _page_codec(offloading_spec.config, dict(quantize),
                                      self.block_size_bytes)
        self.identity = _identity(offloading_spec, self.block_size_bytes, salt, self._codec)
        self._element_size = element_size_of(offloading_spec.config.model.dtype)
        self.blocks = Blocks(store, "vllm." + identity_name(self.identity), _logger, key_file)
        self._bytes = primary_kv_view.cast("B")
        self._events: list[OffloadingEvent] | None = None
        if enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events:
            self._events = []
        self._finished: queue.SimpleQueue = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._n_running = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tqcache-vllm")
        self._lookup = _Lookup(self)

    def _chunk(self, chunk_id) -> memoryview:
        begin = int(chunk_id) * self.block_size_bytes
        chunk = self._bytes[begin:begin + self.block_size_bytes]
        if begin < 0 or len(chunk) != self.block_size_bytes:
            raise ValueError(f"chunk {chunk_id} is outside of the primary tier")
        return chunk

    # --- Lookups

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        found = self._lookup.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._lookup.cleanup(req_context.req_id)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._lookup.flush()

    # --- Transfers

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._submit(job_metadata, self._store)

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._submit(job_metadata, self._load)

    def _store(self, key: bytes, chunk: memoryview) -> bool:
        if self._codec is not None:
            return self.blocks.put_page(self.identity, key, chunk, self._codec)
        return self.blocks.put(self.identity, key, chunk, element_size=self._element_size)

    def _load(self, key: bytes, chunk: memoryview) -> bool:
        if self._codec is not None:
            return self.blocks.get_page_into(self.identity, key, chunk, self._codec)
        return self.blocks.get_into(self.identity, key, chunk)

    def _submit(self, job: TransferJob, transfer) -> None:
        keys = list(job.keys)
        chunk_ids = [int(chunk_id) for chunk_id in job.chunk_ids]
        with self._idle:
            self._n_running += 1
        self._pool.submit(self._run, job.job_id, keys, chunk_ids, transfer)

    def _run(self, job_id, keys, chunk_ids, transfer) -> None:
        began = time.monotonic()
        done = []
        try:
            for key, chunk_id in zip(keys, chunk_ids, strict=True):
                if transfer(bytes(key), self._chunk(chunk_id)):
                    done.append(key)
        except Exception:
            _logger.exception("job %s failed", job_id)
        is_load = transfer == self._load
        self._finished.put((job_id, is_load, keys, done, time.monotonic() - began))
        with self._idle:
            self._n_running -= 1
            self._idle.notify_all()

    def get_finished_jobs(self) -> Iterable[JobResult]:
        results = []
        while True:
            try:
                job_id, is_load, keys, done, seconds = self._finished.get_nowait()
            except queue.Empty:
                return results
            success = len(done) == len(keys)
            if is_load and not success:
                loaded = set(done)
                self._lookup.mark_miss([key for key in keys if key not in loaded])
            if not is_load and done and self._events is not None:
                self._events.append(OffloadingEvent(keys=done, medium=self.medium, removed=False,
                                                    locality=self.locality))
            results.append(JobResult(
                job_id=job_id, success=success,
                successful_keys=tuple(done) if is_load and done and not success else None,
                transfer_time=seconds, transfer_bytes=len(done) * self.block_size_bytes))

    def has_pending_work(self) -> bool:
        with self._idle:
            return self._n_running > 0 or not self._finished.empty()

    def take_events(self) -> Iterable[OffloadingEvent]:
        events = self._events or []
        if self._events is not None:
            self._events = []
        return events

    def drain_jobs(self) -> None:
        with self._idle:
            self._idle.wait_for(lambda: self._n_running == 0)

    def shutdown(self) -> None:
        self._lookup.shutdown()
        self._pool.shutdown(wait=True)
        self._bytes.release()
        self.blocks.close()
