#pragma once
// tokenizer/symbols.h: the smallest tokens that a piece of text is made of, before any are merged.
//
// A byte-level vocabulary has a token for every byte. One of SentencePiece has tokens for
// characters; a character without one becomes its bytes, where the vocabulary has tokens for
// bytes, and otherwise the unknown token.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tqcache/base/result.h"
#include "tqcache/tokenizer/merge_table.h"
#include "tqcache/tokenizer/vocabulary.h"

namespace tqcache::tokenizer {

// What a character without a token becomes.
struct UnknownRule {
  bool as_bytes = false;
  std::optional<std::int32_t> token;  // used unless as_bytes
  bool joined = false;                // one token for a run of such characters
};

class Symbols {
 public:
  // Errors:   kCorrupt when a byte has no token.
  static Result<Symbols> of_bytes(const Vocabulary& vocabulary);
  // Errors:   kCorrupt when a character would have neither a token, nor tokens of its bytes, nor
  //           the unknown token.
  static Result<Symbols> of_characters(const Vocabulary& vocabulary, const UnknownRule& unknown);

  // Puts the symbols of the piece into `scratch`, in the place of what it held.
  // Requires: piece shorter than 2^32 - 1 bytes, and UTF-8 unless the symbols are bytes; the
  //           vocabulary that they were made of.
  void split(std::string_view piece, const Vocabulary& vocabulary,
             MergeTable::Scratch& scratch) const;

 private:
  Symbols(bool by_bytes, const UnknownRule& unknown) : by_bytes_(by_bytes), unknown_(unknown) {}

  std::optional<std::int32_t> find(std::string_view character, const Vocabulary& vocabulary) const;

  void add_unknown(std::string_view character, bool follows_unknown,
                   MergeTable::Scratch& scratch) const;

  bool by_bytes_;
  UnknownRule unknown_;
  std::array<std::int32_t, 256> ids_{};   // of the byte as a character, or else as a byte
  std::array<bool, 256> is_character_{};  // ASCII characters that have a token of their own
};

}  // namespace tqcache::tokenizer
