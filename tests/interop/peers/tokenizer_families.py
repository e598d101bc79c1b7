"""Tokenizers of the families that tqcache reads, trained on a text of the project.

Each has the steps, the special tokens and the settings of its family's published tokenizer; only the
vocabulary is small and our own. A family is written as a folder with tokenizer.json, and as the
metadata of a GGUF file, as llama.cpp's converter writes it.
"""

import json
import struct

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

N_TOKENS = 3000
MARK = "\u2581"

GPT2 = None  # ByteLevel's own expression
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
          r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


O200K = TEKKEN.replace(r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|") \
    .replace(r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|",
             r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|")
SEED_CODER = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}"
              r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+")
MINICPM5 = QWEN2.replace(r"|\p{N}|", r"|\p{N}+|")
DEEPSEEK_CODER = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"]


class Family:
    """A tokenizer of huggingface/tokenizers and the keys of a GGUF file that mean the same."""

    def __init__(self, name, tokenizer, gguf, normalizes=False, of_gguf=None):
        self.name, self.tokenizer, self.gguf = name, tokenizer, gguf
        self.normalizes = normalizes  # which a GGUF file does not say
        self.of_gguf = of_gguf  # what the GGUF file means, where that is something else

    def write(self, folder):
        folder.mkdir()
        self.tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "model.gguf").write_bytes(gguf_file(self.gguf))
        return folder


# GGUF

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9


def _string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value):
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", U32, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    kind = {str: STRING, int: I32, float: F32}[type(value[0])]
    head = struct.pack("<IIQ", ARRAY, kind, len(value))
    if kind == STRING:
        return head + b"".join(map(_string, value))
    return head + struct.pack(f"<{len(value)}{'f' if kind == F32 else 'i'}", *value)


def gguf_file(metadata):
    keys = {"general.architecture": "llama", **metadata}
    pairs = b"".join(_string(key) + _value(value) for key, value in keys.items())
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + pairs


# Byte-level BPE

def _byte_level(name, pre, pretokenizer, corpus, specials, words=(), normalizer=None, begin=None,
                ignore_merges=False, alphabet=None):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pretokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=N_TOKENS, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
                                  if alphabet is None else alphabet)
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in specials])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in words])
    steps = [processors.ByteLevel(trim_offsets=False)]
    if begin:
        steps.append(processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))]))
    tokenizer.post_processor = processors.Sequence(steps) if begin else steps[0]
    return Family(name, tokenizer, _byte_level_gguf(tokenizer, pre, begin), normalizes=bool(normalizer))


def _byte_level_gguf(tokenizer, pre, begin):
    saved = json.loads(tokenizer.to_str())
    added = {token["id"]: 3 if token["special"] else 4 for token in saved["added_tokens"]}
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    tokens = sorted(vocab, key=vocab.get)
    keys = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [added.get(i, 1) for i in range(len(tokens))],
            "tokenizer.ggml.merges": [" ".join(merge) for merge in saved["model"]["merges"]]}
    if begin:
        keys["tokenizer.ggml.bos_token_id"] = vocab[begin]
        keys["tokenizer.ggml.add_bos_token"] = True
    return keys


def _split(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2(corpus):
    return _byte_level("gpt2", "gpt-2", pre_tokenizers.ByteLevel(add_prefix_space=False), corpus,
                       ["<|endoftext|>"])


def llama3(corpus):
    return _byte_level("llama3", "llama-bpe", _split(LLAMA3), corpus,
                       ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
                       begin="<|begin_of_text|>", ignore_merges=True)


def qwen2(corpus):
    return _byte_level("qwen2", "qwen2", _split(QWEN2), corpus,
                       ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<think>", "</think>"],
                       normalizer=normalizers.NFC())


def qwen35(corpus):
    return _byte_level("qwen35", "qwen35", _split(QWEN35), corpus,
                       ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<think>", "</think>"],
                       normalizer=normalizers.NFC())


def tekken(corpus):
    return _byte_level("tekken", "tekken", _split(TEKKEN), corpus, ["<unk>", "<s>", "</s>", "[INST]",
                       "[/INST]"], begin="<s>", ignore_merges=True)


def smollm(corpus):
    steps = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                     pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return _byte_level("smollm", "smollm", steps, corpus,
                       ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])


def smollm_without_bytes(corpus):
    """SmolLM's vocabulary has tokens only for bytes of the text that it was trained on."""
    steps = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                     pre_tokenizers.ByteLevel(add_prefix_space=False)])
    text = [line for line in corpus if not any(ord(c) < 32 or ord(c) == 127 for c in line)]
    return _byte_level("smollm-without-bytes", "smollm", steps, text, ["<|endoftext|>"], alphabet=[])


