"""Caches of transformers, through tools/tqcache_hf.py, both ways.

transformers computes in f32, the cache being of bf16 as the model is, or of f32. What is new it keeps
in f32 and tqcache in the cache's own type: with bf16 that makes logits differ by up to 0.05
(measured: docs/reference/interop.md), and a token's loss is a difference of two.
"""

from functools import lru_cache

import support

peer = support.need("hf_peer")
support.need("tqcache")
import torch  # noqa: E402: after it is known to be there

BOUNDS = {torch.bfloat16: 0.1, torch.float32: 0.01}
N = 600
DENSE = ("--bits", 16)


@lru_cache
def model(dtype=torch.float32):
    return peer.load(support.hf_folder(), dtype)


class Transformers(support.PeerTest):
    def setUp(self):
        super().setUp()
        self.tool = peer.tool(support.options().source)

    def saved(self, cache, ids=None):
        path = self.folder / "saved.safetensors"
        self.tool.save(cache, str(path), ids, model().config)
        return path

    def import_(self, path, *flags):
        return self.convert(path, "imported.tqkv", *DENSE, *flags)

    def export(self, path):
        return self.convert(path, "exported.safetensors", "--to", "hf")

    def assert_continues(self, path, tqkv, bound, what):
        first = support.alice()[N]
        tokens = self.generate(support.hf_folder(), tqkv, first)
        rows = peer.logits_along(model(), self.tool.load(str(path)), [first, *tokens[:-1]])
        self.assert_agrees(rows, tokens, bound, what)

    def assert_same(self, cache, again):
        before, after = peer.tensors_of(cache), peer.tensors_of(again)
        self.assertEqual(before.keys(), after.keys())
        for name, tensor in before.items():
            self.assertEqual(tensor.dtype, after[name].dtype, name)
            self.assertTrue(torch.equal(tensor, after[name]), name)
        kinds = [[type(layer).__name__ for layer in each.layers] for each in (cache, again)]
        self.assertEqual(*kinds)


class FromTransformers(Transformers):
    def test_continues(self):
        ids = support.alice()[:N]
        for dtype, bound in BOUNDS.items():
            with self.subTest(dtype=dtype):
                saved = self.saved(peer.prefill(model(dtype), ids), ids)
                tqkv = self.import_(saved, "--model", support.hf_folder())
                self.assert_continues(saved, tqkv, bound, f"a cache of {dtype}")

    def test_another_cache_is_noticed(self):
        ids, first = support.alice()[:N], support.alice()[N]
        cache = peer.prefill(model(torch.bfloat16), ids)
        tqkv = self.import_(self.saved(cache, ids), "--model", support.hf_folder())
        tokens = self.generate(support.hf_folder(), tqkv, first)
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys.flip(1), layer.values.flip(1)
        rows = peer.logits_along(model(), cache, [first, *tokens[:-1]])
        self.assert_disagrees(rows, tokens, BOUNDS[torch.bfloat16], "kv heads swapped")


class ToTransformers(Transformers):
    def prefilled(self, dtype):
        path = self.folder / "prefilled.tqkv"
        ids = ",".join(str(token) for token in support.alice()[:N])
        self.tqcache("prefill", "--model", support.hf_folder(), "--ids", ids, "--dtype", dtype,
                     "--force", "-o", path)
        return path

    def test_continues(self):
        for dtype, bound in (("bf16", BOUNDS[torch.bfloat16]), ("f32", BOUNDS[torch.float32])):
            with self.subTest(dtype=dtype):
                tqkv = self.prefilled(dtype)
                exported = self.export(tqkv)
                self.assertEqual(self.tool.tokens(str(exported)).tolist(), support.alice()[:N])
                self.assert_continues(exported, tqkv, bound, f"a cache of {dtype}")

    def test_turbo(self):
        packed = self.convert(self.prefilled("bf16"), "turbo.tqkv", "--config", "turbo4")
        exported = self.export(packed)
        dense = self.import_(exported, "--model", support.hf_folder(), "--probe", 0)
        self.assert_continues(exported, dense, BOUNDS[torch.bfloat16], "turbo4")


