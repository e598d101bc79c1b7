"""tqcache.transformers with transformers itself, and the demo model of this project."""

import copy
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop
torch = pytest.importorskip("torch", reason="torch is missing")
transformers = pytest.importorskip("transformers", reason="transformers is missing")
from transformers import cache_utils  # noqa: E402

import tqcache  # noqa: E402
import tqcache.transformers as tq  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "models/demo/hf"


@pytest.fixture(scope="module")
def model():
    return transformers.AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.bfloat16).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(DEMO)


def alice(tokenizer, n):
    text = (ROOT / "models/demo/alice-excerpt.txt").read_text()
    ids = tokenizer(text, return_tensors="pt").input_ids
    while ids.shape[1] < n:
        ids = torch.cat([ids, ids], dim=1)
    return ids[:, :n]


@torch.no_grad()
def prefill(model, ids, cache=None):
    return model(ids, past_key_values=cache, use_cache=True).past_key_values


def generate(model, ids, cache, n):
    return model.generate(ids, past_key_values=cache, max_new_tokens=n, do_sample=False,
                          pad_token_id=0)[0, ids.shape[1]:]


@torch.no_grad()
def divergence(model, ids, cache, n=16):
    """Mean KL divergence of the next token's distribution from that of a DynamicCache. Tokens are
    not compared: the best two are within rounding of each other now and then."""
    plain = cache_utils.DynamicCache()
    token, total = ids, 0.0
    for _ in range(n):
        right, ours = (model(token, past_key_values=each).logits[:, -1].float().log_softmax(-1)
                       for each in (plain, cache))
        total += (right.exp() * (right - ours)).sum(-1).mean().item()
        token = right.argmax(-1, keepdim=True)
    return total / n


def kv(n, dtype=torch.bfloat16, heads=2, dim=64, batch=1, seed=0):
    noise = torch.Generator().manual_seed(seed)
    return [torch.randn((batch, heads, n, dim), generator=noise).to(dtype) for _ in range(2)]


def same(cache, again):
    assert [type(layer).__name__ for layer in cache.layers] == \
        [type(layer).__name__ for layer in again.layers]
    for a, b in zip(cache.layers, again.layers):
        for name in ("keys", "values"):
            if getattr(a, name, None) is not None:
                assert getattr(a, name).dtype == getattr(b, name).dtype
                assert torch.equal(getattr(a, name), getattr(b, name))
        for name in ("conv_states", "recurrent_states"):
            for i, state in (getattr(a, name, None) or {}).items():
                assert (state is None and getattr(b, name)[i] is None) or \
                    torch.equal(state, getattr(b, name)[i])
        for name in ("cumulative_length", "sliding_window"):
            assert getattr(a, name, None) == getattr(b, name, None)


# --- Files

@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", [1, 256, 300])
def test_full_attention_comes_back_bit_by_bit(tmp_path, dtype, n):
    cache = cache_utils.DynamicCache()
    for layer in range(2):
        cache.update(*kv(n, dtype, seed=layer), layer)
    tq.save(cache, tmp_path / "a.tqkv", input_ids=torch.arange(n)[None], config=None)
    same(cache, tq.load(tmp_path / "a.tqkv"))
    assert tq.tokens(tmp_path / "a.tqkv").tolist() == [list(range(n))]


@pytest.mark.parametrize("n", [5, 20])
def test_sliding_windows_and_linear_attention(tmp_path, n):
    cache = cache_utils.DynamicCache()
    full = cache_utils.DynamicLayer()
    sliding = cache_utils.DynamicSlidingWindowLayer(sliding_window=8)
    linear = cache_utils.LinearAttentionLayer()
    cache.layers = [linear, sliding, full, cache_utils.DummyLayer()]
    for layer in (sliding, full):
        layer.update(*kv(n))
    linear.update_conv_state(torch.randn(1, 48, 4).to(torch.bfloat16))
    linear.update_recurrent_state(torch.randn(1, 4, 8, 16))
    tq.save(cache, tmp_path / "a.tqkv", config=None)
    again = tq.load(tmp_path / "a.tqkv")
    same(cache, again)
    for layer, other in ((sliding, again.layers[1]), (full, again.layers[2])):
        new = kv(3, seed=9)
        for a, b in zip(layer.update(*new), other.update(*new)):
            assert torch.equal(a, b)


