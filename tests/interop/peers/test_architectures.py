"""Families of models against transformers: tiny models of random weights, as a Hugging Face folder and
as a GGUF file, in f32. Logits of every token, across the edge of windows, and behind a cache that was
saved and loaded."""

import importlib.util
import subprocess
import unittest
from functools import lru_cache

import numpy as np

import support

peer = support.need("hf_peer")
gguf = support.need("gguf")
import tiny_gguf  # noqa: E402: after it is known to be there
import tiny_models  # noqa: E402
import torch  # noqa: E402

N_TOKENS = 84
N_BEFORE = 81  # tokens in a saved cache; the others come after it
BOUND = 1e-3

# Families whose caches of transformers are taken; those whose keys are in pairs are refused.
OF_TRANSFORMERS = sorted((tiny_models.WINDOWED | tiny_models.HYBRID | {
    "olmoe", "granite4", "granitemoe", "seed_oss", "hunyuan", "ministral3", "glm4_moe",
    "deepseek_v2", "deepseek_v2_groups", "deepseek_v3", "deepseek_v3_equal"}) - {"cohere2"})
TO_TRANSFORMERS = ["qwen3", "glm4_moe", "deepseek_v2", "deepseek_v3", "deepseek_v3_equal",
                   "deepseek_v3_dense", "gemma3n", "gemma4", "gemma4_dense", "gemma4_moe"]
# Caches whose last tokens, recomputed, are as near as the bits of all others allow: weights of
# random experts are so close that an error may choose another expert.
WITHIN_LIMITS = ["qwen3", "deepseek_v3_dense", "gemma3n", "gemma4", "gemma4_dense"]
# Not exaone4: llama.cpp gives windows to models of 64 layers alone.
OF_LLAMA_CPP = ["gemma", "olmo2", "smollm3", "granite", "mixtral", "qwen2_moe", "glm4",
                "gpt_oss_mxfp4", "olmo3", "olmoe", "granite4", "granitemoe", "glm", "cohere",
                "cohere2", "seed_oss", "ernie4_5", "hunyuan", "ministral3", "qwen3_vl",
                "qwen2_5_vl", "glm4_moe", "glm4_moe_groups", "deepseek_v2", "deepseek_v3",
                "deepseek_v3_equal"]


@lru_cache
def model(name):
    return tiny_models.make(name)


@lru_cache
def folder(name):
    path = support.shared_folder() / name
    path.mkdir()
    tiny_models.save_folder(model(name), path, name in tiny_models.MXFP4)
    return path


@lru_cache
def gguf_file(name):
    path = support.shared_folder() / f"{name}.gguf"
    tiny_gguf.write(model(name), path, name in tiny_models.MXFP4)
    return path


def ids_of(count):
    return np.random.default_rng(5).integers(0, tiny_models.N_VOCAB, count).tolist()


@lru_cache
@torch.no_grad()
def expected(name, count):
    return model(name)(torch.tensor([ids_of(count)])).logits[0].numpy()


def forms(name):
    yield "folder", folder(name)
    if name not in tiny_models.HF_ONLY:
        yield "gguf", gguf_file(name)


def relative_errors(rows, reference):
    return np.linalg.norm(rows - reference, axis=1) / np.linalg.norm(reference, axis=1)


class Logits(support.PeerTest):
    def logits(self, path, prefill=(), steps=(), **files):
        """Logits of every token that the decoder takes, by a small program of the tests."""
        out = self.folder / "logits.f32"
        command = [support.options().logits, path, out]
        for flag, ids in (("--prefill", prefill), ("--steps", steps)):
            command += [flag, ",".join(map(str, ids))] if len(ids) > 0 else []
        for flag, file in files.items():
            command += [f"--{flag}", file]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return np.fromfile(out, "<f4").reshape(-1, tiny_models.N_VOCAB)

    def for_all(self, names, check):
        for name in names:
            for form, path in forms(name):
                with self.subTest(name=name, form=form):
                    worst = check(name, path)
                    print(f"  {name}, {form}: relative error {worst:.2e}", flush=True)

    def assert_near(self, rows, reference, bound=BOUND):
        errors = relative_errors(rows, reference)
        self.assertLess(errors.max(), bound, f"token {errors.argmax()}")
        return errors.max()


