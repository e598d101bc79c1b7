"""SGLang: a storage backend of HiCache that keeps pages in a store of tqcache.

    --enable-hierarchical-cache --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "tqcache",
      "module_path": "tqcache.sglang", "class_name": "TqcacheStorage",
      "store": "dir:/var/lib/prompts", "interface_v1": 1}'

Further keys of that configuration: "salt" joins the identity (give models that have the same name
and other weights different salts), "key_file" encrypts.

Pages are kept without loss, as byte planes. They are read only by an engine with the same model,
dtype, geometry, layout of the host pool and ranks. Ranks that hold the same pages (MLA) share them.

"quantize": {"keys": "mse:4", "values": "mse:4"} quantizes the pages of keys and values. SGLang's pool
for usual attention (MHATokenToKVPoolHost) says where they are; pages of other pools, such as
recurrent states, stay without loss. With "device": "cuda" this GPU packs and unpacks them.

Written for SGLang 0.5.23; docs/guide/plugins.md.
"""

import logging
from typing import Any, List, Optional

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

from ._blocks import Blocks, element_size_of, identity_bytes, identity_name
from ._pages import Layout, PageCodec

_logger = logging.getLogger("tqcache.sglang")


def _geometry(pool) -> dict:
    """What the bytes of a page depend on, as far as a host pool tells it."""
    names = ("layout", "dtype", "page_size", "layer_num", "head_num", "head_dim", "v_head_dim",
             "kv_lora_rank", "qk_rope_head_dim", "kv_cache_dim", "start_layer", "end_layer",
             "size_per_token", "storage_format_tag", "dcp_size")
    geometry = {name: str(getattr(pool, name)) for name in names if hasattr(pool, name)}
    geometry["pool_class"] = type(pool).__name__
    geometry["page_bytes"] = _bytes_of(pool.get_dummy_flat_data_page()).nbytes
    return geometry


def _bytes_of(page: torch.Tensor) -> memoryview:
    """A view of a contiguous CPU tensor's bytes."""
    return memoryview(page.reshape(-1).view(torch.uint8).numpy())


# The axes of a flat page of MHATokenToKVPoolHost.
_PAGES = {"layer_first": "kv layers tokens heads dim", "page_first": "kv tokens layers heads dim",
          "page_first_direct": "kv layers tokens heads dim",
          "page_head": "kv heads tokens layers dim"}


def _page_codec(pool, quantize: dict) -> PageCodec:
    """Quantizes the pages of the pool of keys and values. Errors: ValueError if their layout is not
    known."""
    unknown = set(quantize) - {"keys", "values", "device"}
    if unknown:
        raise ValueError(f'"quantize" takes "keys", "values" and "device": {sorted(unknown)}')
    axes = _PAGES.get(getattr(pool, "layout", None))
    # Classes that inherit may keep something else.
    if type(pool).__name__ != "MHATokenToKVPoolHost" or axes is None:
        raise ValueError(f'"quantize": the layout of {type(pool).__name__} '
                         f'({getattr(pool, "layout", None)}) is not known')
    sizes = {"kv": 2, "layers": pool.layer_num, "tokens": pool.page_size, "heads": pool.head_num,
             "dim": pool.head_dim}
    names = axes.split()
    order = ["kv", "layers", "heads", "tokens", "dim"]
    made = PageCodec(Layout(tuple(sizes[name] for name in names),
                            tuple(names.index(name) for name in order)),
                     pool.dtype, str(quantize.get("keys", "mse:4")),
                     str(quantize.get("values", "mse:4")), str(quantize.get("device", "cpu")))
    n_bytes = _bytes_of(pool.get_dummy_flat_data_page()).nbytes
    if made.n_bytes != n_bytes or getattr(pool, "v_head_dim", pool.head_dim) != pool.head_dim:
        raise ValueError(f'"quantize": a page has {n_bytes} bytes, and its numbers {made.n_bytes}')
    return made