@pytest.mark.parametrize("window", [None, 8])
def test_hybrid_layers(tmp_path, window):
    """A layer of Falcon-H1 is two of a .tqkv file, and comes back as one."""
    kind = "FullAttentionLayer" if window is None else "SlidingWindowAttentionLayer"
    make = getattr(cache_utils, f"LinearAttentionAnd{kind}", None)
    if make is None:
        pytest.skip(f"this transformers has no LinearAttentionAnd{kind}")
    cache = cache_utils.DynamicCache()
    cache.layers = [make(**({} if window is None else {"sliding_window": window}))
                    for _ in range(2)]
    for i, layer in enumerate(cache.layers):
        layer.update_conv_state(torch.randn(1, 48, 4).to(torch.bfloat16))
        layer.update_recurrent_state(torch.randn(1, 4, 8, 16))
        layer.update(*kv(20, seed=i))
    tq.save(cache, tmp_path / "a.tqkv", input_ids=torch.arange(20), config=None)
    assert os.listdir(tmp_path) == ["a.tqkv"]
    again = tq.load(tmp_path / "a.tqkv")
    same(cache, again)
    assert tq.tokens(tmp_path / "a.tqkv").tolist() == [list(range(20))]
    with pytest.raises(tqcache.Error):  # it exists, and nothing is left beside it
        tq.save(cache, tmp_path / "a.tqkv", config=None)
    assert os.listdir(tmp_path) == ["a.tqkv"]


def test_minimax(tmp_path):
    minimax = pytest.importorskip("transformers.models.minimax.modeling_minimax")
    cache = minimax.MiniMaxCache()
    cache.set_linear_cache(0, torch.randn(1, 4, 16, 16))
    cache.set_linear_cache(1, [])
    cache.update(*kv(20), 1)
    tq.save(cache, tmp_path / "a.tqkv", input_ids=torch.arange(20), config=None,
            identity=tqcache.Identity("minimax"))
    again = tq.load(tmp_path / "a.tqkv")
    assert type(again) is minimax.MiniMaxCache
    assert torch.equal(again.linear_cache[0], cache.linear_cache[0])
    assert torch.equal(again.layers[1].keys, cache.layers[1].keys)


def test_a_row_of_a_batch(tmp_path):
    batch = cache_utils.DynamicCache()
    keys, values = kv(9, batch=3)
    batch.update(keys, values, 0)
    ids = torch.arange(27).reshape(3, 9)
    mask = torch.ones(3, 9, dtype=torch.int64)
    mask[1, :2] = 0
    tq.save(batch, tmp_path / "a.tqkv", input_ids=ids, row=1, attention_mask=mask, config=None)
    again = tq.load(tmp_path / "a.tqkv")
    assert torch.equal(again.layers[0].keys, keys[1:2, :, 2:])
    assert torch.equal(again.layers[0].values, values[1:2, :, 2:])
    assert tq.tokens(tmp_path / "a.tqkv").tolist() == [list(range(11, 18))]
    with pytest.raises(tqcache.UnsupportedError, match="no row 3"):
        tq.save(batch, tmp_path / "b.tqkv", row=3)


def test_a_cache_with_gradients(tmp_path, model, tokenizer):
    ids = alice(tokenizer, 20)
    cache = model(ids, use_cache=True).past_key_values  # without torch.no_grad()
    assert cache.layers[0].keys.requires_grad
    tq.save(cache, tmp_path / "a.tqkv", model, input_ids=ids, config=None)
    again = tq.load(tmp_path / "a.tqkv", model)
    assert not again.layers[0].keys.requires_grad
    same(again, prefill(model, ids))


def test_a_static_cache_is_as_long_as_its_prompt(tmp_path, model, tokenizer):
    ids = alice(tokenizer, 20)
    cache = prefill(model, ids, cache_utils.StaticCache(config=model.config, max_cache_len=512))
    tq.save(cache, tmp_path / "a.tqkv", model, input_ids=ids, config=None)
    with tqcache.open(tmp_path / "a.tqkv") as file:
        assert file.n_tokens == 20 and file.layers[0].n_tokens == 20


