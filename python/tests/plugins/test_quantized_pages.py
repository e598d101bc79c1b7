"""Quantized pages of SGLang and vLLM: the layouts are theirs, and another layout is refused."""

import dataclasses

import engines
import numpy as np
import pytest

pytestmark = pytest.mark.interop

LAYERS, TOKENS, HEADS, DIM = 2, 64, 4, 64


def keys_and_values(dtype="float16"):
    """[K or V, layers, heads, tokens, components], with a mean and an outlier channel, as keys
    have."""
    import torch

    made = torch.randn(2, LAYERS, HEADS, TOKENS, DIM, generator=torch.Generator().manual_seed(7))
    made += 3 * torch.randn(2, LAYERS, HEADS, 1, DIM, generator=torch.Generator().manual_seed(8))
    made[..., 5] *= 8
    return made.to(getattr(torch, dtype))


def codec(**options):
    import torch
    from tqcache._pages import Layout, PageCodec

    return PageCodec(Layout((2, LAYERS, HEADS, TOKENS, DIM), (0, 1, 2, 3, 4)), torch.float16,
                     **options)


def bytes_of(tensor):
    import torch

    return tensor.contiguous().view(-1).view(torch.uint8).numpy().copy()


def joined(parts):
    return b"".join(bytes(part) for part in parts)


def relative_error(a, b):
    return float((a.float() - b.float()).pow(2).sum() / a.float().pow(2).sum())


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_pages_are_small_and_near(torch):
    numbers = keys_and_values()
    packed = joined(codec().encode(bytes_of(numbers)))
    assert len(packed) < 0.30 * numbers.numel() * 2
    again = np.zeros(numbers.numel() * 2, np.uint8)
    codec().decode(packed, again)
    back = torch.from_numpy(again).view(torch.float16).view(numbers.shape)
    assert 1e-6 < relative_error(numbers, back) < 0.01
    whole = joined(codec(keys="mse:8", values="mse:8").encode(bytes_of(numbers)))
    codec(keys="mse:8", values="mse:8").decode(whole, again)
    back = torch.from_numpy(again).view(torch.float16).view(numbers.shape)
    assert relative_error(numbers, back) < 1e-4


def test_numbers_that_cannot_be_quantized_are_kept(torch):
    numbers = keys_and_values()
    numbers[1, 0, 2, 3, 4] = float("inf")
    numbers[0, 0, 0, 0, 0] = float("nan")
    data = bytes_of(numbers)
    again = np.zeros_like(data)
    codec().decode(joined(codec().encode(data)), again)
    assert np.array_equal(again, data)


def test_other_bytes_are_refused_and_nothing_is_written(torch):
    import tqcache

    packed = joined(codec().encode(bytes_of(keys_and_values())))
    room = np.zeros(2 * LAYERS * HEADS * TOKENS * DIM * 2, np.uint8)
    wrong = [packed[:10], packed[:-1], packed + b"x", b"TQL1" + packed[4:], b"none" + packed[4:]]
    for at in range(0, len(packed), 997):
        wrong.append(packed[:at] + bytes([packed[at] ^ 4]) + packed[at + 1:])
    for data in wrong:
        with pytest.raises(tqcache.Error):
            codec().decode(data, room)
        assert not room.any()


def test_modes_that_have_to_be_fitted_are_encoded_blocks(torch):
    """The form TQP1, which pages of mode mse had in earlier versions."""
    numbers = keys_and_values()
    affine = codec(keys="affine:4:32")
    packed = joined(affine.encode(bytes_of(numbers)))
    assert packed[:4] == b"TQP1" and affine.identity()[0] == "quantized pages 1"
    again = np.zeros(numbers.numel() * 2, np.uint8)
    affine.decode(packed, again)
    back = torch.from_numpy(again).view(torch.float16).view(numbers.shape)
    assert 1e-6 < relative_error(numbers, back) < 0.02
    assert codec().identity()[0] == "quantized pages 2"


