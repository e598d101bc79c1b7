#pragma once
// tokenizer/tokenizer.h: text to token ids and back. Safe for untrusted input.
//
// Text is first cut at special tokens, then into words, and each word becomes tokens: by merging
// its bytes in the order of the vocabulary's merge list (byte-level BPE), its characters likewise
// (SentencePiece's BPE), or by the highest sum of scores (unigram).
//
// Source: openai/gpt-2 encoder.py (byte alphabet, merges); google/sentencepiece; llama.cpp
// src/llama-vocab.cpp for GGUF files; huggingface/tokenizers for the parts of tokenizer.json.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/bytes.h"
#include "tqcache/base/hash.h"
#include "tqcache/base/result.h"

namespace tqcache::tensors {
struct Gguf;  // tensors/gguf.h
}

namespace tqcache::tokenizer {

struct TokenizerSpec;

class Tokenizer {
 public:
  // Errors: kUnsupported (another kind of tokenizer; an unknown pre-tokenizer; any part of the
  //         file that would change ids and is not done here), kCorrupt, kTooLarge.
  static Result<Tokenizer> from_gguf(const tensors::Gguf& file);

  // The two configs say where generation ends, the first also how turns of a chat are written,
  // unless chat_template.jinja does. Empty when there is none.
  // Errors: as from_gguf(); the message names which of the files it is.
  static Result<Tokenizer> from_json(ByteView tokenizer_json, ByteView tokenizer_config_json,
                                     ByteView generation_config_json = {},
                                     ByteView chat_template_jinja = {});

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // What a control token like <|im_end|>, spelled out in the text, means: the token, or just its
  // characters. (Words that the vocabulary adds without making them control tokens are found
  // either way.)
  enum class Special { kParse, kAsText };

  // Which of the tokens that the vocabulary's files put at the ends of a text are added. A prompt,
  // which will be continued, has a beginning and no end.
  enum class Ends { kNone, kBegin, kBoth };

  struct TextRange {
    std::size_t begin;
    std::size_t end;
  };

  struct EncodeOptions {
    Special special = Special::kParse;
    Ends ends = Ends::kNone;
    // Bytes of the text in which control tokens are not found, even with kParse. Ascending, apart.
    std::span<const TextRange> plain{};
    bool at_beginning = true;  // whether the text begins here, or goes on after other tokens
  };

  // Threads: safe to call from several.
  // Errors:  kCorrupt when the text is not UTF-8; kTooLarge when the pre-tokenizer's expression
  //          passes its match limit, or the text has more than 1 GiB.
  Result<std::vector<std::int32_t>> encode(std::string_view text,
                                           const EncodeOptions& options) const;
  Result<std::vector<std::int32_t>> encode(std::string_view text, Special special) const;

  // The bytes of one token, which may be a part of a character. Special tokens give their name.
  // Ids outside the vocabulary have no bytes: a model's matrices may have rows to spare.
  const std::string& token_bytes(std::int32_t id) const;
  // Whether the token is a control token.
  bool is_special(std::int32_t id) const;
  // The bytes of all tokens, one after another. Where encoding puts a space before a text, one that
  // the text begins with is dropped.
  std::string decode(std::span<const std::int32_t> ids) const;

  std::int64_t vocab_size() const;
  // By name ("<|im_end|>"), or by the bytes of an ordinary token (" the").
  std::optional<std::int32_t> find_token(std::string_view text) const;
  // The token for the beginning of a text, whether or not texts get it.
  std::optional<std::int32_t> begin_token() const;
  // Whether Ends::kBegin adds it.
  bool adds_begin_token() const;
  // Whether decode() drops a first space.
  bool drops_first_space() const;
  // The Jinja text that the model's files write turns of a chat by; empty when they have none.
  const std::string& chat_template() const;
  // Generation ends at any of these. Ascending.
  std::vector<std::int32_t> end_tokens() const;
  // Of all that decides ids. Spec: docs/reference/format.md §Fingerprints.
  Sha256 fingerprint() const;

 private:
  struct State;
  class Encoder;
  explicit Tokenizer(std::unique_ptr<State> state);
  static Result<Tokenizer> build(TokenizerSpec spec);
  std::unique_ptr<State> state_;
};

// Ends a stream of token bytes at a character border: takes what is whole out of `pending` and
// gives it, as UTF-8, and leaves a character that is still incomplete (3 bytes at most) for the
// next call. Bytes that can never become a character come out as U+FFFD.
std::string take_whole_characters(std::string& pending);

}  // namespace tqcache::tokenizer
