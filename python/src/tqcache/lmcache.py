"""LMCache: an L2 adapter, a native connector and a serde (multiprocess mode).

The L2 adapter keeps the objects of LMCache in a store of tqcache:

    --l2-adapter '{"type": "plugin", "module_path": "tqcache.lmcache",
      "class_name": "TqcacheL2Adapter", "adapter_params": {"store": "dir:/var/lib/prompts"}}'

The native connector does the same below LMCache's own adapter, which sees bytes only: the geometry
is then what "geometry" says.

    --l2-adapter '{"type": "native_plugin", "module_path": "tqcache.lmcache",
      "class_name": "TqcacheConnector",
      "adapter_params": {"store": "dir:/var/lib/prompts", "geometry": "qwen3-8b-bf16-256"}}'

The serde makes objects smaller below any adapter: "tqcache" without loss, "tqcache-turbo"
quantized. LMCache knows it once this module is imported; the L2 adapter above does that.

    ... "serde": {"type": "tqcache-turbo", "head_dim": 128, "keys": "mse:4", "values": "mse:4"}

With "device": "cuda" in it a GPU encodes and decodes.

Objects that are damaged, or of another shape, dtype, model or rank, are a miss.

Written for LMCache 0.5.6; docs/guide/plugins.md.
"""

import json
import logging
import os
import struct
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import torch
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface, L2TaskId
from lmcache.v1.distributed.serde.async_processor import AsyncSerdeProcessor
from lmcache.v1.distributed.serde.base import Deserializer, Serializer
from lmcache.v1.distributed.serde.factory import (
    get_registered_serde_types,
    register_serde_factory,
)
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.platform import create_event_notifier

from . import codec
from ._blocks import Blocks, element_size_of, identity_bytes
from ._pages import Layout, PageCodec

_logger = logging.getLogger("tqcache.lmcache")


def _identity(key: ObjectKey, salt: str) -> bytes:
    return identity_bytes(engine="lmcache", model=key.model_name, kv_rank=key.kv_rank,
                          group=key.object_group_id, cache_salt=key.cache_salt, salt=salt)


def _layout_of(obj: MemoryObj) -> list:
    return [[list(map(int, shape)), str(dtype)]
            for shape, dtype in zip(obj.get_shapes(), obj.get_dtypes(), strict=True)]


def _is_serialized(obj: MemoryObj) -> bool:
    """Whether the object is the buffer of a serde: bytes, of which the first ones count."""
    shapes, dtypes = obj.get_shapes(), obj.get_dtypes()
    return len(shapes) == 1 and len(shapes[0]) == 1 and dtypes[0] == torch.uint8


# --- The L2 adapter