class Architectures(Logits):
    def test_logits(self):
        """A prompt, and the same tokens one by one."""
        ids = ids_of(N_TOKENS)

        def check(name, path):
            reference = expected(name, N_TOKENS)
            worst = self.assert_near(self.logits(path, prefill=ids), reference)
            return max(worst, self.assert_near(self.logits(path, steps=ids), reference))
        self.for_all(tiny_models.FAMILIES, check)

    def test_logits_after_a_file(self):
        """Tokens behind a saved cache: the same bits as without the file."""
        ids = ids_of(N_TOKENS)

        def check(name, path):
            saved = self.folder / "saved.tqkv"
            through = self.logits(path, prefill=ids[:N_BEFORE], steps=ids[N_BEFORE:], save=saved)
            after = self.logits(path, steps=ids[N_BEFORE:], cache=saved)
            self.assertEqual(through[N_BEFORE:].tobytes(), after.tobytes())
            return self.assert_near(after, expected(name, N_TOKENS)[N_BEFORE:])
        self.for_all(tiny_models.FAMILIES, check)

    def test_long_prompts(self):
        """Several token blocks, windows that end within them, and what is packed of them."""
        ids = ids_of(600)

        def check(name, path):
            rows = self.logits(path, prefill=ids)
            return self.assert_near(rows, expected(name, 600), 2 * BOUND)
        self.for_all(["gemma2", "gemma3", "mistral", "qwen3_5", "gpt_oss", "smollm3", "olmo3",
                      "cohere2", "exaone4", "ministral3", "hunyuan", "deepseek_v3", "glm4_moe", "gemma3n",
                      "gemma4", "gemma4_dense"], check)

    def test_conversion(self):
        """Full attention is packed, everything else stays as it is."""
        ids = ids_of(600)

        def check(name, path):
            saved, packed = self.folder / "saved.tqkv", self.folder / "packed.tqkv"
            self.logits(path, prefill=ids[:597], save=saved)
            self.tqcache("convert", saved, packed, "--force", "--bits", 8)
            rows = self.logits(path, steps=ids[597:], cache=packed)
            return self.assert_near(rows, expected(name, 600)[597:], 0.05)
        self.for_all(["gemma3", "qwen3_next", "qwen3_5", "gpt_oss_all", "smollm3", "glm4"],
                     check)


    def test_turbo_windows(self):
        """Windows that begin in a packed block, and leave it: near the reference, and behind a file
        the same bits."""
        ids = ids_of(600)

        def check(name, path):
            saved, packed, again = (self.folder / f"{each}.tqkv" for each in ("a", "b", "c"))
            self.logits(path, prefill=ids[:515], save=saved)
            self.tqcache("convert", saved, packed, "--force", "--bits", 8, "--config", "windows=turbo")
            self.tqcache("verify", packed)
            through = self.logits(path, prefill=ids[515:518], steps=ids[518:540], cache=packed, save=again)
            after = self.logits(path, steps=ids[518:540], cache=again)
            self.assertEqual(through[3:].tobytes(), after.tobytes())
            return self.assert_near(through, expected(name, 600)[515:540], 0.1)
        self.for_all(["gemma2", "gemma3", "mistral", "qwen2_window", "gpt_oss_all"], check)


