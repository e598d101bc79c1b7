"""Token ids against those of transformers, for each family of tokenizers and both forms of its file.

The tokenizers are trained here (tokenizer_families.py), and the texts are made here (mixed_text.py).
transformers reads the same tokenizer.json; a GGUF file has to give the same ids as that.
"""

import json
import subprocess
import unicodedata
from functools import lru_cache
from pathlib import Path

import support

transformers = support.need("transformers")
support.need("sentencepiece")
import mixed_text  # noqa: E402: after it is known that the test runs
import tokenizer_families  # noqa: E402

N_LINES = 10_000 if support.IS_LONG else 1_000


@lru_cache
def book():
    return (support.options().source / "tests/data/alice.txt").read_text()


@lru_cache
def lines():
    return mixed_text.lines(N_LINES, book())


@lru_cache
def corpus():
    """Other lines than those that are compared."""
    return book().splitlines() + mixed_text.lines(2000, book(), seed=1)


def folder_of(family):
    folder = support.shared_folder() / family.name
    return folder if folder.exists() else family.write(folder)


@lru_cache
def byte_level_families():
    return [make(corpus()) for make in tokenizer_families.BYTE_LEVEL]


@lru_cache
def sentencepiece_families():
    return [make(support.shared_folder(), corpus()) for make in tokenizer_families.SENTENCEPIECE]


def ours(model, texts):
    done = subprocess.run([str(support.options().tokenize_lines), str(model)], check=True,
                          input=json.dumps(texts), capture_output=True, text=True)
    return json.loads(done.stdout)