def _steps(*patterns):
    return pre_tokenizers.Sequence([
        *(pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
          for pattern in patterns),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def phi4(corpus):
    return _byte_level("phi4", "dbrx", _split(LLAMA3), corpus, ["<|endoftext|>", "<|im_end|>"])


def phi4_mini(corpus):
    return _byte_level("phi4-mini", "gpt-4o", _split(O200K), corpus, ["<|endoftext|>", "<|end|>"])


def seed_coder(corpus):
    return _byte_level("seed-coder", "seed-coder", _split(SEED_CODER), corpus, ["<|endoftext|>"])


def minicpm5(corpus):
    return _byte_level("minicpm5", "minicpm5", _steps(r"\p{N}{1,3}", MINICPM5), corpus,
                       ["<s>", "<|im_end|>"], ignore_merges=True)


def deepseek_coder(corpus):
    return _byte_level("deepseek-coder", "deepseek-coder", _steps(*DEEPSEEK_CODER), corpus,
                       ["<|EOT|>"])


# SentencePiece

def _train_spm(folder, name, corpus, **settings):
    import sentencepiece
    text = folder / f"{name}.txt"
    text.write_text("\n".join(corpus))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / name), normalization_rule_name="identity",
        minloglevel=2, num_threads=1, **settings)
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.model"))


def _kind(spm, i):
    if spm.is_unknown(i):
        return 2
    if spm.is_control(i):
        return 3
    return 6 if spm.is_byte(i) else 5 if spm.is_unused(i) else 1


class Pieces:
    """What a SentencePiece model holds, with the words that a family adds behind it."""

    def __init__(self, spm, words=(), specials=()):
        self.texts = [spm.id_to_piece(i) for i in range(len(spm))]
        self.scores = [spm.get_score(i) for i in range(len(spm))]
        self.types = [4 if text in words else 3 if text in specials else _kind(spm, i)
                      for i, text in enumerate(self.texts)]

    def extend(self, texts, kind):
        self.texts += texts
        self.scores += [-1000.0] * len(texts)
        self.types += [kind] * len(texts)

    def vocab(self):
        return {text: i for i, text in enumerate(self.texts)}

    def merges(self, n):
        """Of the first n, as transformers makes them for tokenizer.json."""
        from transformers.convert_slow_tokenizer import generate_merges
        vocab = {text: i for i, text in enumerate(self.texts[:n])}
        return generate_merges(vocab, list(zip(self.texts[:n], self.scores)))

    def added_tokens(self, tokenizer, rstrip=()):
        for i, (text, kind) in enumerate(zip(self.texts, self.types)):
            token = AddedToken(text, normalized=False, rstrip=text in rstrip)
            if kind in (2, 3):
                tokenizer.add_special_tokens([token])
            elif kind == 4:
                tokenizer.add_tokens([token])
            assert tokenizer.token_to_id(text) == i, text

    def gguf(self, **keys):
        texts = [text.replace(MARK, " ") if kind == 4 else text
                 for text, kind in zip(self.texts, self.types)]
        return {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default",
                "tokenizer.ggml.tokens": texts, "tokenizer.ggml.scores": self.scores,
                "tokenizer.ggml.token_type": self.types,
                **{f"tokenizer.ggml.{key}": value for key, value in keys.items()}}


LLAMA_SETTINGS = dict(model_type="bpe", vocab_size=N_TOKENS, byte_fallback=True, split_digits=True,
                      allow_whitespace_only_pieces=True, remove_extra_whitespaces=False,
                      character_coverage=0.99, unk_id=0, bos_id=1, eos_id=2, pad_id=-1)


def _piece_bpe(pieces, n_merged, begin):
    model = models.BPE(vocab=pieces.vocab(), merges=pieces.merges(n_merged), unk_token="<unk>",
                       fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, pieces.texts.index(begin))])
    return tokenizer


def _decoder(strips):
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(content=" ", left=1)] if strips else []))


def _llama2(name, folder, corpus, more=(), rstrip=(), architecture="llama"):
    pieces = Pieces(_train_spm(folder, "llama2", corpus, **LLAMA_SETTINGS))
    n_merged = len(pieces.texts)
    pieces.extend(list(more), 3)
    tokenizer = _space_before_each(_piece_bpe(pieces, n_merged, "<s>"))
    pieces.added_tokens(tokenizer, rstrip)
    gguf = pieces.gguf(bos_token_id=1, eos_token_id=2, unknown_token_id=0, add_bos_token=True,
                       add_eos_token=False, add_space_prefix=True)
    return Family(name, tokenizer, {**gguf, "general.architecture": architecture})


def _space_before_each(tokenizer):
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    tokenizer.decoder = _decoder(True)
    return tokenizer


