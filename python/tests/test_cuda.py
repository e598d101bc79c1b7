"""tqcache.cuda, and tqcache.transformers' packed cache on a GPU, with torch and transformers."""

import math
import os

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)
transformers = pytest.importorskip("transformers")

import tqcache  # noqa: E402
import tqcache.transformers as tq  # noqa: E402
from tqcache import cuda  # noqa: E402
from tqcache.packed_cache import register_attention  # noqa: E402

PROFILE = os.environ.get("TQCACHE_TEST_PROFILE")  # of a model with 2 kv heads of 128, with factors

register_attention()


def test_what_was_found_is_told():
    found = cuda.status()
    assert found["available"] and cuda.available() and found["reason"] is None
    assert found["device"] == torch.cuda.get_device_name()
    major, minor = torch.cuda.get_device_capability()
    assert found["capability"] == f"{major}.{minor}" and found["code"] <= found["capability"]
    assert found["driver"].count(".") == 1 and found["library"].endswith(".so")


def bytes_on_gpu(*shape):
    return torch.zeros(*shape, dtype=torch.uint8, device="cuda")


def status_word():
    return torch.full((1,), -1, dtype=torch.int32, device="cuda")


def relative_error(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


# --- Codec


@pytest.mark.parametrize("bits, limit", [(8, 0.01), (4, 0.11), (3, 0.2), (2, 0.37)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_codes_are_decoded_within_their_width(bits, limit, dtype):
    rows = torch.randn(3, 700, 128, device="cuda").to(dtype)
    codec = cuda.Codec(128, bits, "keys")
    pages, status = bytes_on_gpu(3, codec.page_bytes(3)), status_word()
    codec.encode(rows, pages, status=status)
    back = torch.zeros_like(rows)
    codec.decode(pages, back)
    cuda.check_status(status.item())
    assert relative_error(back, rows) < limit


def test_strides_and_page_ids_choose_rows_and_pages():
    rows = torch.randn(512, 2, 64, device="cuda", dtype=torch.float16)  # tokens first
    codec = cuda.Codec(64, 4, "values")
    straight, turned = (bytes_on_gpu(2, codec.page_bytes(2)) for _ in range(2))
    codec.encode(rows.transpose(0, 1), straight, status=status_word())
    ids = torch.tensor([1, 0], dtype=torch.int32, device="cuda")
    codec.encode(rows.transpose(0, 1).contiguous(), turned, page_ids=ids, status=status_word())
    assert torch.equal(straight, turned.flip(0)) and straight.any()


def test_values_that_are_not_finite_are_reported_with_their_token():
    rows = torch.randn(1, 300, 64, device="cuda")
    rows[0, 290, 3] = math.nan
    codec, status = cuda.Codec(64, 4, "keys"), status_word()
    codec.encode(rows, bytes_on_gpu(2, codec.page_bytes(1)), status=status)
    with pytest.raises(cuda.CudaError, match="token 290"):
        cuda.check_status(status.item())


def test_wrong_arguments_are_refused_by_name():
    codec = cuda.Codec(64, 4, "keys")
    rows, pages = torch.randn(1, 256, 64, device="cuda"), bytes_on_gpu(1, codec.page_bytes(1))
    for change, error, words in [
        ({"rows": rows.cpu()}, ValueError, "rows: not in the memory of a GPU"),
        ({"rows": rows.double()}, TypeError, "rows: neither f32"),
        ({"rows": rows[..., :32]}, ValueError, "rows: shape"),
        ({"rows": torch.randn(1, 257, 64, device="cuda")}, ValueError, "pages: "),
        ({"rows": [1, 2]}, TypeError, "rows: list has no __dlpack__"),
        ({"pages": pages.float()}, TypeError, "pages: another type"),
        ({"pages": pages[:, :-16].contiguous()}, cuda.CudaError, "pages that are too small"),
        ({"status": status_word().float()}, TypeError, "status"),
    ]:
        arguments = {"rows": rows, "pages": pages, "status": status_word()} | change
        with pytest.raises(error, match=words):
            codec.encode(**arguments)
    with pytest.raises(cuda.CudaError):
        cuda.Codec(64, 9, "keys")


class Foreign:
    """A tensor of another library: nothing but DLPack."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **arguments):
        return self.tensor.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_tensors_of_other_libraries_come_through_dlpack():
    rows = torch.randn(2, 300, 64, device="cuda", dtype=torch.bfloat16)
    codec = cuda.Codec(64, 4, "keys")
    pages, again = (bytes_on_gpu(2, codec.page_bytes(2)) for _ in range(2))
    codec.encode(rows, pages, status=status_word())
    codec.encode(Foreign(rows), Foreign(again), status=Foreign(status_word()))
    assert torch.equal(pages, again) and pages.any()
    with pytest.raises(ValueError, match="rows: not in the memory of a GPU"):
        codec.encode(Foreign(rows.cpu()), pages, status=status_word())


# --- Pages of engines


def page_codecs(tokens, dtype=torch.float16, dim=128, **options):
    """One for the CPU and one for the GPU, of pages whose layers come first."""
    from tqcache._pages import Layout, PageCodec

    layout = Layout((3, tokens, 4, 2, dim), (3, 0, 2, 1, 4))  # layers, tokens, heads, kv, dim
    return [PageCodec(layout, dtype, device=device, **options) for device in ("cpu", "cuda")]


def page_of(tokens, dtype=torch.float16, dim=128):
    noise = torch.Generator().manual_seed(5)
    page = torch.randn(3, tokens, 4, 2, dim, generator=noise)
    page[..., 3] *= 8
    return (page + 2 * torch.randn(3, 1, 4, 2, dim, generator=noise)).to(dtype)


def joined(parts):
    return b"".join(bytes(part) for part in parts)


@pytest.mark.parametrize("tokens, dim", [(256, 128), (64, 128), (16, 64), (7, 128), (300, 256),
                                         (256, 96)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_pages_of_the_gpu_are_those_of_the_cpu(tokens, dim, dtype):
    page = page_of(tokens, dtype, dim)
    by_cpu, by_gpu = page_codecs(tokens, dtype, dim)
    assert by_cpu.identity() == by_gpu.identity()
    for packs in (by_cpu, by_gpu):
        for source in (page, page.cuda()):
            packed = joined(packs.encode(source))
            assert packed[:4] == b"TQPB" and len(packed) <= packs.bound
            decoded = []
            for unpacks in (by_cpu, by_gpu):
                for room in (torch.zeros_like(page), torch.zeros_like(page, device="cuda")):
                    unpacks.decode(packed, room)
                    decoded.append(room.cpu())
            assert all(torch.equal(decoded[0], each) for each in decoded)
            assert relative_error(decoded[0], page) < 0.11


def test_pages_beyond_f16_are_kept_by_the_gpu_too():
    for wrong in (float("nan"), float("inf"), 1e6):
        page = page_of(64, torch.float32)
        page[1, 3, 2, 1, 5] = wrong
        by_cpu, by_gpu = page_codecs(64, torch.float32)
        packed = joined(by_gpu.encode(page.cuda()))
        assert packed == joined(by_cpu.encode(page)) and packed[:4] == b"TQL1"
        again = torch.zeros_like(page)
        by_gpu.decode(packed, again)
        assert torch.equal(page.view(torch.int32), again.view(torch.int32))


def test_damaged_pages_are_not_written_by_the_gpu():
    _, by_gpu = page_codecs(64)
    packed = joined(by_gpu.encode(page_of(64)))
    for at in (0, 5, 30, len(packed) // 2, len(packed) - 1):
        room = torch.zeros_like(page_of(64), device="cuda")
        with pytest.raises(tqcache.Error):
            by_gpu.decode(packed[:at] + bytes([packed[at] ^ 1]) + packed[at + 1:], room)
        assert not room.any()


def test_threads_have_streams_of_their_own():
    from concurrent.futures import ThreadPoolExecutor

    by_cpu, by_gpu = page_codecs(256)
    pages = [page_of(256) * (i + 1) / 8 for i in range(16)]

    def there_and_back(page):
        room = torch.zeros_like(page)
        by_gpu.decode(joined(by_gpu.encode(page)), room)
        return room

    with ThreadPoolExecutor(8) as pool:
        for page, again in zip(pages, pool.map(there_and_back, pages)):
            assert relative_error(again, page) < 0.11


def test_what_has_no_kernel_is_refused_for_a_gpu():
    with pytest.raises(ValueError, match='needs "cpu"'):
        page_codecs(64, keys="affine:4:32")


# --- One layer


def kv(n_tokens, *, batch=1, heads=2, head_dim=128, dtype=torch.bfloat16, seed=0):
    noise = torch.Generator().manual_seed(seed)
    shape = (batch, heads, n_tokens, head_dim)
    return [(torch.randn(shape, generator=noise) + torch.randn(shape[:2] + (1, head_dim),
                                                               generator=noise)).to(dtype)
            for _ in range(2)]


def empty_layer(*, rope=True, head_dim=128, **more):
    layer = tq.TqcacheLayer(rope=tqcache.Rope(n_dims=head_dim, base=10000.0) if rope else None, **more)
    return layer


def make_layer(n_tokens, *, batch=2, heads=2, head_dim=128, dtype=torch.float16, **more):
    layer = empty_layer(head_dim=head_dim, **more)
    keys, values = (x.cuda() for x in kv(n_tokens, batch=batch, heads=heads, head_dim=head_dim,
                                         dtype=dtype, seed=n_tokens))
    layer.update(keys, values)
    assert layer.is_on_gpu
    return layer, keys, values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("more", [
    {}, {"rope": False}, {"bits": 8}, {"bits": 3}, {"bits": 2}, {"bits": 5}, {"head_dim": 64},
    {"head_dim": 256, "heads": 1}, {"head_dim": 96}, {"keys": "mse:8", "values": "mse:4"},
    {"keys": "mse:4,sink=0", "values": "mse:4,sink=0"}, {"keys": "mse:4,rounds=2,seed=5"},
    {"keys": "mse:4,center=none", "values": "mse:4,scale=norm"},
    *([{"keys": f"mse:4,profile={PROFILE}"}] if PROFILE else [])])
def test_blocks_are_those_of_the_cpu(dtype, more):
    more = dict(more)
    shape = {name: more.pop(name) for name in ("head_dim", "heads") if name in more}
    keys, values = kv(900, batch=2, dtype=dtype, **shape)
    layers = [empty_layer(head_dim=shape.get("head_dim", 128), **more) for _ in range(2)]
    for layer, device in zip(layers, ("cuda", "cpu")):
        layer.update(keys[:, :, :700].to(device), values[:, :, :700].to(device))
        layer.update(keys[:, :, 700:].to(device), values[:, :, 700:].to(device))
    gpu, cpu = layers
    assert gpu.is_on_gpu and not cpu.is_on_gpu and gpu.n_packed == cpu.n_packed == 768
    for row in range(2):
        assert gpu.blocks.packed(row) == cpu.blocks.packed(row)
    for ours, theirs, exact in zip(gpu.dense(), cpu.dense(), (keys, values)):
        assert torch.equal(ours.cpu(), theirs)
        assert relative_error(theirs, exact) < 0.37


def test_codecs_without_kernels_are_computed_by_the_cpu():
    for keys, head_dim in [("affine:4", 128), ("mse:4", 36), ("mixed:3", 128)]:
        layer = empty_layer(keys=keys, head_dim=head_dim)
        k, v = (x.cuda() for x in kv(600, head_dim=head_dim))
        layer.update(k, v)
        assert not layer.is_on_gpu and layer.n_packed == 512
        assert relative_error(layer.dense()[0], k) < 0.3 and layer.dense()[0].is_cuda


@pytest.mark.parametrize("n_tokens", [1, 4, 255, 256, 287, 288, 289, 700, 1025])
def test_recent_and_sink_tokens_are_dense(n_tokens):
    layer, keys, values = make_layer(n_tokens)
    assert layer.get_seq_length() == n_tokens
    assert 1 <= layer.n_tail < 288 and layer.n_packed % 256 == 0
    for dense, exact in zip(layer.dense(), (keys, values)):
        assert torch.equal(dense[:, :, layer.n_packed:], exact[:, :, layer.n_packed:])
        assert torch.equal(dense[:, :, :4], exact[:, :, :4])
        assert relative_error(dense, exact) < 0.11


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("more", [
    {}, {"rope": False}, {"bits": 8}, {"bits": 3}, {"bits": 2}, {"keys": "mse:8", "values": "mse:4"},
    {"keys": "mse:4,sink=0", "values": "mse:4,sink=0"}, {"head_dim": 64}, {"head_dim": 96},
    {"head_dim": 256, "heads": 1}, *([{"keys": f"mse:4,profile={PROFILE}"}] if PROFILE else [])])
def test_attention_on_codes_is_attention_on_what_they_decode_to(dtype, more):
    layer, _, _ = make_layer(900, dtype=dtype, **more)
    heads, dim = layer._tail[0].shape[1], layer._tail[0].shape[3]
    queries = torch.randn(2, 4 * heads, 1, dim, device="cuda").to(dtype)
    # f32 decodes without rounding: what the kernel is to be compared with.
    keys, values = (x.double().repeat_interleave(4, dim=1) for x in layer.dense())
    weights = (queries.double() @ keys.transpose(2, 3) / math.sqrt(dim)).softmax(-1)
    assert relative_error(layer.attend(queries), weights @ values) < 0.01


def test_tokens_one_by_one_are_those_of_a_prompt():
    _, keys, values = make_layer(700)
    whole, steps = empty_layer(), empty_layer()
    whole.update(keys[:, :, :690], values[:, :, :690])
    steps.update(keys[:, :, :300], values[:, :, :300])
    for t in range(300, 690):
        steps.update(keys[:, :, t:t + 1], values[:, :, t:t + 1])
    assert (steps.n_packed, steps.n_tail) == (512, 178) == (whole.n_packed, whole.n_tail)
    assert steps._n_tail.tolist() == [178, 178]
    for a, b in zip(steps.dense(), whole.dense()):
        assert torch.equal(a, b)


def test_prompts_in_parts_return_all_tokens():
    _, keys, values = make_layer(1000)
    layer = empty_layer(bits=8)
    layer.update(keys[:, :, :450], values[:, :, :450])
    got = layer.update(keys[:, :, 450:], values[:, :, 450:])
    assert torch.equal(got[0][:, :, 450:], keys[:, :, 450:])
    assert relative_error(got[0], keys) < 0.02 and relative_error(got[1], values) < 0.02
    assert layer.get_seq_length() == 1000


def test_rows_move_with_their_tokens():
    layer, keys, _ = make_layer(1400, batch=3, bits=8)
    before = layer.dense()
    layer.reorder_cache(torch.tensor([2, 2, 0]))
    for dense, old in zip(layer.dense(), before):
        assert torch.equal(dense, old[[2, 2, 0]])
    layer.batch_repeat_interleave(2)
    layer.batch_select_indices(torch.tensor([0, 5]))
    for dense, old in zip(layer.dense(), before):
        assert torch.equal(dense, old[[2, 0]])
    more = [x.cuda() for x in kv(400, batch=2, dtype=torch.float16, seed=3)]
    layer.update(*more)
    assert relative_error(layer.dense()[0], torch.cat([keys[[2, 0]], more[0]], 2)) < 0.02
    queries = torch.randn(2, 8, 1, 128, device="cuda").half()
    assert relative_error(layer.attend(queries), reference(layer, queries)) < 0.01


def reference(layer, queries):
    keys, values = (x.double().repeat_interleave(4, dim=1) for x in layer.dense())
    return (queries.double() @ keys.transpose(2, 3) / math.sqrt(128)).softmax(-1) @ values


@pytest.mark.parametrize("n_removed", [1, 100, 300, 520, 1100, 1399, 1400])
def test_a_cut_keeps_what_is_before_it(n_removed):
    layer, keys, values = make_layer(1400, bits=8)
    before = layer.dense()
    layer.crop(-n_removed)
    n = 1400 - n_removed
    assert layer.get_seq_length() == n and layer.n_packed <= n
    for dense, old in zip(layer.dense(), before):
        assert torch.equal(dense, old[:, :, :n])
    layer.update(keys[:, :, n:], values[:, :, n:])
    assert relative_error(layer.dense()[0], keys) < 0.02
    queries = torch.randn(2, 8, 1, 128, device="cuda").half()
    assert relative_error(layer.attend(queries), reference(layer, queries)) < 0.01


def test_wrong_uses_of_a_layer_are_refused():
    layer, keys, values = make_layer(300)
    with pytest.raises(tqcache.UnsupportedError, match="1 rows, where the cache has 2"):
        layer.update(keys[:1], values[:1])
    with pytest.raises(ValueError, match="negative"):
        layer.crop(10)
    layer.reset()
    assert layer.get_seq_length() == 0
    nan = keys.clone()
    nan[0, 0, 5, 3] = math.nan
    layer.update(nan, values)
    with pytest.raises(cuda.CudaError, match="token 5"):
        layer.dense()


def test_the_same_file_from_gpu_cpu_and_a_dense_cache(tmp_path):
    layers = [kv(700, seed=1), kv(700, seed=2)]
    config = transformers.AutoConfig.for_model(
        "llama", hidden_size=256, num_attention_heads=2, num_key_value_heads=2, head_dim=128,
        num_hidden_layers=2)
    for name, cache, device in [("gpu", tq.TqcacheCache(config=config), "cuda"),
                                ("cpu", tq.TqcacheCache(config=config), "cpu"),
                                ("dense", transformers.DynamicCache(config=config), "cpu")]:
        for i, pair in enumerate(layers):
            cache.update(*(x.to(device) for x in pair), i)
        tq.save(cache, tmp_path / name, input_ids=torch.arange(700),
                identity=tqcache.Identity("llama", rope=tq.TqcacheCache(config=config).rope))
    assert (tmp_path / "gpu").read_bytes() == (tmp_path / "cpu").read_bytes()
    assert (tmp_path / "gpu").read_bytes() == (tmp_path / "dense").read_bytes()


# --- Models


def make_model(attention, family="llama", **more):
    torch.manual_seed(7)
    sizes = dict(vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=3,
                 num_attention_heads=8, num_key_value_heads=2, head_dim=64,
                 max_position_embeddings=16384, initializer_range=0.08) | more
    config = transformers.AutoConfig.for_model(family, **sizes)
    config.pad_token_id = 0
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.to("cuda", torch.float16).eval()


@torch.no_grad()
def logits_of(model, ids, n_prompt, cache, mask=None):
    """Logits of every step, the tokens being given."""
    out = []
    step = model(ids[:, :n_prompt], past_key_values=cache,
                 attention_mask=None if mask is None else mask[:, :n_prompt])
    for t in range(n_prompt, ids.shape[1]):
        step = model(ids[:, t:t + 1], past_key_values=cache,
                     attention_mask=None if mask is None else mask[:, :t + 1])
        out.append(step.logits[:, -1].float())
    return torch.stack(out)


def kl(p, q):
    p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).mean().item()


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen2"])
def test_steps_on_codes_are_steps_on_decoded_keys(family):
    """The same cache, read packed and read densely; then both against a cache without loss."""
    model = make_model("sdpa", family)
    ids = torch.randint(1, 512, (2, 640), device="cuda")
    packed = logits_of(model, ids, 600, tq.TqcacheCache(bits=4, config=model.config))
    plain = make_model("eager", family)
    dense = logits_of(plain, ids, 600, tq.TqcacheCache(bits=4, config=plain.config))
    exact = logits_of(plain, ids, 600, transformers.DynamicCache(config=plain.config))
    assert kl(exact, dense) > 1e-5, "nothing was packed"
    assert kl(dense, packed) < 0.02 * kl(exact, dense)
    assert kl(exact, packed) < 1.1 * kl(exact, dense)
    finer = logits_of(model, ids, 600, tq.TqcacheCache(bits=8, config=model.config))
    assert kl(exact, finer) < 0.1 * kl(exact, packed)


@torch.no_grad()
def logits_in_parts(model, ids, sizes, cache, mask=None):
    """Logits of a prompt that comes in parts."""
    out, at = [], 0
    for n in sizes:
        out.append(model(ids[:, at:at + n], past_key_values=cache,
                         attention_mask=None if mask is None else mask[:, :at + n]).logits.float())
        at += n
    assert at == ids.shape[1]
    return torch.cat(out, dim=1)


@pytest.mark.parametrize("head_dim, batch", [(64, 2), (96, 1), (128, 1), (256, 1)])
def test_prompts_in_parts_attend_to_some_blocks_after_the_other(head_dim, batch, monkeypatch):
    from tqcache import packed_cache
    n_calls, attend = [], packed_cache.TqcacheLayer.attend_prompt
    monkeypatch.setattr(packed_cache.TqcacheLayer, "attend_prompt",
                        lambda *args: n_calls.append(1) or attend(*args))
    monkeypatch.setattr(packed_cache, "PIECE", 2)
    sizes = [700, 5, 800, 295]
    ids = torch.randint(1, 512, (batch, sum(sizes)), device="cuda")
    plain, model = (make_model(attention, head_dim=head_dim) for attention in ("eager", "sdpa"))
    dense = logits_in_parts(plain, ids, sizes, tq.TqcacheCache(bits=4, config=plain.config))
    assert not n_calls
    cache = tq.TqcacheCache(bits=4, config=model.config)
    packed = logits_in_parts(model, ids, sizes, cache)
    assert len(n_calls) == 3 * 3 and cache.layers[0].n_packed == 1536
    exact = logits_in_parts(plain, ids, sizes, transformers.DynamicCache(config=plain.config))
    assert kl(exact[:, 700:], dense[:, 700:]) > 1e-5, "nothing was packed"
    assert kl(dense[:, 700:], packed[:, 700:]) < 0.02 * kl(exact[:, 700:], dense[:, 700:])


def test_prompts_in_parts_with_padding_are_masked():
    model = make_model("sdpa")
    sizes = [600, 400]
    ids = torch.randint(1, 512, (2, 1000), device="cuda")
    mask = torch.ones_like(ids)
    mask[1, :90] = 0
    exact = logits_in_parts(model, ids, sizes, transformers.DynamicCache(config=model.config), mask)
    packed, unmasked = (
        logits_in_parts(model, ids, sizes, tq.TqcacheCache(bits=8, config=model.config), each)
        for each in (mask, None))
    assert kl(exact[:, 600:], packed[:, 600:]) < 0.1 * kl(exact[:, 600:], unmasked[:, 600:])


def test_padding_on_the_left_is_masked():
    model = make_model("sdpa")
    ids = torch.randint(1, 512, (2, 620), device="cuda")
    mask = torch.ones_like(ids)
    mask[1, :90] = 0
    ids[1, :90] = 0
    exact = logits_of(model, ids, 600, transformers.DynamicCache(config=model.config), mask)
    packed = logits_of(model, ids, 600, tq.TqcacheCache(bits=8, config=model.config), mask)
    unmasked = logits_of(model, ids, 600, tq.TqcacheCache(bits=8, config=model.config))
    assert kl(exact, packed) < 0.1 * kl(exact, unmasked)


def test_windows_stay_as_they_are_and_generation_goes_on():
    model = make_model("sdpa", "qwen2", use_sliding_window=True, sliding_window=64,
                       max_window_layers=1, num_hidden_layers=2)
    cache = tq.TqcacheCache(bits=8, config=model.config)
    kinds = [isinstance(layer, tq.TqcacheLayer) for layer in cache.layers]
    assert kinds == [True, False]
    ids = torch.randint(1, 512, (1, 600), device="cuda")
    exact = logits_of(model, ids, 500, transformers.DynamicCache(config=model.config))
    assert kl(exact, logits_of(model, ids, 500, cache)) < 1e-3


def test_generate_takes_the_cache_with_beams_too():
    model = make_model("sdpa")
    ids = torch.randint(1, 512, (1, 530), device="cuda")
    for beams in (1, 3):
        cache = tq.TqcacheCache(bits=8, config=model.config)
        out = model.generate(ids, past_key_values=cache, max_new_tokens=20, min_new_tokens=20,
                             num_beams=beams, do_sample=False)
        assert out.shape[1] == 550 and cache.get_seq_length() == 549


def test_a_cache_of_8192_tokens_takes_less_than_30_percent():
    model = make_model("sdpa", head_dim=128, num_hidden_layers=1)
    cache = tq.TqcacheCache(bits=4, config=model.config)
    ids = torch.randint(1, 512, (1, 8192), device="cuda")
    model.generate(ids, past_key_values=cache, max_new_tokens=256, min_new_tokens=256)
    assert cache.nbytes < 0.30 * 2 * 2 * 128 * 2 * cache.get_seq_length()


def test_without_a_config_too():
    model = make_model("sdpa")
    ids = torch.randint(1, 512, (1, 640), device="cuda")
    cache = tq.TqcacheCache(bits=8)
    exact = logits_of(model, ids, 600, transformers.DynamicCache(config=model.config))
    assert kl(exact, logits_of(model, ids, 600, cache)) < 1e-3
    assert all(layer.is_on_gpu and layer._is_seen for layer in cache.layers)


def test_other_attention_behind_a_cache_is_noticed():
    model = make_model("sdpa")
    ids = torch.randint(1, 512, (1, 300), device="cuda")
    right = logits_of(model, ids, 290, tq.TqcacheCache(bits=8, config=model.config))
    caches = [tq.TqcacheCache(bits=8, config=config) for config in (model.config, None)]
    for cache in caches:
        before = logits_of(model, ids[:, :295], 290, cache)
    model.set_attn_implementation("eager")
    # The config tells what the model does now; without it keys of one token meet the wrong attention.
    after = [model(ids[:, t:t + 1], past_key_values=caches[0]).logits[:, -1].float()
             for t in range(295, 300)]
    assert kl(right, torch.cat([before, torch.stack(after)])) < 1e-3
    with pytest.raises(RuntimeError):
        for t in range(295, 300):
            model(ids[:, t:t + 1], past_key_values=caches[1])


@pytest.mark.parametrize("batch", [1, 3])
def test_steps_by_graphs_are_the_same_steps(batch):
    model = make_model("sdpa")
    ids = torch.randint(1, 512, (batch, 1200), device="cuda")
    usual = logits_of(model, ids, 600, tq.TqcacheCache(bits=4, config=model.config))
    cache = tq.TqcacheCache(bits=4, config=model.config)
    with tq.step_graphs(model) as graphs:
        captured = logits_of(model, ids, 600, cache)
    assert graphs.n_replayed > 580
    assert cache.get_seq_length() == 1200
    assert cache.layers[0]._n_tail.tolist() == [cache.layers[0].n_tail] * batch
    assert relative_error(captured, usual) < 1e-3
    assert "forward" not in vars(model)


def test_generation_by_graphs_gives_the_same_tokens():
    model = make_model("sdpa")
    ids = torch.randint(1, 512, (1, 530), device="cuda")
    options = dict(max_new_tokens=600, min_new_tokens=600, do_sample=False)
    right = model.generate(ids, past_key_values=tq.TqcacheCache(bits=8, config=model.config),
                           **options)
    with tq.step_graphs(model) as graphs:
        tokens = model.generate(ids, past_key_values=tq.TqcacheCache(bits=8, config=model.config),
                                **options)
        # Calls that are no steps of a packed cache are as before.
        plain = model.generate(ids, max_new_tokens=4, do_sample=False)
    assert graphs.n_replayed > 580 and plain.shape == (1, 534)
    assert torch.equal(tokens, right)