def test_a_device_that_is_not_there_is_refused_by_name(torch):
    for device in ("cuda", "mps"):
        if device == "cuda" and torch.cuda.is_available():
            continue
        with pytest.raises(ValueError, match=f'device "{device}"'):
            codec(device=device)


def test_what_cannot_be_quantized_is_refused(torch):
    from tqcache._pages import Layout, PageCodec

    with pytest.raises(ValueError):
        codec(keys="turbo99")
    with pytest.raises(ValueError):
        PageCodec(Layout((2, 1, 1, 4, 64), (0, 1, 2, 3, 4)), torch.uint8)
    with pytest.raises(ValueError):
        PageCodec(Layout((3, 1, 1, 4, 64), (0, 1, 2, 3, 4)), torch.float16)


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct", "page_head"])
def test_sglangs_pages(layout, torch):
    """A page that SGLang's pool hands out, read as the layout says."""
    engines.need("sglang")
    from tqcache.sglang import _page_codec

    pool = engines.Sglang._host_pool(torch.float16, engines.LAYERS, layout)
    pool.kv_buffer.copy_(torch.randn(pool.kv_buffer.shape))
    made = _page_codec(pool, {})
    page = pool.get_data_page(engines.TOKENS)
    numbers = made._view(bytes_of(page)).reshape(made._dims)
    for layer in range(engines.LAYERS):
        for which, buffer in enumerate((pool.k_buffer, pool.v_buffer)):
            rows = slice(engines.TOKENS, 2 * engines.TOKENS)
            theirs = {"layer_first": lambda b: b[layer, rows],
                      "page_first": lambda b: b[rows, layer],
                      "page_first_direct": lambda b: b[1, layer],
                      "page_head": lambda b: b[1, :, :, layer].transpose(0, 1)}[layout](buffer)
            assert torch.equal(numbers[which, layer], theirs.transpose(0, 1))


def test_sglangs_other_pools_are_refused(torch):
    engines.need("sglang")
    from tqcache.sglang import _page_codec

    pool = engines.Sglang._host_pool(torch.float16, engines.LAYERS, "layer_first")

    class Other(type(pool)):
        pass

    other = engines.Sglang._host_pool(torch.float16, engines.LAYERS, "layer_first")
    other.__class__ = Other
    with pytest.raises(ValueError, match="not known"):
        _page_codec(other, {})
    pool.layout = "page_unified"
    with pytest.raises(ValueError, match="not known"):
        _page_codec(pool, {})
    pool.layout, pool.dtype = "layer_first", torch.float8_e4m3fn
    with pytest.raises(ValueError, match="float8"):
        _page_codec(pool, {})