def test_tensors_without_numbers_are_refused(tmp_path):
    tensor = torch.empty((1, 2, 4, 64), device="meta")
    cache = cache_utils.DynamicCache()
    cache.update(tensor, tensor, 0)
    with pytest.raises(tqcache.UnsupportedError, match="device meta"):
        tq.save(cache, tmp_path / "a.tqkv", config=None)
    assert not (tmp_path / "a.tqkv").exists()


def test_numbers_of_8_bits_become_f16(tmp_path):
    keys, values = (tensor.to(torch.float8_e4m3fn) for tensor in kv(4, torch.float32))
    cache = cache_utils.DynamicCache()
    cache.update(keys, values, 0)
    tq.save(cache, tmp_path / "a.tqkv", config=None)
    with tqcache.open(tmp_path / "a.tqkv") as file:
        assert torch.equal(torch.from_numpy(file.layers[0].keys()), keys[0].to(torch.float16))


def test_a_copy_is_a_cache_of_its_own(model, tokenizer):
    ids = alice(tokenizer, 600)
    for cache in (prefill(model, ids), tq.TqcacheCache(bits=4)):
        if not cache.get_seq_length():
            prefill(model, ids, cache)
        copied = copy.deepcopy(cache)
        right = generate(model, torch.cat([ids, ids[:, :1]], 1), cache, 4)
        assert torch.equal(generate(model, torch.cat([ids, ids[:, :1]], 1), copied, 4), right)


def test_what_cannot_be_kept_is_refused(tmp_path):
    batch = cache_utils.DynamicCache()
    batch.update(*kv(4, batch=2), 0)
    with pytest.raises(tqcache.UnsupportedError, match="layer 0: .*batch of 2"):
        tq.save(batch, tmp_path / "a.tqkv")

    class Other(cache_utils.DynamicLayer):
        pass

    other = cache_utils.DynamicCache()
    other.layers = [Other()]
    other.layers[0].update(*kv(4))
    with pytest.raises(tqcache.UnsupportedError, match="class Other"):
        tq.save(other, tmp_path / "a.tqkv")
    one = cache_utils.DynamicCache()
    one.update(*kv(4), 0)
    with pytest.raises(tqcache.UsageError, match="9 input_ids"):
        tq.save(one, tmp_path / "a.tqkv", input_ids=torch.arange(9))
    with pytest.raises(tqcache.UsageError, match="batch of 2: row="):
        tq.save(one, tmp_path / "a.tqkv", input_ids=torch.zeros(2, 4))
    with pytest.raises(TypeError, match="model: a model or its config"):
        tq.load(tmp_path / "a.tqkv", "hf")
    for bits in ("x", 0, 9, 3.5, -1, True):
        with pytest.raises(ValueError, match="whole number from 1 to 8"):
            tq.TqcacheCache(bits=bits)
    assert not (tmp_path / "a.tqkv").exists()


def test_four_bits_and_the_same_tokens_in_another_process(tmp_path, model, tokenizer):
    ids = alice(tokenizer, 900)
    path = tmp_path / "alice.tqkv"
    cache = prefill(model, ids[:, :-1])
    tq.save(cache, path, model, tokenizer, input_ids=ids[:, :-1])
    assert tqcache.verify(path)
    n_bytes = sum(tq.bytes_of_layer(layer) for layer in cache.layers)
    assert path.stat().st_size < 0.34 * n_bytes  # .33000 was measured
    here = generate(model, ids, tq.load(path, model), 24).tolist()
    program = (
        "import sys, torch, transformers, tqcache.transformers as tq\n"
        "model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1],"
        " dtype=torch.bfloat16).eval()\n"
        "ids = torch.tensor([[int(i) for i in sys.argv[3].split(',')]])\n"
        "out = model.generate(ids, past_key_values=tq.load(sys.argv[2], model), max_new_tokens=24,"
        " do_sample=False, pad_token_id=0)\n"
        "print(out[0, ids.shape[1]:].tolist())\n")
    there = subprocess.run([sys.executable, "-c", program, str(DEMO), str(path),
                            ",".join(map(str, ids[0].tolist()))], check=True, text=True,
                           stdout=subprocess.PIPE).stdout
    assert there.strip().splitlines()[-1] == str(here)
    assert here == generate(model, ids, cache, 24).tolist()


