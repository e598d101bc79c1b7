"""Caches of a model that sees images, from mlx-vlm and back: the file of transformers' Qwen2.5-VL with
the same weights, and the text behind the images in mlx-vlm, transformers and the decoder of tqcache."""

from functools import lru_cache

import numpy as np

import support

support.need("mlx_vlm")
import mlx.core as mx  # noqa: E402: after it is known to be there
import test_media as media  # noqa: E402
import torch  # noqa: E402
import tqcache  # noqa: E402
import tqcache.mlx as tq  # noqa: E402
import tqcache.transformers  # noqa: E402
from mlx_vlm.models import gemma3, qwen2_5_vl  # noqa: E402
from mlx_vlm.models import cache as caches  # noqa: E402

N_BEHIND = media.N_BEHIND


@lru_cache
def qwen():
    """Qwen2.5-VL of mlx-vlm with the weights of the one of transformers."""
    source = media.qwen()
    shape = source.config.to_dict()
    text = dict(shape["text_config"], rope_theta=10000.0, tie_word_embeddings=False,
                rope_scaling={"type": "mrope", "mrope_section": [4, 6, 6]})
    vision = dict(shape["vision_config"], spatial_patch_size=shape["vision_config"]["patch_size"])
    made = qwen2_5_vl.Model(qwen2_5_vl.ModelConfig(
        text_config=qwen2_5_vl.TextConfig.from_dict(dict(text, model_type="qwen2_5_vl")),
        vision_config=qwen2_5_vl.VisionConfig.from_dict(dict(vision, model_type="qwen2_5_vl")),
        model_type="qwen2_5_vl", image_token_id=media.IMAGE, video_token_id=media.VIDEO,
        vision_start_token_id=303, vision_end_token_id=304))
    weights = {}
    for name, tensor in source.state_dict().items():
        for old, new in (("model.visual.", "vision_tower."), ("lm_head", "language_model.lm_head"),
                         ("model.language_model.", "language_model.model.")):
            if name.startswith(old):
                name = new + name[len(old):]
                break
        weights[name] = mx.array(tensor.numpy())
    made.load_weights(list(made.vision_tower.sanitize(weights).items()))
    mx.eval(made.parameters())
    return made


def arrays(prompt):
    """As prepare_inputs() of mlx-vlm gives them."""
    return {name: mx.array(prompt[name].numpy()) for name in ("input_ids", "attention_mask",
                                                              "pixel_values", "image_grid_thw")}


def read(prompt):
    """Logits, and the cache."""
    made = caches.make_prompt_cache(qwen().language_model)
    qwen().language_model._position_ids = None  # those of the prompt before
    qwen().language_model._rope_deltas = None
    inputs = arrays(prompt)
    out = qwen()(inputs.pop("input_ids"), inputs.pop("pixel_values"), cache=made, **inputs)
    return np.array(out.logits[0]), made


