#pragma once
// tokenizer/vocabulary.h: the tokens of a model, by id and by bytes. Safe for untrusted input.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/tokenizer/work_budget.h"

namespace tqcache::tokenizer {

inline constexpr std::int64_t kMaxVocabSize = 1 << 20;    // the largest today have 2^18
inline constexpr std::size_t kMaxTokenBytes = 64 * 1024;  // a name or the bytes of a token
inline constexpr std::size_t kMaxMerges = 4 * 1024 * 1024;

// The numbers are part of the fingerprint.
enum class TokenKind : std::uint8_t {
  kOrdinary = 0,     // produced by merging
  kControl = 1,      // a marker like <|im_end|>, never made from text unless the caller asks for it
  kUserDefined = 2,  // a word that is split off from the text before merging
  kUnused = 3,       // fills the id space
  kByte = 8,         // one byte of a character without its own token
};

struct Token {
  std::string bytes;  // what it represents; for all tokens not made by merging, the name
  TokenKind kind = TokenKind::kOrdinary;
  bool normalized = false;   // searched for after the normalizer, not before
  bool strips_left = false;  // removes the white space before it from the text
  bool strips_right = false;
  std::string written{};  // of an added token: its text, if that differs from `bytes`

  const std::string& name() const { return written.empty() ? bytes : written; }
};

// Finds tokens by their bytes. A table with open addressing, at most half full: vocabularies have a
// hundred thousand tokens, and their merge lists look up three times as many.
class TokenIndex {
 public:
  // Room for `n` tokens. Requires: empty.
  void reserve(std::size_t n);
  // Returns the token that has these bytes: `id`, unless another one has been inserted before.
  // Requires: tokens[id].bytes == bytes; there is room.
  std::int32_t insert(const std::vector<Token>& tokens, std::int32_t id);
  std::optional<std::int32_t> find(const std::vector<Token>& tokens, std::string_view bytes) const;

 private:
  struct Entry {
    std::uint32_t mark;  // other bits of the hash than the place
    std::int32_t id;
  };
  // The entry of these bytes, or the free one where they would be inserted.
  std::size_t place_of(const std::vector<Token>& tokens, std::string_view bytes,
                       std::uint64_t hash) const;

  std::vector<Entry> entries_;  // size is a power of two
};

class Vocabulary {
 public:
  // Errors: kCorrupt (an empty token, or a repeated one that is not unused), kTooLarge.
  static Result<Vocabulary> make(std::vector<Token> tokens);

  // Not copyable: the lookup tables point into the tokens.
  Vocabulary(Vocabulary&&) noexcept = default;
  Vocabulary& operator=(Vocabulary&&) noexcept = default;
  Vocabulary(const Vocabulary&) = delete;

  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  bool contains(std::int64_t id) const { return id >= 0 && id < size(); }
  // Requires: contains(id).
  const Token& token(std::int64_t id) const { return tokens_[static_cast<std::size_t>(id)]; }

  // The token that merging may produce for these bytes: never a control token.
  std::optional<std::int32_t> find_ordinary(std::string_view bytes) const;
  // The token with this name that is not ordinary.
  std::optional<std::int32_t> find_added(std::string_view name) const;
  // The token for a single byte of a character.
  std::optional<std::int32_t> find_byte(unsigned char byte) const;

 private:
  explicit Vocabulary(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  Result<void> index();
  Result<void> index_token(std::size_t id);

  std::vector<Token> tokens_;
  TokenIndex ordinary_;                                                 // by bytes
  std::unordered_map<std::string_view, std::int32_t, TextHash> added_;  // by name
  std::array<std::int32_t, 256> bytes_{};                               // kNoToken where absent
};

// The byte alphabet: printable characters that represent bytes in a byte-level vocabulary.
//
// Vocabulary files hold text, but tokens are bytes, so each byte is written as one character: the
// printable ones of Latin-1 as themselves, the other 68 as U+0100 onward, in order. A space is "Ġ",
// a line feed "Ċ".
//
// Source: openai/gpt-2 src/encoder.py, bytes_to_unicode.
//
// Appends the bytes of `text`; false when a character is outside the alphabet.
bool append_from_alphabet(std::string_view text, std::string& bytes);

}  // namespace tqcache::tokenizer