class TqcacheL2Adapter(L2AdapterInterface):
    """Keeps objects in a store.

    adapter_params: "store" (a URL: docs/reference/store.md), and optionally "salt" (joins the
    identity: give models that have the same name and other weights different salts), "key_file"
    (encrypts), "threads" (4), "max_capacity_gb" (0: LMCache evicts nothing from this tier).
    """

    def __init__(self, params: dict, l1_memory_desc=None):
        if not isinstance(params.get("store"), str):
            raise ValueError('adapter_params lacks "store": the URL of the store')
        super().__init__(max_capacity_bytes=int(params.get("max_capacity_gb", 0) * 2**30))
        self._store_url = params["store"]
        self._salt = str(params.get("salt", ""))
        self._blocks = Blocks(params["store"], "lmcache", _logger, params.get("key_file"))
        self._store_event = create_event_notifier()
        self._lookup_event = create_event_notifier()
        self._load_event = create_event_notifier()
        self._lock = threading.Lock()
        self._n_tasks = 0
        self._stored: dict[L2TaskId, L2StoreResult] = {}
        self._looked_up: dict[L2TaskId, Bitmap] = {}
        self._loaded: dict[L2TaskId, Bitmap] = {}
        self._sizes: dict[ObjectKey, int] = {}
        self._pool = ThreadPoolExecutor(int(params.get("threads", 4)),
                                        thread_name_prefix="tqcache-lmcache")

    def get_store_event_fd(self) -> int:
        return self._store_event.fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._lookup_event.fileno()

    def get_load_event_fd(self) -> int:
        return self._load_event.fileno()

    def _submit(self, work, failed, results: dict, event) -> L2TaskId:
        """Runs `work` in a thread; what it returns, or `failed`, becomes the result of the task."""
        with self._lock:
            task_id = self._n_tasks
            self._n_tasks += 1

        def run():
            try:
                result = work()
            except Exception:
                _logger.exception("a task failed: its objects count as missing")
                result = failed
            with self._lock:
                results[task_id] = result
            event.notify()

        self._pool.submit(run)
        return task_id

    # --- Storing

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2TaskId:
        return self._submit(lambda: self._store(keys, objects), L2StoreResult(False, 0),
                            self._stored, self._store_event)

    def _store(self, keys, objects) -> L2StoreResult:
        n_bytes, stored, sizes = 0, [], []
        success = True
        for key, obj in zip(keys, objects, strict=True):
            data = obj.byte_array
            sizes_of = {element_size_of(dtype) for dtype in obj.get_dtypes()}
            if not self._blocks.put(_identity(key, self._salt), key.chunk_hash, data,
                                    self._extra(obj), min(sizes_of)):
                success = False
                continue
            with self._lock:
                is_new = key not in self._sizes
                self._sizes[key] = len(data)
            stored.append(key)
            sizes.append(len(data) if is_new else 0)
            n_bytes += sizes[-1]
        if stored:
            self._notify_keys_stored(stored, sizes)
        return L2StoreResult(success, n_bytes)

    @staticmethod
    def _extra(obj: MemoryObj) -> bytes:
        return b"serialized" if _is_serialized(obj) else json.dumps(_layout_of(obj)).encode()

    def pop_completed_store_tasks(self) -> dict[L2TaskId, L2StoreResult]:
        with self._lock:
            completed, self._stored = dict(self._stored), self._stored
            self._stored.clear()
        return completed

    # --- Looking up

    def submit_lookup_and_lock_task(self, keys: list[ObjectKey],
                                    group_layout_descs: dict[int, MemoryLayoutDesc]) -> L2TaskId:
        return self._submit(lambda: self._lookup(keys), Bitmap(len(keys)), self._looked_up,
                            self._lookup_event)

    def _lookup(self, keys) -> Bitmap:
        found = Bitmap(len(keys))
        for i, key in enumerate(keys):
            if self._blocks.exists(_identity(key, self._salt), [key.chunk_hash])[0]:
                found.set(i)
        return found

    def query_lookup_and_lock_result(self, task_id: L2TaskId) -> Bitmap | None:
        with self._lock:
            return self._looked_up.pop(task_id, None)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        """Nothing is locked: an object that is deleted before it is loaded is a miss."""

    # --- Loading

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2TaskId:
        return self._submit(lambda: self._load(keys, objects), Bitmap(len(keys)), self._loaded,
                            self._load_event)

    def _load(self, keys, objects) -> Bitmap:
        loaded = Bitmap(len(keys))
        accessed = []
        for i, (key, obj) in enumerate(zip(keys, objects, strict=True)):
            identity, out = _identity(key, self._salt), obj.byte_array
            if _is_serialized(obj):
                data = self._blocks.get(identity, key.chunk_hash, self._extra(obj))
                found = data is not None and len(data) <= len(out)
                if found:
                    out.cast("B")[:len(data)] = data
            else:
                found = self._blocks.get_into(identity, key.chunk_hash, out, self._extra(obj))
            if found:
                loaded.set(i)
                accessed.append(key)
        if accessed:
            self._notify_keys_accessed(accessed)
        return loaded

    def query_load_result(self, task_id: L2TaskId) -> Bitmap | None:
        with self._lock:
            return self._loaded.pop(task_id, None)

    # --- Others

    def delete(self, keys: list[ObjectKey]) -> None:
        deleted, sizes = [], []
        for key in keys:
            if self._blocks.delete(_identity(key, self._salt), key.chunk_hash):
                deleted.append(key)
                with self._lock:
                    sizes.append(self._sizes.pop(key, 0))
        if deleted:
            self._notify_keys_deleted(deleted, sizes)

    def report_status(self) -> dict:
        return {"is_healthy": True, "type": "TqcacheL2Adapter", "store": self._store_url}

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        self._blocks.close()
        for event in (self._store_event, self._lookup_event, self._load_event):
            event.close()


# --- The native connector