class _Pool:
    """The pages of one host pool."""

    def __init__(self, config: HiCacheStorageConfig, name: str, pool, store: str, salt: str,
                 key_file, quantize: dict | None = None):
        self._codec = None
        if quantize is not None and name == str(PoolName.KV):
            self._codec = _page_codec(pool, quantize)
        # Ranks hold the same pages of MLA's keys and values, but other recurrent states.
        is_shared = config.is_mla_model and name != str(PoolName.MAMBA)
        self.identity = identity_bytes(
            engine="sglang", salt=salt, model=config.model_name, pool=name, **_geometry(pool),
            tp=None if is_shared else [config.tp_rank, config.tp_size],
            pp=[config.pp_rank, config.pp_size], cp=[config.attn_cp_rank, config.attn_cp_size],
            dcp=[config.dcp_rank, config.dcp_size], is_mla=config.is_mla_model,
            split=[config.should_split_heads, config.tp_lcm_size],
            logical_page_size=config.logical_page_size,
            **({} if self._codec is None else {"quantized": self._codec.identity()}))
        self.host = pool
        self.blocks = Blocks(store, "sglang." + identity_name(self.identity), _logger, key_file)

    def read(self, key: str, page: torch.Tensor) -> bool:
        if not page.is_contiguous():
            packed = torch.empty(page.shape, dtype=page.dtype)
            found = self.read(key, packed)
            if found:
                page.copy_(packed)
            return found
        if self._codec is not None:
            return self.blocks.get_page_into(self.identity, key.encode(), _bytes_of(page),
                                             self._codec)
        return self.blocks.get_into(self.identity, key.encode(), _bytes_of(page))

    def write(self, key: str, page: torch.Tensor) -> bool:
        if self._codec is not None:
            return self.blocks.put_page(self.identity, key.encode(),
                                        _bytes_of(page.cpu().contiguous()), self._codec)
        return self.blocks.put(self.identity, key.encode(), _bytes_of(page.cpu().contiguous()),
                               element_size=element_size_of(page.dtype))

    def read_at(self, key: str, offset: int) -> bool:
        page = self.host.get_dummy_flat_data_page()
        found = self.read(key, page)
        if found:
            self.host.set_from_flat_data_page(offset, page)
        return found

    def write_at(self, key: str, offset: int) -> bool:
        return self.write(key, self.host.get_data_page(offset, flat=True))

    def exists(self, keys) -> list[bool]:
        return self.blocks.exists(self.identity, [key.encode() for key in keys])


def _n_leading(found: list[bool]) -> int:
    return found.index(False) if False in found else len(found)