class RoundTrips(Transformers):
    """transformers to tqcache to transformers, without a model: the same tensors, bit by bit."""

    def setUp(self):
        super().setUp()
        torch.manual_seed(7)

    def round_trip(self, cache, ids=None):
        tqkv = self.import_(self.saved(cache, ids))
        return self.tool.load(str(self.export(tqkv)))

    def random_kv(self, n_tokens, dtype):
        return [torch.randn(1, 2, n_tokens, 64).to(dtype) for _ in range(2)]

    def test_full_attention(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for n_tokens in (1, 7, 256, 300):
                with self.subTest(dtype=dtype, n_tokens=n_tokens):
                    cache = peer.cache_utils.DynamicCache()
                    for layer in range(2):
                        cache.update(*self.random_kv(n_tokens, dtype), layer)
                    self.assert_same(cache, self.round_trip(cache, list(range(n_tokens))))

    def test_keys_and_values_of_different_sizes(self):
        cache = peer.cache_utils.DynamicCache()
        cache.update(torch.randn(1, 1, 300, 512).to(torch.bfloat16),
                     torch.randn(1, 1, 300, 64).to(torch.bfloat16), 0)
        sliding = peer.cache_utils.DynamicSlidingWindowLayer(sliding_window=8)
        sliding.update(torch.randn(1, 2, 300, 24), torch.randn(1, 2, 300, 16))
        cache.layers.append(sliding)
        self.assert_same(cache, self.round_trip(cache, list(range(300))))

    def test_numbers_of_eight_bits(self):
        """They come back as f16, which holds each of them."""
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            with self.subTest(dtype=dtype):
                every = torch.arange(256, dtype=torch.uint8).view(dtype)
                every = every[torch.isfinite(every.float())]
                cache = peer.cache_utils.DynamicCache()
                n = len(every) // 8
                cache.layers = [peer.cache_utils.DynamicLayer()]
                cache.layers[0].lazy_initialization(*[torch.zeros(1, 1, 1, 8, dtype=dtype)] * 2)
                cache.layers[0].keys = every[:8 * n].reshape(1, 1, n, 8)
                cache.layers[0].values = every[len(every) - 8 * n:].reshape(1, 1, n, 8)
                again = self.round_trip(cache)
                for side in ("keys", "values"):
                    before, after = (getattr(each.layers[0], side) for each in (cache, again))
                    self.assertEqual(after.dtype, torch.float16)
                    self.assertTrue(torch.equal(before.float(), after.float()))

    def test_quantized_caches_are_decoded_as_they_decode(self):
        layer = peer.cache_utils.Fp8QuantizedLayer()
        layer.update(*self.random_kv(20, torch.bfloat16))
        layer.update(*self.random_kv(1, torch.bfloat16))
        cache = peer.cache_utils.Cache(layers=[layer])
        again = self.round_trip(cache).layers[0]
        self.assertTrue(torch.equal(again.keys, layer._dequantize(layer._quantized_keys)))
        self.assertTrue(torch.equal(again.values, layer._dequantize(layer._quantized_values)))

    def test_static_layers_hold_what_dynamic_ones_do(self):
        utils = peer.cache_utils
        for n_tokens in (5, 7, 8, 20):
            with self.subTest(n_tokens=n_tokens):
                static = [utils.StaticLayer(max_cache_len=64),
                          utils.StaticSlidingWindowLayer(max_cache_len=64, sliding_window=8)]
                dynamic = [utils.DynamicLayer(), utils.DynamicSlidingWindowLayer(sliding_window=8)]
                for n in (n_tokens - 2, 1, 1):  # a prompt, and steps, in which the window rolls
                    for layers in zip(static, dynamic):
                        states = self.random_kv(n, torch.float32)
                        for layer in layers:
                            layer.update(*states)
                again = self.round_trip(utils.Cache(layers=static), list(range(n_tokens)))
                self.assert_same(utils.Cache(layers=dynamic), again)

    def test_rows_of_a_batch(self):
        """Left padding is left out; a window may have left it already."""
        utils = peer.cache_utils
        n_tokens, padding = 12, (0, 3, 5)
        full, sliding = utils.DynamicLayer(), utils.DynamicSlidingWindowLayer(sliding_window=10)
        for layer in (full, sliding):
            layer.update(*[torch.randn(3, 2, n_tokens, 8) for _ in range(2)])
        mask = torch.tensor([[0] * n + [1] * (n_tokens - n) for n in padding])
        ids = torch.arange(3 * n_tokens).reshape(3, n_tokens)
        for row, n_pad in enumerate(padding):
            with self.subTest(row=row):
                path = self.folder / "row.safetensors"
                self.tool.save(utils.Cache(layers=[full, sliding]), str(path), ids, row=row,
                               attention_mask=mask)
                again = self.tool.load(str(self.export(self.import_(path))))
                self.assertTrue(torch.equal(again.layers[0].keys, full.keys[row:row + 1, :, n_pad:]))
                n_held = min(9, n_tokens - n_pad)
                self.assertTrue(torch.equal(again.layers[1].values,
                                            sliding.values[row:row + 1, :, -n_held:]))
                self.assertEqual(again.layers[1].cumulative_length, n_tokens - n_pad)
                self.assertEqual(self.tool.tokens(str(path)).tolist(), ids[row, n_pad:].tolist())
        with self.assertRaisesRegex(self.tool.Unsupported, "row=N"):
            self.tool.save(utils.Cache(layers=[full]), str(path), ids)

    def test_sliding_and_linear_attention(self):
        for n_tokens in (5, 20):
            with self.subTest(n_tokens=n_tokens):
                cache = peer.cache_utils.DynamicCache()
                full = peer.cache_utils.DynamicLayer()
                sliding = peer.cache_utils.DynamicSlidingWindowLayer(sliding_window=8)
                linear = peer.cache_utils.LinearAttentionLayer()
                cache.layers = [linear, sliding, full]
                for layer in (sliding, full):
                    layer.update(*self.random_kv(n_tokens, torch.bfloat16))
                linear.update_conv_state(torch.randn(1, 48, 4).to(torch.bfloat16))
                linear.update_recurrent_state(torch.randn(1, 4, 8, 16))
                again = self.round_trip(cache)
                self.assert_same(cache, again)
                self.assertEqual(sliding.cumulative_length, again.layers[1].cumulative_length)


class Shapes(Transformers):
    """Caches that tiny random models of other families really make: they go on with the same bits."""

    IDS = [7 * i % 97 for i in range(300)]

    def models(self):
        plain = dict(vocab_size=97, hidden_size=64, intermediate_size=64, num_hidden_layers=4,
                     num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=1024,
                     pad_token_id=0, bos_token_id=1, eos_token_id=2)
        latent = dict(plain, kv_lora_rank=48, q_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=24,
                      v_head_dim=32, moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2,
                      n_group=1, topk_group=1, first_k_dense_replace=1)
        return {
            "DeepseekV3": latent,
            "FalconH1": dict(plain, num_hidden_layers=2, head_dim=16, mamba_d_ssm=64, mamba_d_state=16,
                             mamba_d_head=16, mamba_n_heads=4, mamba_n_groups=1, mamba_expand=1),
            "MiniMax": dict(plain, head_dim=16, num_local_experts=2, num_experts_per_tok=1, block_size=32,
                            layer_types=["linear_attention", "full_attention"] * 2),
            "Gemma3nText": dict(plain, num_hidden_layers=6, head_dim=16, num_kv_shared_layers=2,
                                num_key_value_heads=1, sliding_window=32, vocab_size_per_layer_input=97,
                                hidden_size_per_layer_input=8, laurel_rank=8, altup_num_inputs=2,
                                activation_sparsity_pattern=[0.0] * 6,
                                layer_types=["sliding_attention", "sliding_attention",
                                             "full_attention"] * 2),
            "Gemma4Text": dict(plain, num_hidden_layers=6, head_dim=16, global_head_dim=32,
                               num_kv_shared_layers=2, num_key_value_heads=1, sliding_window=32,
                               vocab_size_per_layer_input=97, hidden_size_per_layer_input=8,
                               layer_types=["sliding_attention", "sliding_attention",
                                            "full_attention"] * 2),
        }

    @torch.no_grad()
    def test_models_go_on_with_the_same_bits(self):
        transformers = peer.transformers
        for name, settings in self.models().items():
            if not hasattr(transformers, name + "Config"):
                continue
            with self.subTest(name):
                torch.manual_seed(11)
                config = getattr(transformers, name + "Config")(**settings)
                tiny = transformers.AutoModelForCausalLM.from_config(config).eval()
                path = self.folder / "saved.safetensors"
                cache = peer.prefill(tiny, self.IDS)
                self.tool.save(cache, str(path), self.IDS, config)
                tqkv = self.import_(path)
                self.tqcache("verify", tqkv)
                again = self.tool.load(str(self.export(tqkv)))
                self.assertEqual(type(again).__name__, type(cache).__name__)
                before, after = peer.tensors_of(cache), peer.tensors_of(again)
                self.assertEqual(before.keys(), after.keys())
                for tensor in before:
                    self.assertTrue(torch.equal(before[tensor], after[tensor]), tensor)
                rows = [peer.logits_along(tiny, each, [5, 9, 11]) for each in (cache, again)]
                for old, new in zip(*rows, strict=True):
                    self.assertTrue((old == new).all())


if __name__ == "__main__":
    print(peer.versions(), flush=True)
    support.main()