class TqcacheConnector:
    """What LMCache's NativeConnectorL2Adapter asks of a connector.

    It is given strings and bytes, so `geometry` has to say what the bytes depend on besides the
    model's name and the ranks, which are in the strings: any text that differs between layouts.
    """

    def __init__(self, store: str, geometry: str, key_file: str | None = None, threads: int = 4,
                 dtype: str = "bfloat16"):
        self._identity = identity_bytes(engine="lmcache-native", geometry=geometry)
        self._element_size = element_size_of(dtype)
        self._blocks = Blocks(store, "lmcache-native", _logger, key_file)
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._n_tasks = 0
        self._completed: list[tuple[int, bool, str, list[bool] | None]] = []
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tqcache-lmcache-native")

    def event_fd(self) -> int:
        return self._event

    def _submit(self, work) -> int:
        with self._lock:
            self._n_tasks += 1
            task_id = self._n_tasks

        def run():
            try:
                completion = (task_id, True, "", work())
            except Exception as error:
                completion = (task_id, False, str(error), None)
            with self._lock:
                self._completed.append(completion)
            os.eventfd_write(self._event, 1)

        self._pool.submit(run)
        return task_id

    def submit_batch_get(self, keys: list[str], memoryviews: list[memoryview]) -> int:
        return self._submit(lambda: [self._blocks.get_into(self._identity, key.encode(), out)
                                     for key, out in zip(keys, memoryviews, strict=True)])

    def submit_batch_set(self, keys: list[str], memoryviews: list[memoryview]) -> int:
        def work():
            stored = [self._blocks.put(self._identity, key.encode(), data,
                                       element_size=self._element_size)
                      for key, data in zip(keys, memoryviews, strict=True)]
            if not all(stored):
                raise OSError(f"{stored.count(False)} of {len(keys)} objects were not stored")
            return stored
        return self._submit(work)

    def submit_batch_exists(self, keys: list[str]) -> int:
        return self._submit(lambda: self._blocks.exists(self._identity,
                                                        [key.encode() for key in keys]))

    def submit_batch_delete(self, keys: list[str]) -> int:
        return self._submit(lambda: [self._blocks.delete(self._identity, key.encode())
                                     for key in keys])

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool] | None]]:
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            pass
        with self._lock:
            completed, self._completed = self._completed, []
        return completed

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        self._blocks.close()
        os.close(self._event)


# --- The serde

# An object is a head of 20 bytes, JSON, and parts that carry their own checksums.
_HEAD = struct.Struct("<4sIIQ")  # magic, CRC32 of the JSON, length of the JSON, of everything
_MAGIC = b"TQS1"


def _kv_views(shape, head_dim: int):
    """Index and kind of the [heads, tokens, head_dim] parts of an object of this shape, or None if
    it is not known where keys and values are. Two layouts are in use: [2, L, T, H * D], and, since
    vLLM 0.26, [1, L, T, H * 2 * D] or [L, T, H * 2 * D] with each head's key before its value."""
    shape = list(map(int, shape))
    if not head_dim or len(shape) not in (3, 4):
        return None
    if len(shape) == 4 and shape[0] == 2 and shape[3] % head_dim == 0:
        layers, tokens, heads = shape[1], shape[2], shape[3] // head_dim
        return (2, layers, tokens, heads, head_dim), (0, 1, 3, 2, 4)
    if (len(shape) == 3 or shape[0] == 1) and shape[-1] % (2 * head_dim) == 0:
        layers, tokens, heads = shape[-3], shape[-2], shape[-1] // (2 * head_dim)
        return (layers, tokens, heads, 2, head_dim), (3, 0, 2, 1, 4)
    return None


def _parts(tensor: torch.Tensor, head_dim: int):
    """(kind, view [heads, tokens, head_dim]) of the keys, and then the values, of each layer: the
    parts of the form "turbo", which earlier versions wrote."""
    views = _kv_views(tensor.shape, head_dim)
    if views is None:
        return None
    shape, order = views
    both = tensor.view(shape).permute(order)  # [2, layers, heads, tokens, head_dim]
    return [(kind, both[i, layer]) for i, kind in enumerate(("keys", "values"))
            for layer in range(both.shape[1])]


