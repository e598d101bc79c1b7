"""Prompt caches that mlx-lm writes and reads itself.

The model is the demo's, in bf16. mlx-lm continues twice: in bf16, as its users do, whose logits are
off by up to 0.32 (measured: docs/reference/interop.md), and in f32, off by up to 0.05, since new
keys and values go into the file's bf16. A token's loss is a difference of two logits: the bounds
are twice that.
"""

import json
import os
import subprocess
import sys
import unittest
from functools import lru_cache
from pathlib import Path

import support

peer = support.need("mlx_peer")
mlx_shapes = support.need("mlx_shapes")
import mlx.core as mx  # noqa: E402: after it is known to be there
import numpy as np  # noqa: E402
from mlx_lm.models import cache as caches  # noqa: E402

BOUNDS = {"f32": 0.1, "bf16": 0.65}
N = 600 if support.IS_LONG else 300  # tokens of the prompt: whole blocks and a part of one
DENSE = ("--bits", 16)


@lru_cache
def model(name):
    return peer.load(support.hf_folder(), {"f32": mx.float32, "bf16": None}[name])


def swap_heads(side):
    return side[:, ::-1]


def interleave(side):
    """The order of a head's components that llama.cpp has for some models."""
    halves = mx.split(side, 2, axis=-1)
    return mx.stack(halves, axis=-1).reshape(side.shape)


class MlxLm(support.PeerTest):
    def saved(self, name, cache):
        path = self.folder / f"{name}.safetensors"
        peer.save(path, cache, {"model": "demo"})
        return path

    def import_alice(self, path, name="imported.tqkv"):
        return self.convert(path, name, *DENSE, "--model", support.hf_folder(),
                            "--ids", self.ids_file(support.alice()[:N]))

    def export(self, path, name="exported.safetensors", version=peer.VERSION):
        return self.convert(path, name, "--to", "mlx-lm", "--mlx-lm-version", version)

    def assert_continues(self, cache_of, tqkv, what):
        """That mlx-lm with the cache that cache_of() gives and tqcache with the other go on alike."""
        first = support.alice()[N]
        tokens = self.generate(support.hf_folder(), tqkv, first)
        for name, bound in BOUNDS.items():
            rows = peer.logits_along(model(name), cache_of(), [first, *tokens[:-1]])
            self.assert_agrees(rows, tokens, bound, f"{what}, mlx-lm in {name}")

    def prefilled(self):
        path = support.shared_folder() / "alice.safetensors"
        if not path.exists():
            peer.save(path, peer.prefill(model("bf16"), support.alice()[:N]))
        return peer.load_cache(path)


# The older version computes as the newer one does: what may differ are its files.
NEWEST_OR_LONG = unittest.skipUnless(
    support.IS_LONG or support.options().mlx_lm != "0.31", "with an older mlx-lm only with --long")


class FromMlxLm(MlxLm):
    def test_dense(self):
        saved = self.saved("dense", self.prefilled())
        self.assert_continues(lambda: peer.load_cache(saved), self.import_alice(saved), "dense")

    @NEWEST_OR_LONG
    def test_quantized(self):
        for bits in (4, 8):
            with self.subTest(bits=bits):
                packed = [layer.to_quantized(64, bits) for layer in self.prefilled()]
                saved = self.saved(f"q{bits}", packed)
                # Not as mlx-lm itself goes on, which would quantize what is new as well.
                self.assert_continues(lambda: peer.dequantized(peer.load_cache(saved)),
                                      self.import_alice(saved), f"{bits} bits")

    @NEWEST_OR_LONG
    def test_another_cache_is_noticed(self):
        saved = self.saved("dense", self.prefilled())
        first = support.alice()[N]
        tokens = self.generate(support.hf_folder(), self.import_alice(saved), first)
        for name, keys, values in (
                ("kv heads swapped", swap_heads, swap_heads),
                ("values one token on", lambda side: side, lambda side: mx.roll(side, 1, axis=2)),
                ("components interleaved", interleave, lambda side: side)):
            cache = peer.load_cache(saved)
            for layer in cache:
                layer.keys, layer.values = keys(layer.keys[..., :N, :]), values(layer.values[..., :N, :])
            rows = peer.logits_along(model("bf16"), cache, [first, *tokens[:-1]])
            self.assert_disagrees(rows, tokens, BOUNDS["bf16"], name)


