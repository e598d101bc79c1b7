"""Caches of models that see images: from transformers, packed or dense, and back, and the text behind
the images by the decoder of tqcache. Tiny models of random weights, in f32."""

import inspect
import subprocess
from functools import lru_cache

import numpy as np

import support

peer = support.need("hf_peer")
support.need("tqcache")
import tiny_models  # noqa: E402: after it is known to be there
import torch  # noqa: E402
import tqcache  # noqa: E402
import tqcache.transformers as tq  # noqa: E402
import transformers  # noqa: E402

IMAGE, VIDEO = 301, 302
SHAPE = dict(vocab_size=tiny_models.N_VOCAB, hidden_size=128, intermediate_size=96, num_hidden_layers=4,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
             rms_norm_eps=1e-5, pad_token_id=0, bos_token_id=0, eos_token_id=0)
N_BEHIND = 6  # tokens of text that come after the saved cache


def text_ids(count, seed):
    return np.random.default_rng(seed).integers(1, 290, count).tolist()


@lru_cache
def qwen():
    """Qwen2.5-VL, whose images have rows and columns (M-RoPE)."""
    text = dict(SHAPE, rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                            mrope_section=[4, 6, 6]))
    vision = dict(depth=2, hidden_size=32, intermediate_size=64, num_heads=2, out_hidden_size=128,
                  patch_size=4, spatial_merge_size=2, temporal_patch_size=2, in_channels=3,
                  window_size=16, fullatt_block_indexes=[1])
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, image_token_id=IMAGE,
                                           video_token_id=VIDEO, vision_start_token_id=303,
                                           vision_end_token_id=304)
    return made(transformers.Qwen2_5_VLForConditionalGeneration, config)


@lru_cache
def gemma():
    """Gemma 3, whose images count as tokens do, and see themselves as a whole."""
    text = dict(SHAPE, head_dim=32, sliding_window=64, query_pre_attn_scalar=32, num_hidden_layers=6)
    vision = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                  image_size=32, patch_size=4)
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, image_token_id=IMAGE,
                                       mm_tokens_per_image=16, boi_token_index=303,
                                       eoi_token_index=304)
    return made(transformers.Gemma3ForConditionalGeneration, config)


def made(kind, config):
    config._attn_implementation = "eager"
    torch.manual_seed(5)
    model = kind(config)
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            if "language_model" in key:
                tiny_models.fill(key, tensor)
    return model.eval()


def qwen_prompt(n_text=40, seed=1):
    """Two images of different sizes among text, as the processor gives them."""
    torch.manual_seed(seed)
    grid = torch.tensor([[1, 4, 6], [1, 8, 4]])  # patches; four of them make a token
    patches = torch.randn(int(grid.prod(-1).sum()), 3 * 2 * 4 * 4)
    ids = [*text_ids(7, seed), 303, *[IMAGE] * 6, 304, *text_ids(5, seed + 1),
           303, *[IMAGE] * 8, 304, *text_ids(n_text, seed + 2)]
    ids = torch.tensor([ids])
    return dict(input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=patches,
                image_grid_thw=grid, mm_token_type_ids=(ids == IMAGE).int())


def gemma_prompt(n_text=40, seed=1):
    torch.manual_seed(seed)
    ids = [*text_ids(7, seed), 303, *[IMAGE] * 16, 304, *text_ids(n_text, seed + 2)]
    ids = torch.tensor([ids])
    return dict(input_ids=ids, attention_mask=torch.ones_like(ids),
                pixel_values=torch.randn(1, 3, 32, 32), token_type_ids=(ids == IMAGE).int())


def cut(prompt, n):
    """The first `n` tokens: all media are among them."""
    return {key: value[:, :n] if value.dim() == 2 and value.shape[0] == 1 else value
            for key, value in prompt.items()}


@torch.no_grad()
def read(model, prompt):
    known = inspect.signature(model.forward).parameters
    return model(**{key: value for key, value in prompt.items() if key in known}, use_cache=True)


@lru_cache
def text_folder(name):
    """The text model of either, in a folder that the decoder of tqcache knows."""
    path = support.shared_folder() / f"text-of-{name}"
    path.mkdir()
    if name == "gemma":
        config = gemma().config.text_config
        text = transformers.Gemma3ForCausalLM(config)
        source = gemma()
    else:
        source = qwen()
        rope = dict(rope_type="default", rope_theta=10000.0)
        text = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SHAPE, rope_parameters=rope))
    text.model.load_state_dict(source.model.language_model.state_dict())
    text.lm_head.load_state_dict(source.lm_head.state_dict())
    tiny_models.save_folder(text.eval(), path)
    return path


CASES = [("qwen", qwen, qwen_prompt), ("gemma", gemma, gemma_prompt)]


