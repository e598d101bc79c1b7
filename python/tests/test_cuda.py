"""tqcache.cuda and tqcache.cuda_cache on a GPU, with torch and transformers."""

import math

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)
transformers = pytest.importorskip("transformers")

from tqcache import cuda  # noqa: E402
from tqcache.cuda_cache import CudaCache, CudaLayer, register_attention  # noqa: E402

register_attention()


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


# --- One layer


def make_layer(n_tokens, *, batch=2, heads=2, head_dim=128, dtype=torch.float16, center=True,
               **more):
    torch.manual_seed(n_tokens)
    inv_freq = 10000.0 ** -(torch.arange(0, head_dim, 2).double() / head_dim) if center else None
    layer = CudaLayer(inv_freq=inv_freq, is_packed_read=lambda: True, **more)
    shape = (batch, heads, n_tokens, head_dim)
    keys, values = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
    layer.update(keys, values)
    return layer, keys, values


@pytest.mark.parametrize("n_tokens", [1, 4, 255, 256, 257, 700, 1025])
def test_recent_and_sink_tokens_are_dense(n_tokens):
    layer, keys, values = make_layer(n_tokens)
    assert layer.get_seq_length() == n_tokens
    assert 1 <= layer.n_tail <= 256 and layer.n_packed % 256 == 0
    for dense, exact in zip(layer.dense(), (keys, values)):
        assert torch.equal(dense[:, :, layer.n_packed:], exact[:, :, layer.n_packed:])
        assert torch.equal(dense[:, :, :4], exact[:, :, :4])
        assert relative_error(dense, exact) < 0.11


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("more", [{}, {"center": False}, {"bits": 8}, {"bits": 3}, {"bits": 2},
                                  {"bits": 8, "value_bits": 4}, {"n_sinks": 0},
                                  {"head_dim": 64}, {"head_dim": 256, "heads": 1}])
def test_attention_on_codes_is_attention_on_what_they_decode_to(dtype, more):
    layer, _, _ = make_layer(900, dtype=dtype, **more)
    heads = layer.n_kv_heads
    queries = torch.randn(2, 4 * heads, 1, layer.head_dim, device="cuda").to(dtype)
    # f32 decodes without rounding: what the kernel is to be compared with.
    keys, values = (x.double() for x in layer.dense())
    keys, values = (x.repeat_interleave(4, dim=1) for x in (keys, values))
    weights = (queries.double() @ keys.transpose(2, 3) / math.sqrt(layer.head_dim)).softmax(-1)
    assert relative_error(layer.attend(queries), weights @ values) < 0.01


def test_tokens_one_by_one_are_those_of_a_prompt():
    _, keys, values = make_layer(600)
    steps = CudaLayer(is_packed_read=lambda: True)
    steps.update(keys[:, :, :300], values[:, :, :300])
    for t in range(300, 600):
        steps.update(keys[:, :, t:t + 1], values[:, :, t:t + 1])
    assert (steps.n_packed, steps.n_tail) == (512, 88)
    for dense, exact in zip(steps.dense(), (keys, values)):
        assert relative_error(dense, exact) < 0.11
        assert torch.equal(dense[:, :, 512:], exact[:, :, 512:])


def test_prompts_in_parts_return_all_tokens():
    _, keys, values = make_layer(1000)
    layer = CudaLayer(bits=8, is_packed_read=lambda: True)
    layer.update(keys[:, :, :450], values[:, :, :450])
    got = layer.update(keys[:, :, 450:], values[:, :, 450:])
    assert torch.equal(got[0][:, :, 450:], keys[:, :, 450:])
    assert relative_error(got[0], keys) < 0.02 and relative_error(got[1], values) < 0.02
    assert layer.get_seq_length() == 1000


def test_beams_move_with_their_tokens():
    layer, keys, _ = make_layer(600, batch=3, bits=8)
    before = layer.dense()
    layer.reorder_cache(torch.tensor([2, 2, 0]))
    for dense, old in zip(layer.dense(), before):
        assert torch.equal(dense, old[[2, 2, 0]])
    assert relative_error(layer.dense()[0], keys[[2, 2, 0]]) < 0.02
    empty = CudaLayer()
    empty.reorder_cache(torch.tensor([0]))
    empty.update(keys[:, :, :5], keys[:, :, :5])
    empty.reorder_cache(torch.tensor([1, 0, 2]))
    assert torch.equal(empty.dense()[0], keys[[1, 0, 2], :, :5])