class MlxMedia(support.PeerTest):
    def saved(self, prompt, config=None):
        path = self.folder / "mlx.tqkv"
        before = media.cut(prompt, prompt["input_ids"].shape[1] - N_BEHIND)
        _, made = read(before)
        tq.save(path, made, before["input_ids"][0].tolist(), config=config, force=True,
                identity=tqcache.Identity.of_model(media.text_folder("qwen")),
                media=tq.media_of(qwen(), arrays(before)))
        return path, made

    def test_the_same_spans_as_in_transformers(self):
        path, _ = self.saved(media.qwen_prompt())
        inputs = media.cut(media.qwen_prompt(), media.qwen_prompt()["input_ids"].shape[1] - N_BEHIND)
        expected = tqcache.transformers.media_of(media.qwen(), inputs)
        with tqcache.open(path) as file:
            self.assertEqual(len(file.media), 2)
            for span, other in zip(file.media, expected):
                for field in ("kind", "begin", "n_tokens", "id", "next_position", "placeholder"):
                    self.assertEqual(getattr(span, field), getattr(other, field), field)
                self.assertEqual(span.coordinates.tolist(), other.coordinates.tolist())
        self.assertIn("image, tokens 8 to 13", self.tqcache("info", path))

    def test_text_goes_on(self):
        """In mlx-vlm, in transformers and in the decoder, behind a cache of mlx-vlm."""
        for n_text in (40, 700):
            prompt = media.qwen_prompt(n_text)
            ids = prompt["input_ids"][:, -N_BEHIND:]
            expected, _ = read(prompt)
            expected = expected[-N_BEHIND:]
            with torch.no_grad():
                reference = media.read(media.qwen(), prompt).logits[0, -N_BEHIND:].numpy()
            media.Media.assert_near(self, expected, reference, 1e-4, "mlx-vlm beside transformers")
            for config, bound in ((None, 1e-4), ("k=mse:8,v=mse:8,sink=0", 0.1)):
                path, _ = self.saved(prompt, config)
                loaded = tq.load(path, qwen().language_model)
                self.assertIs(type(loaded[0]), caches.KVCache)
                with tqcache.open(path) as file:
                    shift = mx.array([[file.next_position - file.n_tokens]])
                rows = qwen().language_model(mx.array(ids.numpy()), cache=loaded, rope_deltas=shift)
                what = f"{n_text} tokens, {config}, in"
                media.Media.assert_near(self, np.array(rows.logits[0]), expected, bound,
                                        f"{what} mlx-vlm")
                steps = ids[0].tolist()
                media.Media.assert_near(self, media.Media.logits(self, "qwen", path, steps), expected,
                                        bound, f"{what} the decoder")
                there = tqcache.transformers.load(path, media.qwen(), check=False)
                positions = tqcache.transformers.positions(path, N_BEHIND)
                with torch.no_grad():
                    rows = media.qwen()(input_ids=ids, past_key_values=there, position_ids=positions)
                media.Media.assert_near(self, rows.logits[0].numpy(), expected, bound,
                                        f"{what} transformers")

    def test_a_cache_comes_back_to_the_bit(self):
        path, before = self.saved(media.qwen_prompt())
        for one, other in zip(before, tq.load(path, qwen().language_model)):
            self.assertEqual(one.offset, other.offset)
            for a, b in zip(one.state, other.state):
                self.assertTrue(mx.array_equal(a, b).item())

    def test_windows(self):
        """Gemma 3's text, whose cache has rings."""
        config = gemma3.TextConfig(
            model_type="gemma3_text", hidden_size=64, num_hidden_layers=4, intermediate_size=64,
            num_attention_heads=2, head_dim=32, vocab_size=300, num_key_value_heads=1,
            sliding_window=32, sliding_window_pattern=2)
        model = gemma3.LanguageModel(config)
        mx.eval(model.parameters())
        ids = mx.array([media.text_ids(100, 7)])
        for n_read in (20, 77):
            made = caches.make_prompt_cache(model)
            model(ids[:, :n_read], cache=made)
            tq.save(self.folder / "windows.tqkv", made, ids[0, :n_read].tolist(), config=None, force=True)
            loaded = tq.load(self.folder / "windows.tqkv", model)
            self.assertEqual([type(layer) for layer in loaded], [type(layer) for layer in made])
            for i in range(n_read, 100):  # further than a window
                rows = [model(ids[:, i:i + 1], cache=cache).logits for cache in (made, loaded)]
                self.assertTrue(mx.array_equal(*rows).item(), f"token {i} behind {n_read}")

    def test_what_cannot_go_is_refused(self):
        prompt = media.qwen_prompt()
        _, made = read(prompt)
        spans = tq.media_of(qwen(), arrays(prompt))
        with self.assertRaisesRegex(tqcache.UsageError, "no tokens"):
            tq.save(self.folder / "x.tqkv", made, media=spans)
        with self.assertRaisesRegex(tqcache.UnsupportedError, "layer 0: a ChunkedKVCache of mlx-vlm"):
            tq.save(self.folder / "x.tqkv", [caches.ChunkedKVCache(64)])
        self.assertFalse((self.folder / "x.tqkv").exists())


if __name__ == "__main__":
    support.main()