def _bits(tensor: torch.Tensor):
    """A numpy view, for bf16 of its bits."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view("uint16")
    return tensor.numpy()


_QUANTIZED_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class _PageCodecs:
    """The page codecs of the layouts that came along."""

    def __init__(self, head_dim: int, keys: str, values: str, device: str):
        self.head_dim, self._options = head_dim, (keys, values, device)
        self._made: dict = {}

    def of(self, shape, dtype) -> PageCodec | None:
        """None: the object is kept without loss."""
        key = (tuple(map(int, shape)), dtype)
        if key not in self._made:  # threads that make the same one make equal ones
            views = _kv_views(shape, self.head_dim) if dtype in _QUANTIZED_DTYPES else None
            self._made[key] = None if views is None else PageCodec(
                Layout(*views), dtype, *self._options)
        return self._made[key]


class TqcacheSerializer(Serializer):
    """head_dim 0: everything without loss. Otherwise keys and values are quantized with these
    configurations of tqcache.codec wherever the layout is known, and the rest is kept without
    loss. device: "cpu", or the GPU that encodes.

    pad: every object of a layout has the same size, as most adapters of LMCache want it. Otherwise
    objects are as small as they can be; TqcacheL2Adapter keeps both."""

    def __init__(self, head_dim: int = 0, keys: str = "mse:4", values: str = "mse:4",
                 pad: bool = False, device: str = "cpu"):
        self._pad, self._configs = pad, {"keys": keys, "values": values}
        self._pages = _PageCodecs(head_dim, keys, values, device)

    def serialize(self, src: MemoryObj, dst: MemoryObj, key: ObjectKey) -> int:
        groups, payload = [], []
        for i, (shape, dtype) in enumerate(zip(src.get_shapes(), src.get_dtypes(), strict=True)):
            tensor, pages = src.get_tensor(i).contiguous(), self._pages.of(shape, dtype)
            if pages is not None:
                packed, form = pages.encode(tensor), "page"
                if i + 1 < len(src.get_shapes()):  # parts of a GPU are those of the last call
                    packed = [bytes(part) for part in packed]
            else:
                data = memoryview(tensor.cpu().view(-1).view(torch.uint8).numpy())
                size = element_size_of(dtype)
                packed = [codec.planes_encode(data, size) if size > 1
                          else _crc(data) + bytes(data)]
                form = "planes" if size > 1 else "raw"
            groups.append({"form": form, "head_dim": self._pages.head_dim, **self._configs,
                           "sizes": [len(part) for part in packed]})
            payload += packed
        text = json.dumps({"key": _key_fields(key), "layout": _layout_of(src), "groups": groups},
                          sort_keys=True).encode()
        n_bytes = _HEAD.size + len(text) + sum(map(len, payload))
        out = memoryview(dst.byte_array).cast("B")
        if n_bytes > len(out):
            raise ValueError(f"{n_bytes} bytes do not fit into {len(out)}")
        head = _HEAD.pack(_MAGIC, zlib.crc32(text), len(text), n_bytes)
        at = 0
        for part in (head, text, *payload):
            out[at:at + len(part)] = memoryview(part).cast("B")
            at += len(part)
        if not self._pad:
            return n_bytes
        n_padded = self.estimate_serialized_size(MemoryLayoutDesc(src.get_shapes(),
                                                                  src.get_dtypes()))
        out[at:n_padded] = bytes(n_padded - at)
        return n_padded

    def estimate_serialized_size(self, layout_desc: MemoryLayoutDesc) -> int:
        n_bytes = _HEAD.size + 1024
        for shape, dtype in zip(layout_desc.shapes, layout_desc.dtypes, strict=True):
            pages = self._pages.of(shape, dtype)
            if pages is not None:
                n_bytes += pages.bound
            else:
                size = dtype.itemsize * torch.Size(shape).numel()
                n_bytes += size + size // 64 + 4096
        return n_bytes


class TqcacheDeserializer(Deserializer):
    """Raises for damage, and for an object of another key, shape or dtype: then LMCache reports a
    miss. device: "cpu", or the GPU that decodes."""

    def __init__(self, device: str = "cpu"):
        self._device = device
        self._pages: dict = {}

    def _page_codec(self, tensor, group) -> PageCodec:
        key = (tuple(tensor.shape), tensor.dtype, group["head_dim"], group["keys"], group["values"])
        if key not in self._pages:
            # An object chooses its codec: a few are kept.
            if len(self._pages) >= 16:
                self._pages.clear()
            made = _PageCodecs(int(group["head_dim"]), str(group["keys"]), str(group["values"]),
                               self._device).of(tensor.shape, tensor.dtype)
            if made is None:
                raise ValueError("a damaged object")
            self._pages[key] = made
        return self._pages[key]

    def deserialize(self, src: MemoryObj, dst: MemoryObj, key: ObjectKey) -> None:
        data = memoryview(src.byte_array).cast("B")
        magic, crc, n_text, n_bytes = _HEAD.unpack_from(data)
        if magic != _MAGIC or n_bytes > len(data) or _HEAD.size + n_text > n_bytes:
            raise ValueError("not an object of tqcache, or damaged")
        text = bytes(data[_HEAD.size:_HEAD.size + n_text])
        if zlib.crc32(text) != crc:
            raise ValueError("a damaged object")
        found = json.loads(text)
        if found["key"] != _key_fields(key) or found["layout"] != _layout_of(dst):
            raise ValueError("an object of another model, rank, shape or dtype")
        at = _HEAD.size + n_text
        # First everything is decoded, then the destination is written: never a part of an object.
        writes = []
        for i, group in enumerate(found["groups"]):
            packed, first, tensor = [], at, dst.get_tensor(i)
            for size in group["sizes"]:
                packed.append(data[at:at + size])
                at += size
            if group["form"] != "page":
                writes.append(_decode_group(tensor, group, packed))
                continue
            # A page is written only if it is whole, so the only one of an object needs no room.
            is_only = len(found["groups"]) == 1 and tensor.is_contiguous() and at == n_bytes
            room = tensor if is_only else torch.empty(tensor.shape, dtype=tensor.dtype)
            self._page_codec(tensor, group).decode(data[first:at], room)
            writes.append([] if is_only else [(tensor, room)])
        if at != n_bytes:
            raise ValueError("a damaged object")
        for target, value in (pair for group in writes for pair in group):
            target.copy_(value)


def _decode_group(tensor: torch.Tensor, group: dict, packed: list) -> list:
    """(target, value) of each part of a group."""
    if group["form"] == "turbo":
        parts = _parts(tensor, group["head_dim"])
        if parts is None or len(parts) != len(packed):
            raise ValueError("a damaged object")
        pairs = []
        for (_, target), data in zip(parts, packed, strict=True):
            value = torch.empty(target.shape, dtype=target.dtype)
            if codec.shape(data)[0] != tuple(target.shape):
                raise ValueError("a damaged object")
            codec.decode(data, out=_bits(value))
            pairs.append((target, value))
        return pairs
    data, = packed
    value = torch.empty(tensor.shape, dtype=tensor.dtype)
    out = memoryview(value.view(-1).view(torch.uint8).numpy())
    if group["form"] == "planes":
        codec.planes_decode(data, out)
    else:
        if len(data) != 4 + len(out) or bytes(data[:4]) != _crc(data[4:]):
            raise ValueError("a damaged object")
        out[:] = data[4:]
    return [(tensor, value)]


def _crc(data) -> bytes:
    return zlib.crc32(data).to_bytes(4, "little")


def _key_fields(key: ObjectKey) -> list:
    return [key.model_name, key.kv_rank, key.object_group_id, key.chunk_hash.hex(), key.cache_salt]


def _make_lossless(kwargs: dict):
    return AsyncSerdeProcessor(TqcacheSerializer(pad=bool(kwargs.get("pad", False))),
                               TqcacheDeserializer(),
                               max_workers=int(kwargs.get("max_workers", 1)))


def _make_turbo(kwargs: dict):
    if not int(kwargs.get("head_dim", 0)) > 0:
        raise ValueError('the serde "tqcache-turbo" needs "head_dim" of the model')
    return AsyncSerdeProcessor(
        TqcacheSerializer(int(kwargs["head_dim"]), str(kwargs.get("keys", "mse:4")),
                          str(kwargs.get("values", "mse:4")), bool(kwargs.get("pad", False)),
                          str(kwargs.get("device", "cpu"))),
        TqcacheDeserializer(str(kwargs.get("device", "cpu"))), max_workers=int(kwargs.get("max_workers", 1)))


for _name, _factory in (("tqcache", _make_lossless), ("tqcache-turbo", _make_turbo)):
    if _name not in get_registered_serde_types():
        register_serde_factory(_name, _factory)
