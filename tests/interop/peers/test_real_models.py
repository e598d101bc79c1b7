"""Models that people use, against transformers with the same GGUF file, widened to f32.

The files come from packages of PyPI (fetch_models.py). Token ids of many lines are compared, and the
most probable tokens behind prompts: transformers reads tqcache's tokens and gives its own logits at
each step, so that all steps are compared even if two tokens are equally good at one of them. All
prompts are compared with tools/check.sh --long, otherwise a third.
"""

import json
import subprocess
import time
import unittest
import unittest.mock
from functools import lru_cache
from pathlib import Path

import numpy as np
import support

transformers = support.need("transformers")
torch = support.need("torch")
gguf = support.need("gguf")
import fetch_models  # noqa: E402: after it is known that the test runs
import mixed_text  # noqa: E402
from tokenizers import pre_tokenizers  # noqa: E402

N_LINES = 10_000
N_TOKENS = 40
BOUND = 1e-3  # two tokens whose logits are nearer than this are equally good

PROMPTS = [
    "Gravity is",
    "The capital of France is Paris, and the capital of Italy is",
    "Once upon a time, in a village by the sea, there lived",
    "def fibonacci(n):\n    \"\"\"Returns the n-th number.\"\"\"\n",
    "To make a good cup of tea, first",
    "1, 1, 2, 3, 5, 8,",
    "Dear Sir or Madam,\n\nI am writing to",
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having "
    "nothing to do:",
    "The three most important inventions of the nineteenth century were",
    "#include <stdio.h>\n\nint main(void) {\n",
]


# transformers reads a file three times, and a vocabulary of 262,144 tokens takes ten seconds each time.
gguf.GGUFReader = lru_cache(gguf.GGUFReader)


# The reader cuts a file into millions of pieces, and pieces of a mapped one take twice as long.
def read_array(path, mode, dtype=np.uint8):
    assert mode == "r"
    return np.fromfile(path, dtype)


@lru_cache
def path_of(name):
    try:
        return fetch_models.fetch(name, support.options().models)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise unittest.SkipTest(str(error)) from error


@lru_cache
def lines():
    book = (support.options().source / "tests/data/alice.txt").read_text()
    return mixed_text.lines(N_LINES, book)


@lru_cache
def from_gguf(kind, path, **options):
    # transformers asks for accelerate here, but needs it only to spread a model over devices.
    with unittest.mock.patch("transformers.modeling_utils.is_accelerate_available",
                             return_value=True):
        with unittest.mock.patch("numpy.memmap", read_array):
            return kind.from_pretrained(str(path.parent), gguf_file=path.name, **options)


class RealModel(support.PeerTest):
    def tokens_of(self, name, prompt):
        answer = json.loads(self.tqcache("generate", "-m", path_of(name), "-p", prompt, "-n", N_TOKENS,
                                         "--temperature", 0, "--json"))
        return answer["token_ids"]

    def compare_greedy(self, name):
        path = path_of(name)
        tokenizer = from_gguf(transformers.AutoTokenizer, path)
        model = from_gguf(transformers.AutoModelForCausalLM, path, dtype=torch.float32).eval()
        losses = []
        for prompt in PROMPTS if support.IS_LONG else PROMPTS[3::3]:
            tokens = self.tokens_of(name, prompt)
            before = ours(path, [prompt])[0]
            self.assertEqual(before[-4:], tokenizer(prompt).input_ids[-4:])
            with torch.no_grad():
                logits = model(torch.tensor([[*before, *tokens[:-1]]])).logits[0]
            losses += support.losses_of(logits[len(before) - 1:].tolist(), tokens)
        same = sum(loss == 0 for loss in losses)
        print(f"  {name}: {same} of {len(losses)} tokens are transformers' own; "
              f"at most {max(losses):.2g} below its best logit", flush=True)
        self.assertGreater(len(losses), 200 if support.IS_LONG else 60)
        self.assertLessEqual(max(losses), BOUND)


