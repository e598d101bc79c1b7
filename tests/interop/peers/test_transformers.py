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
        packed = self.convert(self.prefilled("bf16"), "turbo.tqkv", "--preset", "turbo4")
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


if __name__ == "__main__":
    print(peer.versions(), flush=True)
    support.main()