def test_keys_in_pairs_are_not_those_of_the_decoder(tmp_path):
    """The folder is one that the decoder runs, with its keys in another order."""
    config = transformers.CohereConfig(
        vocab_size=64, hidden_size=64, intermediate_size=40, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, pad_token_id=0, bos_token_id=0,
        eos_token_id=0)
    transformers.CohereForCausalLM(config).save_pretrained(tmp_path / "model")
    cohere = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ids = torch.arange(1, 20)[None]
    cache = prefill(cohere, ids)
    tq.save(cache, tmp_path / "a.tqkv", cohere, input_ids=ids)
    identity = tq.identity_of(cohere)
    assert identity.architecture == "cohere" and not any(identity.weights_fingerprint)
    same(cache, tq.load(tmp_path / "a.tqkv", cohere))
    made_elsewhere = tqcache.Identity("cohere", "model", source_format="tqcache")
    tq.save(cache, tmp_path / "b.tqkv", identity=made_elsewhere)
    with pytest.raises(tqcache.MismatchError, match="another order"):
        tq.load(tmp_path / "b.tqkv", cohere)


def test_another_model_is_refused(tmp_path, model, tokenizer):
    path = tmp_path / "alice.tqkv"
    tq.save(prefill(model, alice(tokenizer, 40)), path, model, tokenizer)
    other = copy.deepcopy(model.config)
    other.num_key_value_heads = 4
    with pytest.raises(tqcache.MismatchError, match="heads"):
        tq.load(path, other)
    other.num_hidden_layers = 7
    other.layer_types = other.layer_types[:7]
    with pytest.raises(tqcache.MismatchError, match="8 layers"):
        tq.load(path, other)
    identity = tqcache.Identity("llama", "another")
    tq.save(prefill(model, alice(tokenizer, 40)), tmp_path / "b.tqkv", identity=identity)
    with pytest.raises(tqcache.MismatchError, match="llama"):
        tq.load(tmp_path / "b.tqkv", model)
    assert tq.load(tmp_path / "b.tqkv", model, check=False)


