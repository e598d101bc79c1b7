"""Token ids against those of transformers, for each family of tokenizers and both forms of its file.

The tokenizers are trained here (tokenizer_families.py), and the texts are made here (mixed_text.py).
transformers reads the same tokenizer.json; a GGUF file has to give the same ids as that.
"""

import json
import subprocess
import unicodedata
from functools import lru_cache

import support

transformers = support.need("transformers")
support.need("sentencepiece")
import mixed_text  # noqa: E402: after it is known that the test runs
import tokenizer_families  # noqa: E402

N_LINES = 10_000 if support.IS_LONG else 2_500


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


if __name__ == "__main__":
    support.main()