def test_what_packed_tokens_cannot_do_is_refused():
    layer, keys, values = make_layer(300)
    with pytest.raises(NotImplementedError, match="to_dynamic_cache"):
        layer.crop(10)
    with pytest.raises(ValueError, match="number of sequences"):
        layer.update(keys[:1], values[:1])
    with pytest.raises(ValueError, match="not on a GPU"):
        CudaLayer().update(keys.cpu(), values.cpu())
    layer.reset()
    assert layer.get_seq_length() == 0


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
    model = make_model("tqcache", family)
    ids = torch.randint(1, 512, (2, 640), device="cuda")
    packed = logits_of(model, ids, 600, CudaCache(model.config, bits=4))
    plain = make_model("sdpa", family)
    dense = logits_of(plain, ids, 600, CudaCache(plain.config, bits=4))
    exact = logits_of(plain, ids, 600, transformers.DynamicCache(config=plain.config))
    assert kl(exact, dense) > 1e-5, "nothing was packed"
    assert kl(dense, packed) < 0.02 * kl(exact, dense)
    assert kl(exact, packed) < 1.1 * kl(exact, dense)
    finer = logits_of(model, ids, 600, CudaCache(model.config, bits=8))
    assert kl(exact, finer) < 0.1 * kl(exact, packed)


def test_padding_on_the_left_is_masked():
    model = make_model("tqcache")
    ids = torch.randint(1, 512, (2, 620), device="cuda")
    mask = torch.ones_like(ids)
    mask[1, :90] = 0
    ids[1, :90] = 0
    exact = logits_of(model, ids, 600, transformers.DynamicCache(config=model.config), mask)
    packed = logits_of(model, ids, 600, CudaCache(model.config, bits=8), mask)
    unmasked = logits_of(model, ids, 600, CudaCache(model.config, bits=8))
    assert kl(exact, packed) < 0.1 * kl(exact, unmasked)


def test_windows_stay_as_they_are_and_generation_goes_on():
    model = make_model("tqcache", "qwen2", use_sliding_window=True, sliding_window=64,
                       max_window_layers=1, num_hidden_layers=2)
    cache = CudaCache(model.config, bits=8)
    kinds = [isinstance(layer, CudaLayer) for layer in cache.layers]
    assert kinds == [True, False]
    ids = torch.randint(1, 512, (1, 600), device="cuda")
    exact = logits_of(model, ids, 500, transformers.DynamicCache(config=model.config))
    assert kl(exact, logits_of(model, ids, 500, cache)) < 1e-3


def test_generate_takes_the_cache_with_beams_too():
    model = make_model("tqcache")
    ids = torch.randint(1, 512, (1, 530), device="cuda")
    for beams in (1, 3):
        cache = CudaCache(model.config, bits=8)
        out = model.generate(ids, past_key_values=cache, max_new_tokens=20, min_new_tokens=20,
                             num_beams=beams, do_sample=False)
        assert out.shape[1] == 550 and cache.get_seq_length() == 549
    plain = cache.to_dynamic_cache()
    assert plain.get_seq_length() == 549 and plain.layers[0].keys.shape[2] == 549


def test_a_cache_of_8192_tokens_takes_less_than_30_percent():
    model = make_model("tqcache", head_dim=128, num_hidden_layers=1)
    cache = CudaCache(model.config, bits=4)
    ids = torch.randint(1, 512, (1, 8192), device="cuda")
    model.generate(ids, past_key_values=cache, max_new_tokens=256, min_new_tokens=256)
    assert cache.nbytes < 0.30 * 2 * 2 * 128 * 2 * cache.get_seq_length()


def test_a_model_that_changes_keys_behind_the_cache_is_refused():
    model = make_model("tqcache")
    cache = CudaCache(model.config, bits=8)
    ids = torch.randint(1, 512, (1, 300), device="cuda")
    logits_of(model, ids, 290, cache)
    layer = cache.layers[0]
    key, _ = layer.update(*(torch.zeros(1, 2, 1, 64, device="cuda", dtype=torch.float16),) * 2)
    with pytest.raises(RuntimeError, match="another attn_implementation"):
        from tqcache.cuda_cache import attention_forward

        attention_forward(model, torch.zeros(1, 8, 1, 64, device="cuda"), key * 1, key * 1, None)