class Exchange(Logits):
    """Caches of transformers, whose windows are a token shorter and whose states are transposed."""

    def test_from_transformers(self):
        if importlib.util.find_spec("tqcache") is None:
            self.skipTest("NOT RUN: the Python package tqcache is missing")
        tool = peer.tool(support.options().source)
        ids = ids_of(N_TOKENS)
        for name in OF_TRANSFORMERS:
            with self.subTest(name=name):
                path = self.folder / "hf.safetensors"
                cache = peer.prefill(model(name), ids[:N_BEFORE])
                tool.save(cache, str(path), ids[:N_BEFORE], model(name).config)
                tqkv = self.convert(path, f"{name}.tqkv", "--bits", 16, "--model", folder(name))
                rows = self.logits(folder(name), steps=ids[N_BEFORE:], cache=tqkv)
                worst = self.assert_near(rows, expected(name, N_TOKENS)[N_BEFORE:])
                print(f"  {name}, a cache of transformers: relative error {worst:.2e}", flush=True)


    def test_to_transformers(self):
        """Caches of the decoder, dense and packed, that transformers goes on from as the decoder
        does."""
        if importlib.util.find_spec("tqcache") is None:
            self.skipTest("NOT RUN: the Python package tqcache is missing")
        tool = peer.tool(support.options().source)
        ids = ids_of(300)  # a token block is packed
        for name in TO_TRANSFORMERS:
            for bits in (16, 4):
                with self.subTest(name=name, bits=bits):
                    saved = self.folder / "saved.tqkv"
                    self.logits(folder(name), prefill=ids[:297], save=saved)
                    self.tqcache("verify", saved, "--model", folder(name))
                    packed = self.convert(saved, "packed.tqkv", "--bits", bits)
                    if name in WITHIN_LIMITS:
                        self.tqcache("verify", packed, "--model", folder(name))
                    back = self.convert(packed, "back.safetensors", "--to", "hf")
                    cache = tool.load(str(back))
                    rows = np.array(peer.logits_along(model(name), cache, ids[297:]))
                    reference = expected(name, 300)[297:]
                    if bits != 16:
                        reference = self.logits(folder(name), steps=ids[297:], cache=packed)
                    # The decoder takes products with codes of full attention in fewer bits.
                    worst = self.assert_near(rows, reference, BOUND if bits == 16 else 0.02)
                    print(f"  {name}, to transformers, {bits} bits: relative error {worst:.2e}",
                          flush=True)


class StatesOfLlamaCpp(Logits):
    """States of llama.cpp, which computed them from the same GGUF file: the probe of `convert -m`, and
    the tokens that follow; and the same state, exported again byte for byte."""

    def test_import(self):
        try:
            import llama_peer as llama

            library = llama.library()
        except (ImportError, OSError, RuntimeError) as error:
            raise unittest.SkipTest(str(error)) from error
        ids = ids_of(N_TOKENS)
        for name in OF_LLAMA_CPP:
            with self.subTest(name=name):
                path, state = gguf_file(name), self.folder / "state.ggsn"
                with llama.Context(llama.Model(library, path)) as context:
                    context.decode(ids[:N_BEFORE], 0)
                    context.save_session(state, ids[:N_BEFORE])
                tqkv = self.convert(state, f"{name}.tqkv", "--bits", 16, "--model", path)
                if name not in tiny_models.WINDOWED | tiny_models.MXFP4:
                    back = self.convert(tqkv, "back.ggsn", "--to", "llama-session", "-m", path)
                    self.assertEqual(back.read_bytes(), state.read_bytes())
                rows = self.logits(path, steps=ids[N_BEFORE:], cache=tqkv)
                # The state is in f16, and llama.cpp multiplies MXFP4 with activations of 8 bits. With
                # random weights either may choose another expert.
                bound = 0.1 if name in tiny_models.MXFP4 else 0.03
                worst = self.assert_near(rows, expected(name, N_TOKENS)[N_BEFORE:], bound)
                print(f"  {name}, a state of llama.cpp: relative error {worst:.2e}", flush=True)


if __name__ == "__main__":
    print(peer.versions(), flush=True)
    support.main()