class ToMlxLm(MlxLm):
    def prefilled_by_tqcache(self, dtype):
        path = self.folder / f"{dtype}.tqkv"
        ids = ",".join(str(token) for token in support.alice()[:N])
        self.tqcache("prefill", "--model", support.hf_folder(), "--ids", ids, "--dtype", dtype,
                     "-o", path)
        return path

    def test_dense(self):
        for dtype in ("bf16", "f16"):
            with self.subTest(dtype=dtype):
                tqkv = self.prefilled_by_tqcache(dtype)
                exported = self.export(tqkv)
                self.assert_continues(lambda: peer.load_cache(exported), tqkv, dtype)

    @NEWEST_OR_LONG
    def test_turbo(self):
        packed = self.convert(self.prefilled_by_tqcache("bf16"), "turbo.tqkv", "--config", "turbo4")
        exported = self.export(packed)
        dense = self.convert(exported, "dense.tqkv", *DENSE, "--model", support.hf_folder(),
                             "--ids", self.ids_file(support.alice()[:N]), "--probe", 0)
        self.assert_continues(lambda: peer.load_cache(exported), dense, "turbo4")

    def test_quantized(self):
        """mlx-lm's own quantization of the same cache has the same codes, scales and biases."""
        tqkv = self.prefilled_by_tqcache("bf16")
        exported = self.convert(tqkv, "q4.safetensors", "--to", "mlx-lm", "--kv-bits", 4,
                                "--mlx-lm-version", peer.VERSION)
        ours = peer.load_cache(exported)
        theirs = [layer.to_quantized(64, 4) for layer in peer.load_cache(self.export(tqkv))]
        for a, b in zip(ours, theirs, strict=True):
            self.assertEqual((a.offset, a.group_size, a.bits), (b.offset, b.group_size, b.bits))
            for side_a, side_b in ((a.keys, b.keys), (a.values, b.values)):
                for part_a, part_b in zip(side_a, side_b, strict=True):
                    np.testing.assert_array_equal(peer.bits_of(part_a[..., :N, :]),
                                                  peer.bits_of(part_b[..., :N, :]))


def random_kv(n_tokens, head_dim=64, dtype=mx.bfloat16, batch=1):
    return [mx.random.normal((batch, 2, n_tokens, head_dim)).astype(dtype) for _ in range(2)]


def filled(cache, n_tokens, **shape):
    cache.update_and_fetch(*random_kv(n_tokens, **shape))
    return cache


def arrays(n_slots):
    cache = caches.ArraysCache(n_slots)
    cache[0] = mx.random.normal((1, 3, 48)).astype(mx.bfloat16)
    for slot in range(1, n_slots):
        cache[slot] = mx.random.normal((1, 4, 8, 16))
    return cache


def wrapped_ring():
    """10 tokens at once, 15 singly: the ring of 16 slots has gone round."""
    cache = filled(caches.RotatingKVCache(16, keep=4), 10)
    for _ in range(15):
        filled(cache, 1)
    return cache


def plain(kind, offset, keys, values):
    """What a layer becomes whose class says nothing that tqcache keeps."""
    return [kind, offset, peer.bits_of(keys), peer.bits_of(values)]


class RoundTrips(MlxLm):
    """mlx-lm to tqcache to mlx-lm, without a model: the same arrays, bit by bit."""

    def setUp(self):
        super().setUp()
        mx.random.seed(7)

    def round_trip(self, cache, *flags):
        tqkv = self.convert(self.saved("before", cache), "between.tqkv", *DENSE, *flags)
        return peer.load_cache(self.export(tqkv, "after.safetensors"))

    def assert_same(self, cache, expected=None, *flags):
        expected = expected or [peer.contents(layer) for layer in cache]
        found = [peer.contents(layer) for layer in self.round_trip(cache, *flags)]
        np.testing.assert_equal(found, expected)

    def test_kv_cache(self):
        for dtype in (mx.bfloat16, mx.float16, mx.float32):
            for n_tokens in (1, 7, 256, 300):
                with self.subTest(dtype=dtype, n_tokens=n_tokens):
                    self.assert_same([filled(caches.KVCache(), n_tokens, dtype=dtype)
                                      for _ in range(2)])

    def test_concatenate_kv_cache(self):
        self.assert_same([filled(caches.ConcatenateKVCache(), 7)])

    def test_rotating_kv_cache(self):
        for name, layer in (("wrapped", wrapped_ring()),
                            ("not full", filled(caches.RotatingKVCache(16, keep=4), 10)),
                            ("prefilled", filled(caches.RotatingKVCache(16, keep=4), 25))):
            with self.subTest(name):
                self.assert_same([layer])

    def test_rotating_cache_of_the_model(self):
        """It goes on as before: what mlx-lm needs of the ring is all there."""
        ids, first = support.alice()[:N], support.alice()[N]
        for name, singly in (("wrapped", 12), ("prefilled", 0))[:2 if support.IS_LONG else 1]:
            with self.subTest(name):
                before = self.saved("before", peer.prefill(model("f32"), ids, singly, 256))
                after = self.export(self.convert(before, "between.tqkv", *DENSE))
                tokens = support.alice()[N:N + 20]
                rows = [peer.logits_along(model("f32"), peer.load_cache(path), tokens)
                        for path in (before, after)]
                np.testing.assert_allclose(rows[1], rows[0], atol=1e-3)
                self.assertEqual(first, tokens[0])

    def test_arrays_cache(self):
        for n_slots in (1, 2, 3, 4):
            with self.subTest(n_slots=n_slots):
                kv = filled(caches.KVCache(), 7)
                self.assert_same([arrays(n_slots), arrays(n_slots), kv])

    def test_cache_list(self):
        """Its caches are layers of their own, and a list again."""
        parts = [arrays(2), filled(caches.KVCache(), 7), filled(caches.KVCache(), 7, head_dim=32)]
        self.assert_same([caches.CacheList(*parts)])

    def test_chunked_kv_cache(self):
        self.assert_same([filled(caches.ChunkedKVCache(8), 6)])

    def test_batch_kv_cache(self):
        layer = filled(caches.BatchKVCache([1, 3, 0]), 6, batch=3)
        for row, padding in enumerate((1, 3, 0)):
            with self.subTest(row=row):
                keys, values = (side[row:row + 1, :, padding:6, :]
                                for side in (layer.keys, layer.values))
                self.assert_same([layer], [plain("KVCache", 6 - padding, keys, values)],
                                 "--row", row)