class Media(support.PeerTest):
    def saved(self, name, model, prompt, config=None, **options):
        path = self.folder / f"{name}.tqkv"
        n = prompt["input_ids"].shape[1] - N_BEHIND
        before = cut(prompt, n)
        cache = read(model(), before).past_key_values
        tq.save(cache, path, input_ids=before["input_ids"], config=config,
                identity=tqcache.Identity.of_model(text_folder(name)),
                media=tq.media_of(model(), before), force=True, **options)
        return path, cache

    def logits(self, name, path, steps):
        out = self.folder / "logits.f32"
        done = subprocess.run([support.options().logits, text_folder(name), out, "--cache", path,
                               "--steps", ",".join(map(str, steps))], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return np.fromfile(out, "<f4").reshape(-1, tiny_models.N_VOCAB)

    def assert_near(self, rows, reference, bound, what):
        errors = np.linalg.norm(rows - reference, axis=1) / np.linalg.norm(reference, axis=1)
        print(f"  {what}: relative error {errors.max():.2e}", flush=True)
        self.assertLess(errors.max(), bound)

    def test_what_is_told(self):
        path, _ = self.saved("qwen", qwen, qwen_prompt())
        with tqcache.open(path) as file:
            spans = file.media
            self.assertEqual([(span.kind, span.begin, span.n_tokens, span.placeholder) for span in spans],
                             [("image", 8, 6, IMAGE), ("image", 21, 8, IMAGE)])
            self.assertEqual(spans[0].coordinates.tolist(),
                             [[8] * 6, [8, 8, 8, 9, 9, 9], [8, 9, 10] * 2])
            self.assertEqual([span.next_position for span in spans], [11, 22])
            self.assertEqual(file.next_position, file.n_tokens - 7)
            self.assertEqual(len({span.id for span in spans}), 2)
            self.assertTrue((file.tokens[8:14] < -1).all())
        self.assertEqual(tq.tokens(path).tolist(),
                         cut(qwen_prompt(), qwen_prompt()["input_ids"].shape[1] - N_BEHIND)
                         ["input_ids"].tolist())
        self.assertIn("image, tokens 8 to 13", self.tqcache("info", path))
        self.tqcache("verify", path, "--model", text_folder("qwen"))

    def test_another_image_has_other_tokens(self):
        tokens = []
        for seed in (1, 1, 2):
            prompt = qwen_prompt(seed=1)
            prompt["pixel_values"] = qwen_prompt(seed=seed)["pixel_values"]
            path, _ = self.saved("qwen", qwen, prompt)
            with tqcache.open(path) as file:
                tokens.append(file.tokens.tolist())
        self.assertEqual(tokens[0], tokens[1])
        differ = [i for i, (a, b) in enumerate(zip(tokens[0], tokens[2])) if a != b]
        self.assertEqual(differ, [*range(8, 14), *range(21, 29)])

    def test_text_goes_on_in_the_decoder(self):
        """The decoder of tqcache reads text behind images whose keys and values transformers made."""
        for name, model, make in CASES:
            for n_text in (40, 700):
                prompt = make(n_text)
                expected = read(model(), prompt).logits[0, -N_BEHIND:].numpy()
                steps = prompt["input_ids"][0, -N_BEHIND:].tolist()
                for config, bound in ((None, 1e-4), ("k=mse:8,v=mse:8,sink=0", 0.1)):
                    path, _ = self.saved(name, model, prompt, config)
                    rows = self.logits(name, path, steps)
                    self.assert_near(rows, expected, bound, f"{name}, {n_text} tokens, {config}")

    def test_text_goes_on_in_transformers(self):
        for name, model, make in CASES:
            prompt = make()
            expected = read(model(), prompt).logits[0, -N_BEHIND:].numpy()
            path, cache = self.saved(name, model, prompt)
            loaded = tq.load(path, model(), check=False)
            for before, after in zip(peer.tensors_of(cache).values(), peer.tensors_of(loaded).values()):
                self.assertTrue(torch.equal(before, after))
            ids = prompt["input_ids"][:, -N_BEHIND:]
            more = {"position_ids": tq.positions(path, N_BEHIND)} if name == "qwen" else {}
            with torch.no_grad():
                rows = model()(input_ids=ids, past_key_values=loaded, **more).logits[0].numpy()
            self.assert_near(rows, expected, 1e-4, f"{name} in transformers")

    def test_there_and_back_by_a_file_of_safetensors(self):
        for name, model, make in CASES:
            path, _ = self.saved(name, model, make())
            there = self.convert(path, f"{name}.safetensors", "--to", "hf")
            back = self.convert(there, f"{name}-back.tqkv", "--bits", 16)
            with tqcache.open(path) as first, tqcache.open(back) as second:
                self.assertEqual(first.tokens.tolist(), second.tokens.tolist())
                self.assertEqual(first.info()["media"], second.info()["media"])

    def test_a_store_finds_what_was_shown(self):
        store = f"dir:{self.folder}/store"
        prompt = qwen_prompt(700)
        path, _ = self.saved("qwen", qwen, prompt)
        other = dict(prompt, pixel_values=prompt["pixel_values"] + 1)
        path_of_other, _ = self.saved("qwen", qwen, other)
        other_file = self.folder / "other.tqkv"
        path_of_other.rename(other_file)
        path, _ = self.saved("qwen", qwen, prompt)
        self.tqcache("store", "put", path, "--store", store, "--name", "first")
        self.tqcache("store", "put", other_file, "--store", store, "--name", "second")
        for name, file in (("first", path), ("second", other_file)):
            fetched = self.folder / f"{name}-fetched.tqkv"
            self.tqcache("store", "get", name, "--store", store, "-o", fetched)
            with tqcache.open(file) as before, tqcache.open(fetched) as after:
                self.assertEqual(before.content_digest, after.content_digest)
        self.tqcache("store", "check", "--store", store)


if __name__ == "__main__":
    support.main()