def llama2(folder, corpus):
    return _llama2("llama2", folder, corpus)


def phi3(folder, corpus):
    ends = ["<|assistant|>", "<|system|>", "<|end|>", "<|user|>"]
    family = _llama2("phi3", folder, corpus, ["<|endoftext|>", *ends], ["</s>", *ends], "phi3")
    family.tokenizer.post_processor = processors.TemplateProcessing(single="$A")
    family.gguf["tokenizer.ggml.add_bos_token"] = False
    return family


def mistral(folder, corpus):
    """As Mistral writes it since version 3: a space before the first word alone. Its GGUF file does
    not say so."""
    specials = ["[INST]", "[/INST]"]
    spm = _train_spm(folder, "mistral", corpus, control_symbols=specials, **LLAMA_SETTINGS)
    pieces = Pieces(spm)
    tokenizer = _piece_bpe(pieces, len(pieces.texts), "<s>")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme="first", split=False)
    tokenizer.decoder = _decoder(True)
    pieces.added_tokens(tokenizer)
    of_gguf = _space_before_each(_piece_bpe(pieces, len(pieces.texts), "<s>"))
    pieces.added_tokens(of_gguf)
    gguf = pieces.gguf(bos_token_id=1, eos_token_id=2, unknown_token_id=0, add_bos_token=True,
                       add_eos_token=False)
    return Family("mistral", tokenizer, gguf, of_gguf=of_gguf)


def gemma(folder, corpus):
    specials = ["<start_of_turn>", "<end_of_turn>"]
    words = ["\n\n", "\n\n\n", *(MARK * n for n in range(2, 32)), "<table>", "</table>"]
    spm = _train_spm(folder, "gemma", corpus, **{
        **LLAMA_SETTINGS, "add_dummy_prefix": False, "pad_id": 0, "eos_id": 1, "bos_id": 2,
        "unk_id": 3, "bos_piece": "<bos>", "eos_piece": "<eos>",
        "user_defined_symbols": specials + words})
    pieces = Pieces(spm, words, specials)
    tokenizer = _piece_bpe(pieces, len(pieces.texts), "<bos>")
    tokenizer.normalizer = normalizers.Replace(" ", MARK)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = _decoder(False)
    pieces.added_tokens(tokenizer)
    gguf = pieces.gguf(bos_token_id=2, eos_token_id=1, unknown_token_id=3, add_bos_token=True,
                       add_eos_token=False, add_space_prefix=False)
    return Family("gemma", tokenizer, gguf)


def _unigram_tokenizer(pieces, normalizer, pretokenizer):
    tokenizer = Tokenizer(models.Unigram(list(zip(pieces.texts, pieces.scores)), unk_id=2))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pretokenizer:
        tokenizer.pre_tokenizer = pretokenizer
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>",
                                                             special_tokens=[("</s>", 1)])
    pieces.added_tokens(tokenizer)
    return tokenizer


def _unigram(name, folder, corpus, normalizer, pretokenizer):
    spm = _train_spm(folder, name, corpus, model_type="unigram", vocab_size=N_TOKENS, pad_id=0,
                     eos_id=1, unk_id=2, bos_id=-1, character_coverage=0.99)
    pieces = Pieces(spm)
    tokenizer = _unigram_tokenizer(pieces, normalizer, pretokenizer)
    tokenizer.decoder = decoders.Metaspace(MARK, prepend_scheme="always")
    gguf = {**pieces.gguf(eos_token_id=1, unknown_token_id=2, add_bos_token=False,
                          add_eos_token=True, add_space_prefix=True,
                          remove_extra_whitespaces=True),
            "tokenizer.ggml.model": "t5"}
    return Family(name, tokenizer, gguf, of_gguf=_unigram_tokenizer(pieces, normalizers.Sequence(
        [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " "),
         normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]), None))


def t5(folder, corpus):
    """Words between white space, as T5's own tokenizer takes them."""
    return _unigram("t5", folder, corpus, None, pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(MARK, prepend_scheme="always")]))


def unigram(folder, corpus):
    """As transformers turns any other SentencePiece model into tokenizer.json."""
    return _unigram("unigram", folder, corpus, normalizers.Sequence(
        [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), MARK)]),
        pre_tokenizers.Metaspace(MARK, prepend_scheme="always"))


BYTE_LEVEL = [gpt2, llama3, qwen2, qwen35, tekken, smollm, smollm_without_bytes, phi4, phi4_mini,
              seed_coder, minicpm5, deepseek_coder]
SENTENCEPIECE = [llama2, phi3, mistral, gemma, t5, unigram]


def all_families(folder, corpus):
    return [*(make(corpus) for make in BYTE_LEVEL),
            *(make(folder, corpus) for make in SENTENCEPIECE)]