def test_a_damaged_file_is_refused(tmp_path, model, tokenizer):
    path = tmp_path / "alice.tqkv"
    tq.save(prefill(model, alice(tokenizer, 300)), path, model, tokenizer)
    whole = path.read_bytes()
    path.chmod(0o600)
    for at in range(len(whole) // 10, len(whole), len(whole) // 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 8]) + whole[at + 1:])
        with pytest.raises(tqcache.Error):
            tq.load(path, model)


def test_the_script_uses_the_package(tmp_path, model, tokenizer):
    import importlib.util

    spec = importlib.util.spec_from_file_location("tqcache_hf", ROOT / "tools/tqcache_hf.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    ids = alice(tokenizer, 300)
    cache = prefill(model, ids)
    script.save(cache, str(tmp_path / "a.tqkv"), ids, model.config)
    script.save(cache, str(tmp_path / "a.safetensors"), ids, model.config)
    assert script.tokens(str(tmp_path / "a.tqkv")).tolist() == ids[0].tolist()
    same(cache, script.load(str(tmp_path / "a.safetensors")))
    assert len(script.load(str(tmp_path / "a.tqkv")).layers) == len(cache.layers)


# --- The packed cache

def reference_update(layer, new):
    layer.all = [torch.cat([old, one], 2) for old, one in zip(layer.all, new)]
    return layer.all


def test_the_packed_layer_holds_what_was_put_in():
    """Against plain concatenation, with 8 bits: small errors, right places."""
    layer = tq.TqcacheLayer(keys="mse:8", values="mse:8", recent=32)
    layer.all = kv(0, torch.float32)
    seen = 0
    for n in (700, 1, 1, 255, 300, 1):
        new = kv(n, torch.float32, seed=n + seen)
        for full, right in zip(layer.update(*new), reference_update(layer, new)):
            assert full.shape == right.shape
            assert (full - right).pow(2).mean() < 1e-3
            assert torch.equal(full[:, :, -min(n, 32):], right[:, :, -min(n, 32):])
        seen += n
        assert layer.get_seq_length() == seen
        assert layer.get_mask_sizes(5) == (seen + 5, 0)
        assert 32 <= layer.keys.shape[2] < 32 + 256 or seen < 288
    layer.crop(-10)
    assert layer.get_seq_length() == seen - 10
    layer.crop(-(layer.keys.shape[2] + 3))
    for full, right in zip(layer.dense(), layer.all):
        assert (full - right[:, :, :full.shape[2]]).pow(2).mean() < 1e-3
    layer.reset()
    assert layer.get_seq_length() == 0


def test_rows_of_a_batch_are_moved_without_decoding():
    layer = tq.TqcacheLayer(keys="mse:8", values="mse:8")
    layer.update(*kv(400, torch.float32, batch=3))
    before = layer.dense()
    n_bytes = layer.nbytes
    layer.reorder_cache(torch.tensor([2, 0, 0]))
    for now, then in zip(layer.dense(), before):
        assert torch.equal(now, then[[2, 0, 0]])
    layer.batch_repeat_interleave(2)
    assert layer.dense()[0].shape[0] == 6
    layer.batch_select_indices(torch.tensor([5]))
    for now, then in zip(layer.dense(), before):
        assert torch.equal(now, then[[0]])
    assert layer.nbytes < n_bytes


@pytest.mark.parametrize("with_config", [False, True])
def test_generation_with_the_packed_cache(model, tokenizer, with_config):
    ids = alice(tokenizer, 1100)
    dynamic = cache_utils.DynamicCache()
    right = generate(model, ids, dynamic, 32)
    cache = tq.TqcacheCache(bits=4, config=model.config if with_config else None)
    tokens = generate(model, ids, cache, 32)
    assert cache.get_seq_length() == dynamic.get_seq_length()
    assert tokens.shape == right.shape
    assert cache.layers[0].n_packed >= 1024
    again = tq.TqcacheCache(bits=4, config=model.config if with_config else None)
    assert divergence(model, ids, again) < 0.01  # .0008 was measured
    n_dynamic = sum(tq.bytes_of_layer(layer) for layer in dynamic.layers)
    assert cache.nbytes < 0.45 * n_dynamic  # of few tokens, many are dense


@torch.no_grad()
def test_step_graphs_pass_other_calls_on(model, tokenizer):
    """On a CPU that is all of them, under either name of the cache."""
    ids = alice(tokenizer, 300)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    right = model.generate(ids, **options)
    names = ["past_key_values"]
    if "cache" in inspect.signature(model.forward).parameters:  # from 5.24 on
        names.append("cache")
    with tq.step_graphs(model) as graphs:
        for name in names:
            cache = cache_utils.DynamicCache()
            assert torch.equal(model.generate(ids, **{name: cache}, **options), right)
            assert cache.get_seq_length() == 304
    assert graphs.n_replayed == 0


def test_beams(model, tokenizer):
    ids = alice(tokenizer, 600)
    options = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False, "pad_token_id": 0}
    right = model.generate(ids, past_key_values=cache_utils.DynamicCache(), **options)
    tokens = model.generate(ids, past_key_values=tq.TqcacheCache(keys="mse:8", values="mse:8"),
                            **options)
    assert torch.equal(tokens, right)


def test_a_packed_cache_can_be_saved(tmp_path, model, tokenizer):
    ids = alice(tokenizer, 600)
    cache = prefill(model, ids, tq.TqcacheCache(bits=4))
    tq.save(cache, tmp_path / "a.tqkv", model, tokenizer, input_ids=ids, config=None)
    again = tq.load(tmp_path / "a.tqkv", model)
    for layer, other in zip(cache.layers, again.layers):
        for a, b in zip(layer.dense(), (other.keys, other.values)):
            assert torch.equal(a, b)


@pytest.mark.parametrize("packed", [False, True])
def test_heads_of_ranks_are_read_by_other_numbers_of_ranks(tmp_path, packed):
    """As tensor parallelism splits them; tensor_parallel.py does it with real processes."""
    keys, values = kv(300, heads=4)
    ids = torch.arange(300)

    def cache_of(first, end):
        cache = tq.TqcacheCache(bits=4) if packed else cache_utils.DynamicCache()
        cache.update(keys[:, first:end], values[:, first:end], 0)
        return cache

    def save(cache, name, **more):
        tq.save(cache, tmp_path / name, input_ids=ids, config=None, **more)

    save(cache_of(0, 4), "whole.tqkv")
    for n in (2, 4):
        for rank in range(n):
            save(cache_of(rank * 4 // n, (rank + 1) * 4 // n), f"of{n}.tqkv", rank=(rank, n))
    assert (tmp_path / "of2.rank-1-of-2.tqkv").exists() and not (tmp_path / "of2.tqkv").exists()
    whole = tq.load(tmp_path / "whole.tqkv").layers[0]
    for name in ("whole.tqkv", "of2.tqkv", "of4.tqkv"):
        for n in (1, 2, 4):
            for rank in range(n):
                own = tq.load(tmp_path / name, rank=(rank, n)).layers[0]
                heads = slice(rank * 4 // n, (rank + 1) * 4 // n)
                assert torch.equal(own.keys, whole.keys[:, heads])
                assert torch.equal(own.values, whole.values[:, heads])


def test_files_of_ranks_that_do_not_belong_together_are_refused(tmp_path):
    def save(name, rank, n=300, seed=0):
        cache = cache_utils.DynamicCache()
        cache.update(*kv(n, seed=seed), 0)
        tq.save(cache, tmp_path / name, input_ids=torch.arange(seed, seed + n), rank=rank)

    save("a.tqkv", (0, 2))
    with pytest.raises(tqcache.NotFoundError, match=r"missing: of 2 ranks \[1\]"):
        tq.load(tmp_path / "a.tqkv", rank=(0, 1))
    with pytest.raises(tqcache.NotFoundError):
        tq.load(tmp_path / "none.tqkv", rank=(0, 2))
    save("a.tqkv", (1, 2), seed=1)
    with pytest.raises(tqcache.MismatchError, match="another prompt or model"):
        tq.load(tmp_path / "a.tqkv", rank=(0, 1))
    for rank in (0, 1):
        save("b.tqkv", (rank, 2))
    with pytest.raises(tqcache.UnsupportedError, match="4 kv heads for 3 ranks"):
        tq.load(tmp_path / "b.tqkv", rank=(1, 3))
    (tmp_path / "b.rank-0-of-2.tqkv").rename(tmp_path / "c")
    (tmp_path / "b.rank-1-of-2.tqkv").rename(tmp_path / "b.rank-0-of-2.tqkv")
    (tmp_path / "c").rename(tmp_path / "b.rank-1-of-2.tqkv")
    with pytest.raises(tqcache.MismatchError, match="not the file of rank 0 of 2"):
        tq.load(tmp_path / "b.tqkv", rank=(0, 1))
    with pytest.raises(tqcache.UsageError, match="rank 2 of 2"):
        tq.load(tmp_path / "b.tqkv", rank=(2, 2))


def test_keys_packed_with_another_rope_are_not_saved(tmp_path, model):
    cache = tq.TqcacheCache(bits=4, config=model.config)
    cache.update(*kv(300, heads=2, dim=128), 0)
    other = tqcache.Identity("qwen3", rope=tqcache.Rope(n_dims=128, base=1.5))
    with pytest.raises(tqcache.UsageError, match="the keys were packed with Rope"):
        tq.save(cache, tmp_path / "a.tqkv", identity=other)
    assert not (tmp_path / "a.tqkv").exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU of NVIDIA here")
def test_on_a_gpu(model, tokenizer):
    gpu = copy.deepcopy(model).cuda()
    ids = alice(tokenizer, 1100).cuda()
    cache = tq.TqcacheCache(bits=4, config=model.config)
    assert generate(gpu, ids, cache, 16).shape == (16,)
    assert cache.layers[0].keys.device.type == "cuda"
    assert divergence(gpu, ids, tq.TqcacheCache(bits=4, config=model.config)) < 0.01


def test_8k_tokens_take_at_most_30_percent(model, tokenizer):
    """256 tokens behind 8K, each token of the prompt from a prefill by chunks."""
    ids = alice(tokenizer, 8192 + 1)
    cache, dynamic = tq.TqcacheCache(bits=4, config=model.config), cache_utils.DynamicCache()
    for one in (cache, dynamic):
        for begin in range(0, 8192, 1024):
            prefill(model, ids[:, begin:begin + 1024], one)
        # The cache grows by 256 tokens; what they are does not matter for its size.
        for layer, (keys, values) in enumerate([kv(256, heads=2, dim=128)] * 8):
            one.update(keys, values, layer)
    n_dynamic = sum(tq.bytes_of_layer(layer) for layer in dynamic.layers)
    assert cache.get_seq_length() == dynamic.get_seq_length() == 8192 + 256
    assert cache.nbytes < 0.30 * n_dynamic