class TqcacheStorage(HiCacheStorage):
    """Pages by their hashes. Nothing here raises for a page that cannot be had: an exception would
    end the thread of the engine."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: Any = None):
        extra = storage_config.extra_config or {}
        if not isinstance(extra.get("store"), str):
            raise ValueError('the extra config of HiCache lacks "store": the URL of the store')
        self._config = storage_config
        self._store = extra["store"]
        self._salt = str(extra.get("salt", ""))
        self._key_file = extra.get("key_file")
        self._quantize = extra.get("quantize")
        self._pools: dict[str, _Pool] = {}

    def register_mem_pool_host(self, mem_pool_host):
        super().register_mem_pool_host(mem_pool_host)
        self._add_pool(str(PoolName.KV), mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._add_pool(str(host_pool_name), host_pool)

    def _add_pool(self, name: str, host) -> None:
        old = self._pools.pop(name, None)
        if old is not None:
            old.blocks.close()
        self._pools[name] = _Pool(self._config, name, host, self._store, self._salt,
                                  self._key_file, self._quantize)

    @property
    def _kv(self) -> _Pool:
        return self._pools[str(PoolName.KV)]

    # --- Pages of keys and values

    def exists(self, key: str) -> bool:
        return self._kv.exists([key])[0]

    def batch_exists(self, keys: List[str],
                     extra_info: Optional[HiCacheStorageExtraInfo] = None) -> int:
        return _n_leading(self._kv.exists(keys))

    def get(self, key: str, target_location: Optional[Any] = None,
            target_sizes: Optional[Any] = None) -> torch.Tensor | None:
        if target_location is None:
            target_location = self._kv.host.get_dummy_flat_data_page()
        return target_location if self._kv.read(key, target_location) else None

    def batch_get(self, keys: List[str], target_locations: Optional[Any] = None,
                  target_sizes: Optional[Any] = None) -> List[torch.Tensor | None]:
        targets = target_locations if target_locations is not None else [None] * len(keys)
        return [self.get(key, target) for key, target in zip(keys, targets, strict=True)]

    def set(self, key: str, value: Optional[Any] = None, target_location: Optional[Any] = None,
            target_sizes: Optional[Any] = None) -> bool:
        page = value if value is not None else target_location
        return page is not None and self._kv.write(key, page)

    def batch_set(self, keys: List[str], values: Optional[Any] = None,
                  target_locations: Optional[Any] = None,
                  target_sizes: Optional[Any] = None) -> bool:
        pages = values if values is not None else target_locations
        return all([self.set(key, page) for key, page in zip(keys, pages or [], strict=True)])

    def batch_get_v1(self, keys: List[str], host_indices: torch.Tensor,
                     extra_info: Optional[HiCacheStorageExtraInfo] = None) -> List[bool]:
        return self._at_pages(self._kv, keys, host_indices, self._kv.read_at)

    def batch_set_v1(self, keys: List[str], host_indices: torch.Tensor,
                     extra_info: Optional[HiCacheStorageExtraInfo] = None) -> List[bool]:
        return self._at_pages(self._kv, keys, host_indices, self._kv.write_at)

    @staticmethod
    def _at_pages(pool: _Pool, keys, host_indices, transfer) -> List[bool]:
        page_size = getattr(pool.host, "page_size", 1) or 1
        if host_indices is None or host_indices.numel() != len(keys) * page_size:
            _logger.warning("%s pages need %s indices each: nothing is transferred", len(keys),
                            page_size)
            return [False] * len(keys)
        return [transfer(key, host_indices[i * page_size].item()) for i, key in enumerate(keys)]

    # --- Several pools

    def batch_exists_v2(self, keys: List[str], pool_transfers: Optional[List[PoolTransfer]] = None,
                        extra_info: Optional[HiCacheStorageExtraInfo] = None
                        ) -> PoolTransferResult:
        n_kv = self.batch_exists(keys)
        hits = {PoolName.KV: n_kv} if n_kv else {}
        restorable = set(range(1, n_kv + 1))
        for transfer in pool_transfers or []:
            pool = self._pools.get(str(transfer.name))
            found = pool.exists(keys[:n_kv]) if pool is not None else [False] * n_kv
            if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
                continue  # a second form of the same pages, which are not kept: it gates nothing
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                usable = set(range(1, _n_leading(found) + 1))
            else:
                n_last = max(1, len(transfer.keys or []))
                usable = {n for n in range(1, n_kv + 1) if all(found[max(0, n - n_last):n])}
            if usable:
                hits[transfer.name] = max(usable)
            restorable &= usable
        return PoolTransferResult(max(restorable, default=0), hits, sorted(restorable))

    def batch_get_v2(self, transfers: List[PoolTransfer],
                     extra_info: Optional[HiCacheStorageExtraInfo] = None
                     ) -> dict[str, List[bool]]:
        return self._transfer_v2(transfers, _Pool.read_at)

    def batch_set_v2(self, transfers: List[PoolTransfer],
                     extra_info: Optional[HiCacheStorageExtraInfo] = None
                     ) -> dict[str, List[bool]]:
        return self._transfer_v2(transfers, _Pool.write_at)

    def _transfer_v2(self, transfers, method) -> dict[str, List[bool]]:
        results = {}
        for transfer in transfers:
            keys = transfer.keys or []
            pool = self._pools.get(str(transfer.name))
            results[transfer.name] = [False] * len(keys) if pool is None else self._at_pages(
                pool, keys, transfer.host_indices,
                lambda key, offset, pool=pool: method(pool, key, offset))
        return results

    def clear(self) -> None:
        for pool in self._pools.values():
            pool.blocks.clear()

    def close(self) -> None:
        for pool in self._pools.values():
            pool.blocks.close()
        self._pools.clear()
