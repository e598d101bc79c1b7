"""What SGLang's backend does beside single pages of keys and values: several pools, and clearing."""

import engines
import numpy as np
import pytest

pytestmark = pytest.mark.interop


@pytest.fixture
def two_pools(tmp_path):
    engines.need("sglang")
    import torch

    made = engines.Sglang(f"dir:{tmp_path}/store")
    made.extra = engines.Sglang._host_pool(torch.float16, 2, "page_first")
    made.storage.register_mem_host_pool_v2(made.extra, "mamba")
    made.storage.register_mem_host_pool_v2(made.pool, "kv")
    yield made
    made.close()


def transfer(made, keys, name, pages=None, **options):
    from sglang.srt.mem_cache.hicache_storage import PoolTransfer

    n = len(keys) if pages is None else pages
    return PoolTransfer(name=name, keys=keys, host_indices=made._indices(n), **options)


def test_pools_are_kept_apart(two_pools):
    made = two_pools
    names = ["a", "b", "c"]
    for i, name in enumerate(names):
        made.pool.set_from_flat_data_page(i * 16, made._page(engines.block(name)))
    made.extra.kv_buffer.uniform_(-1, 1)
    before = made.extra.kv_buffer.clone()
    stored = made.storage.batch_set_v2([transfer(made, names, "kv"),
                                        transfer(made, names[:2], "mamba")])
    assert stored == {"kv": [True] * 3, "mamba": [True] * 2}
    made.pool.kv_buffer.zero_()
    made.extra.kv_buffer.zero_()
    loaded = made.storage.batch_get_v2([transfer(made, names, "kv"),
                                        transfer(made, names, "mamba"),
                                        transfer(made, names, "unknown")])
    assert loaded == {"kv": [True] * 3, "mamba": [True, True, False], "unknown": [False] * 3}
    assert (made.extra.kv_buffer[:, :32] == before[:, :32]).all()
    assert not made.extra.kv_buffer[:, 32:].any()
    page = made.pool.get_data_page(16)
    assert np.array_equal(page.numpy().view(np.uint8), engines.block("b"))
    wrong = made.storage.batch_get_v2([transfer(made, names, "kv", pages=2)])
    assert wrong == {"kv": [False] * 3}


def test_the_usable_prefix_depends_on_all_pools(two_pools):
    from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy

    made = two_pools
    names = ["a", "b", "c", "d"]
    made.put({name: engines.block(name) for name in names[:3]})
    made.storage.batch_set_v2([transfer(made, ["b"], "mamba")])
    found = made.storage.batch_exists_v2(names, [
        transfer(made, ["x"], "mamba", hit_policy=PoolHitPolicy.TRAILING_PAGES)])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (2, [2])
    assert found.extra_pool_hit_pages == {"kv": 3, "mamba": 2}
    found = made.storage.batch_exists_v2(names, [transfer(made, names, "mamba")])
    assert found.kv_hit_pages == 0
    assert made.storage.batch_exists_v2(names).kv_hit_pages == 3


def test_clearing_leaves_other_models_alone(tmp_path):
    engines.need("sglang")
    store = f"dir:{tmp_path}/store"
    one, other = engines.Sglang(store), engines.Sglang(store, model="other")
    for made in (one, other):
        made.put({"a": engines.block("a")})
    one.storage.clear()
    assert one.get(["a"]) == [None]
    assert np.array_equal(other.get(["a"])[0], engines.block("a"))
    one.close()
    other.close()
