#pragma once
// model/tokenizer.h: text to token ids and back, byte-level BPE. Safe for untrusted input.
//
// Text is first cut at special tokens, then by a regular expression into pieces, and each piece's
// bytes are merged in the order of the vocabulary's merge list. Nothing is added at the ends.
//
// Source: openai/gpt-2 encoder.py (byte alphabet, merges); huggingface/tokenizers for the parts
// of tokenizer.json.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/hash.h"
#include "tqcache/base/result.h"
#include "tqcache/tensors/gguf.h"

namespace tqcache::model {

struct TokenizerSpec;

class Tokenizer {
 public:
  // Errors: kUnsupported (not byte-level BPE; an unknown pre-tokenizer; any part of the file that
  //         would change ids and is not done here), kCorrupt, kTooLarge.
  static Result<Tokenizer> from_gguf(const tensors::Gguf& file);

  // The two configs say where generation ends; empty when there is none.
  // Errors: as from_gguf(); the message names which of the three it is.
  static Result<Tokenizer> from_json(ByteView tokenizer_json, ByteView tokenizer_config_json,
                                     ByteView generation_config_json = {});

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // What a control token like <|im_end|>, spelled out in the text, means: the token, or just its
  // characters. (Words that the vocabulary adds without making them control tokens are found
  // either way.)
  enum class Special { kParse, kAsText };

  // Threads: safe to call from several.
  // Errors:  kCorrupt when the text is not UTF-8; kTooLarge when the pre-tokenizer's expression
  //          passes its match limit, or the text has more than 1 GiB.
  Result<std::vector<std::int32_t>> encode(std::string_view text, Special special) const;

  // The bytes of one token, which may be a part of a character. Special tokens give their name.
  // Ids outside the vocabulary have no bytes: a model's matrices may have rows to spare.
  const std::string& token_bytes(std::int32_t id) const;
  // Whether the token is a control token.
  bool is_special(std::int32_t id) const;
  // The bytes of all tokens, one after another.
  std::string decode(std::span<const std::int32_t> ids) const;

  std::int64_t vocab_size() const;
  // By name ("<|im_end|>"), or by the bytes of an ordinary token (" the").
  std::optional<std::int32_t> find_token(std::string_view text) const;
  // Generation ends at any of these. Ascending.
  std::vector<std::int32_t> end_tokens() const;
  // Of all that decides ids. Spec: docs/format.md §Fingerprints.
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

}  // namespace tqcache::model