def peak_of(pid):
    """The most memory that a process has had, in bytes; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            return max((1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM")),
                       default=0)
    except OSError:
        return 0


def ours(path, texts):
    done = subprocess.run([str(support.options().tokenize_lines), str(path)], check=True,
                          input=json.dumps(texts), capture_output=True, text=True)
    return [pair[0] for pair in json.loads(done.stdout)["texts"]]


class SmolLm2(RealModel):
    def test_tokens_of_lines(self):
        """The vocabulary has no token for 21 bytes; both leave such characters out."""
        path = path_of("smollm2")
        tokenizer = from_gguf(transformers.AutoTokenizer, path)
        # transformers gives every GGUF file GPT-2's steps; SmolLM2's own tokenizer.json has these.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False)])
        got, expected = ours(path, lines()), tokenizer(lines()).input_ids
        wrong = [i for i in range(N_LINES) if got[i] != expected[i]]
        print(f"  smollm2: {N_LINES} lines, {sum(map(len, expected))} ids, "
              f"{len(wrong)} lines differ", flush=True)
        for i in wrong[:3]:
            print(f"    {lines()[i]!r}\n    {got[i]}\n    {expected[i]}", flush=True)
        self.assertEqual(wrong, [])
        self.assertEqual(ours(path, ["a\x04b"])[0], tokenizer("a\x04b").input_ids)

    def test_greedy(self):
        self.compare_greedy("smollm2")

    def test_a_cache_is_kept_and_verified(self):
        path, book = path_of("smollm2"), support.options().source / "tests/data/alice.txt"
        self.tqcache("prefill", "-m", path, "--file", book, "--max-tokens", 600,
                     "-o", self.folder / "a.tqkv")
        small = self.convert(self.folder / "a.tqkv", "b.tqkv", "--bits", 4)
        back = self.convert(self.convert(self.folder / "a.tqkv", "c.npz"), "d.tqkv", "-m", path)
        for file in (self.folder / "a.tqkv", small, back):
            self.tqcache("verify", file, "-m", path)


    def test_a_state_of_llama_cpp(self):
        """llama.cpp multiplies quantized weights with activations of 8 bits: the probe allows for it."""
        llama = support.need("llama_peer")
        path = path_of("smollm2")
        try:
            model = llama.Model(llama.library(), path)
        except (ImportError, OSError) as error:
            raise unittest.SkipTest(str(error)) from error
        book = (support.options().source / "tests/data/alice.txt").read_text()[:3000]
        ids = ours(path, [book])[0][:300]
        with llama.Context(model) as context:
            context.decode(ids, 0)
            context.save_session(self.folder / "a.ggsn", ids)
        for flags in (), ("--bits", 16):
            made = self.convert(self.folder / "a.ggsn", "a.tqkv", "-m", path, *flags)
            self.tqcache("generate", "-m", path, "-c", made, "-p", " And", "-n", 3)


class Gemma3(RealModel):
    def test_greedy(self):
        self.compare_greedy("gemma3")

    def test_memory(self):
        """Its vocabulary has 262,144 tokens. Mapped weights count, as they may all be in memory."""
        path, book = path_of("gemma3"), support.options().source / "tests/data/alice.txt"
        saved = self.folder / "a.kv"
        self.tqcache("prefill", "-m", path, "--file", book, "--max-tokens", 2000, "-o", saved)
        most = path.stat().st_size + saved.stat().st_size + (300 << 20)
        done = subprocess.Popen([str(support.options().tqcache), "generate", "-m", str(path), "-c",
                                 str(saved), "-p", " And so", "-n", "8"],
                                stdout=subprocess.DEVNULL)
        peak = 0
        while done.poll() is None:  # getrusage() would count this process, too, as of before exec()
            peak = max(peak, peak_of(done.pid))
            time.sleep(0.005)
        self.assertEqual(done.returncode, 0)
        self.assertGreater(peak, path.stat().st_size // 2)
        print(f"  gemma3: {peak >> 20} MiB at most, {most >> 20} allowed", flush=True)
        self.assertLessEqual(peak, most)


if __name__ == "__main__":
    support.main()