@pytest.mark.parametrize("tp_size", [1, 2])
@pytest.mark.parametrize("layout", ["LBNHC", "LBHNC"])
@pytest.mark.parametrize("pages", ["packed", "split"])
def test_vllms_canonical_pages(layout, pages, tp_size, torch):
    """What vLLM's own mapping makes of the workers' caches, read as the layout says."""
    engines.need("vllm")
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading import canonical_mapping as theirs
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    numbers = keys_and_values()[:, 0]  # [K or V, heads, tokens, components] of a layer
    heads = HEADS // tp_size
    page = np.zeros(numbers.numel() * 2, np.uint8)
    for rank in range(tp_size):
        mine = numbers[:, rank * heads:(rank + 1) * heads]
        spec = FullAttentionSpec(block_size=TOKENS, num_kv_heads=heads, head_size=DIM,
                                 dtype=torch.float16)
        if pages == "packed":  # logical [blocks, heads, tokens, 2 * components]
            logical = torch.cat([mine[0], mine[1]], dim=-1)[None]
            if layout == "LBNHC":
                cache = logical.transpose(1, 2).contiguous().transpose(1, 2)
            else:
                cache = logical.contiguous()
            local = bytes_of(cache.transpose(1, 2) if layout == "LBNHC" else cache)
        else:  # [blocks, K and V, tokens, heads, components]
            logical = mine.transpose(1, 2)[None]
            if layout == "LBNHC":
                cache = logical.contiguous()
                local = bytes_of(cache)
            else:
                cache = logical.transpose(2, 3).contiguous().transpose(2, 3)
                local = bytes_of(cache.transpose(2, 3))
        context = theirs._RankContext(tp_size=tp_size, dcp_size=1, pcp_size=1, interleave=1,
                                      total_kv_heads=HEADS, rank=rank)
        mapping = theirs._layer_mapping(spec, cache, 1, context)
        assert mapping is not None and mapping.parallelism_agnostic
        assert mapping.canonical_page_size_bytes == len(page)
        for run in mapping.runs:
            for i in range(run.num_fragments):
                source = run.local_offset + i * run.local_stride
                target = run.canonical_offset + i * run.canonical_stride
                page[target:target + run.fragment_size] = local[source:source + run.fragment_size]
    made = vllm_codec(layout, pages, tp_size)
    chunk = np.concatenate([page, np.zeros_like(page)])  # a second layer behind it
    assert torch.equal(made._view(chunk).reshape(made._dims)[:, 0], numbers)


def vllm_config(layout="LBHNC", tp_size=1, **others):
    from vllm.v1.kv_offload import config as c

    made = c.OffloadingConfig(
        groups=(c.OffloadingGroupConfig(TOKENS, ("layer0", "layer1"), 0),),
        worker_kv_bytes_per_block=2 * LAYERS * HEADS // tp_size * TOKENS * DIM * 2,
        enable_kv_cache_events=False, engine_id="engine", extra_config={},
        model=c.OffloadingModelConfig("tiny", "float16"),
        cache=c.OffloadingCacheConfig(tokens_per_hash=TOKENS, blocks_per_chunk=1),
        parallel=c.OffloadingParallelConfig(
            rank=0, world_size=tp_size, tp_size=tp_size, pp_size=1, pcp_size=1, dcp_size=1,
            data_parallel_index=0, data_parallel_size=1, data_parallel_rank_local=None,
            is_parallelism_agnostic=True),
        canonical_layout=True, kv_cache_layout=layout)
    return dataclasses.replace(made, **others)


def vllm_codec(layout="LBHNC", pages="packed", tp_size=1, quantize=(), **others):
    from tqcache.vllm import _page_codec

    options = {"head_dim": DIM, "kv_heads": HEADS, "pages": pages, **dict(quantize)}
    return _page_codec(vllm_config(layout, tp_size, **others), options, 1 << 30)


def test_vllms_other_layouts_are_refused(torch):
    engines.need("vllm")
    from vllm.v1.kv_offload import config as c

    vllm_codec()
    with pytest.raises(ValueError, match="canonical_layout"):
        vllm_codec(canonical_layout=False)
    with pytest.raises(ValueError, match="canonical_layout"):
        vllm_codec(parallel=dataclasses.replace(vllm_config().parallel,
                                                is_parallelism_agnostic=False))
    with pytest.raises(ValueError, match="one group"):
        vllm_codec(groups=(*vllm_config().groups, c.OffloadingGroupConfig(16, ("layer2",), 1)))
    with pytest.raises(ValueError, match="not known"):
        vllm_codec(layout="BLHNC")
    with pytest.raises(ValueError, match="float8"):
        vllm_codec(model=c.OffloadingModelConfig("tiny", "float8_e4m3fn"))
    for wrong in ({"head_dim": 128}, {"kv_heads": 8}):
        with pytest.raises(ValueError, match="bytes of a worker"):
            vllm_codec(quantize=wrong)
    with pytest.raises(ValueError, match="head_dim"):
        vllm_codec(quantize={"colour": 3})