def theirs(folder, texts):
    """[ids, text again] by transformers. A text that is decoded gets no cosmetic changes."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(str(folder))
    all_ids = tokenizer(texts).input_ids
    return [[ids, tokenizer.decode(ids, clean_up_tokenization_spaces=False)] for ids in all_ids]


class Tokenizers(support.PeerTest):
    def assert_same(self, got, expected, texts, what):
        wrong = [i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b]
        n_ids = sum(len(ids) for ids in expected)
        print(f"  {what}: {len(texts)} texts, {n_ids} ids, {len(wrong)} texts differ", flush=True)
        for i in wrong[:3]:
            print(f"    {texts[i]!r}\n    {got[i]}\n    {expected[i]}", flush=True)
        self.assertEqual(len(wrong), 0, what)

    def compare(self, family):
        folder, texts = folder_of(family), lines()
        expected = theirs(folder, texts)
        ids = [pair[0] for pair in expected]
        self.assertGreater(len({i for line in ids for i in line}), 1000, "few tokens are used")
        answer = ours(folder, texts)
        self.assert_same([pair[0] for pair in answer["texts"]], ids, texts,
                         f"{family.name}, tokenizer.json")
        return folder, answer, expected


class ByteLevel(Tokenizers):
    def test_same_ids_and_text(self):
        for family in byte_level_families():
            with self.subTest(family=family.name):
                _, answer, expected = self.compare(family)
                self.assert_same([pair[1] for pair in answer["texts"]],
                                 [pair[1] for pair in expected], lines(), f"{family.name}, decoded")

    def test_same_ids_from_gguf(self):
        """A GGUF file names no normalizer, so texts are given in normal form."""
        for family in byte_level_families():
            with self.subTest(family=family.name):
                texts = lines()
                if family.normalizes:
                    texts = [unicodedata.normalize("NFC", text) for text in texts]
                folder = folder_of(family)
                answer = ours(folder / "model.gguf", texts)
                self.assert_same([pair[0] for pair in answer["texts"]],
                                 [pair[0] for pair in theirs(folder, texts)], texts,
                                 f"{family.name}, GGUF")


class SentencePiece(Tokenizers):
    def test_same_ids(self):
        for family in sentencepiece_families():
            with self.subTest(family=family.name):
                self.compare(family)

    def gguf_texts(self, family):
        """Where words of the file hold spaces, without texts that spell one with its mark: transformers'
        words are spelled that way."""
        if family.name != "gemma":
            return lines()
        return [text for text in lines() if tokenizer_families.MARK not in text]

    def expected_of_gguf(self, family, texts):
        if family.of_gguf is None:
            return [pair[0] for pair in theirs(folder_of(family), texts)]
        folder = support.shared_folder() / f"{family.name}-gguf"
        folder.mkdir()
        family.of_gguf.save(str(folder / "tokenizer.json"))
        return [pair[0] for pair in theirs(folder, texts)]

    def test_same_ids_from_gguf(self):
        for family in sentencepiece_families():
            with self.subTest(family=family.name):
                texts = self.gguf_texts(family)
                self.assertGreater(len(texts), 0.9 * N_LINES)
                answer = ours(folder_of(family) / "model.gguf", texts)
                self.assert_same([pair[0] for pair in answer["texts"]],
                                 self.expected_of_gguf(family, texts), texts,
                                 f"{family.name}, GGUF")


class LlamaCpp(Tokenizers):
    """GGUF files without keys that older converters did not write: llama.cpp's ids."""

    @classmethod
    def setUpClass(cls):
        support.need("gguf")
        support.need("xllamacpp")
        import llama_peer
        cls.peer, cls.lib = llama_peer, llama_peer.library()

    def write(self, keys, path):
        """A model of one layer, with zeros: llama.cpp reads no vocabulary alone."""
        import gguf
        import numpy as np
        n_tokens = len(keys["tokenizer.ggml.tokens"])
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_block_count(1)
        writer.add_context_length(256)
        writer.add_embedding_length(32)
        writer.add_feed_forward_length(32)
        writer.add_head_count(1)
        writer.add_layer_norm_rms_eps(1e-5)
        for key, value in keys.items():
            if key == "general.architecture":
                continue
            add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string,
                   list: writer.add_array}[type(value)]
            add(key, value)
        for name, *shape in (("token_embd", n_tokens, 32), ("output_norm", 32),
                             *((f"blk.0.{name}", 32) for name in ("attn_norm", "ffn_norm")),
                             *((f"blk.0.{name}", 32, 32) for name in (
                                 "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up",
                                 "ffn_down"))):
            writer.add_tensor(f"{name}.weight", np.zeros(shape, dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def compare_without(self, family, absent, changed=()):
        keys = {key: value for key, value in family.gguf.items() if key not in absent}
        keys.update(changed)
        path = Path(support.shared_folder()) / f"{family.name}-old.gguf"
        self.write(keys, path)
        texts = [text for text in lines()[:500] if "\0" not in text]
        answer = ours(path, texts)
        model = self.peer.Model(self.lib, path)
        self.assert_same([pair[0] for pair in answer["texts"]], [model.tokenize(t) for t in texts],
                         texts, f"{family.name} without {', '.join(absent)}, llama.cpp")

    def test_byte_level(self):
        """No pre-tokenizer, no types; the name of an end token makes it one."""
        family = tokenizer_families.gpt2(corpus())
        for absent in (["tokenizer.ggml.pre"], ["tokenizer.ggml.pre", "tokenizer.ggml.token_type"]):
            with self.subTest(absent=absent):
                self.compare_without(family, absent)

    def test_sentencepiece(self):
        """No types; whole numbers as scores; a number that is no token's."""
        family = tokenizer_families.llama2(support.shared_folder(), corpus())
        self.compare_without(family, ["tokenizer.ggml.pre", "tokenizer.ggml.token_type"],
                             {"tokenizer.ggml.eos_token_id": 2 ** 32 - 1})
        scores = [round(score) for score in family.gguf["tokenizer.ggml.scores"]]
        self.compare_without(family, ["tokenizer.ggml.token_type"],
                             {"tokenizer.ggml.scores": scores})


class Categories(support.PeerTest):
    def test_every_character_has_the_category_that_tokenizers_gives_it(self):
        """A character is split off where it has the category. Otherwise it and the letter behind it
        are one piece, whose last byte and letter are merged."""
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocab = {letter: i for i, letter in enumerate(alphabet)}
        # All bytes that end a character of several bytes.
        tails = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
                 .pre_tokenize_str(chr(0x80 + i))[0][0][-1] for i in range(64)]
        merges = [(tail, "a") for tail in tails]
        for left, right in merges:
            vocab[left + right] = len(vocab)
        # Up to the Chinese ones are most scripts and signs, and some of every category.
        last = 0x32000 if support.IS_LONG else 0x3100
        characters = [c for c in range(0x80, last) if not 0xD800 <= c < 0xE000]
        text = "".join(f"{chr(c)}a\n" for c in characters)
        for category in ("L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mc", "N", "Nd", "Nl", "No", "P",
                         "Pd", "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs"):
            with self.subTest(category=category):
                tokenizer = Tokenizer(models.BPE(vocab, merges))
                tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
                    pre_tokenizers.Split(Regex(r"\n"), "isolated"),
                    pre_tokenizers.Split(Regex(r"\p{%s}" % category), "isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
                tokenizer.decoder = decoders.ByteLevel()
                folder = Path(support.shared_folder()) / f"category-{category}"
                folder.mkdir()
                tokenizer.save(str(folder / "tokenizer.json"))
                expected = tokenizer.encode(text).ids
                got = ours(folder, [text])["texts"][0][0]
                # Each character that is not split off has one id less.
                n_split = len(expected) - len(text.encode()) + len(characters)
                self.assertGreater(n_split, 0)
                self.assertEqual(len(got), len(expected))
                self.assertTrue(got == expected, "another character is split off")


if __name__ == "__main__":
    support.main()