class Shapes(RoundTrips):
    """Caches that models with latents, lists and shared layers really make."""

    IDS = [7 * i % 97 for i in range(300)]

    def test_models_go_on_with_the_same_bits(self):
        for name in mlx_shapes.MODELS:
            tiny = mlx_shapes.make(name)
            if tiny is None:
                continue
            # Before 0.32 its indexer has keys and values of width 0, which are refused.
            if name == "deepseek_v32" and support.options().mlx_lm == "0.31":
                continue
            with self.subTest(name):
                before = self.saved("before", peer.prefill(tiny, self.IDS, 3))
                tqkv = self.convert(before, "between.tqkv", *DENSE)
                self.tqcache("verify", tqkv)
                after = self.export(tqkv, "after.safetensors")
                same = [[peer.contents(layer) for layer in peer.load_cache(path)]
                        for path in (before, after)]
                np.testing.assert_equal(*same)
                rows = [peer.logits_along(tiny, peer.load_cache(path), [5, 9, 11])
                        for path in (before, after)]
                # A ring comes back in the order of positions, and a sum over it in another order.
                has_rings = any(type(layer).__name__ == "RotatingKVCache"
                                for layer in peer.load_cache(before))
                np.testing.assert_allclose(*rows, rtol=0, atol=1e-4 if has_rings else 0)

    @NEWEST_OR_LONG
    def test_latents_are_quantized_by_their_own_sizes(self):
        tiny = mlx_shapes.make("deepseek_v3")
        before = self.saved("before", peer.prefill(tiny, self.IDS))
        tqkv = self.convert(before, "packed.tqkv")
        self.tqcache("verify", tqkv)
        layers = json.loads(self.tqcache("info", tqkv, "--json"))["layers"]
        self.assertEqual([(layer["head_dim"], layer["value_dim"]) for layer in layers], [(48, 16)])
        self.assertEqual(layers[0]["k"]["bits"], 4)
        self.assertEqual(layers[0]["v"]["cache_type_id"], "tqcache.dense.v1")  # too short to quantize
        after = peer.load_cache(self.export(tqkv))
        for old, new in zip(peer.load_cache(before), after, strict=True):
            keys, again = (np.array(layer.keys[..., :300, :]) for layer in (old, new))
            error = np.square(again - keys).sum() / np.square(keys).sum()
            self.assertLess(error, 0.02)
            np.testing.assert_array_equal(*(peer.bits_of(layer.values[..., :300, :])
                                            for layer in (old, new)))


def is_read(path):
    """Whether mlx-lm itself makes something of a file. It has no check of its own for its versions."""
    try:
        return len(peer.load_cache(path)) > 0
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


class BetweenVersions(MlxLm):
    """Files of mlx-lm before 0.32 and since are not the same, and neither reads the other's."""

    @NEWEST_OR_LONG
    def test_other_version(self):
        other = "0.31" if peer.VERSION != "0.31" else "0.32"
        folder = Path(sys.prefix) / "mlx-lm-0.31"
        if not folder.exists():
            self.skipTest(f"{folder} is not there")
        environment = dict(os.environ)
        environment.pop("PYTHONPATH", None)
        if other == "0.31":
            environment["PYTHONPATH"] = str(folder)
        path = self.folder / "other.safetensors"
        ids = [str(token) for token in support.alice()[:N]]
        subprocess.run([sys.executable, Path(__file__).parent / "mlx_writer.py",
                        support.hf_folder(), path, *ids], env=environment, check=True)
        self.assertFalse(is_read(path))
        tqkv = self.import_alice(path)
        exported = self.export(tqkv)
        found = [peer.contents(layer) for layer in peer.load_cache(exported)]
        np.testing.assert_equal(found, [peer.contents(layer) for layer in self.prefilled()])


if __name__ == "__main__":
    wanted = support.options().mlx_lm
    if wanted and wanted != peer.VERSION:
        support.not_run(f"mlx-lm {wanted}: found {peer.versions()}")
    print(peer.versions(), flush=True)
    support.main()
