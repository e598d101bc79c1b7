#pragma once
// model/vocabulary.h: the tokens of a model, by id and by bytes. Safe for untrusted input.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tqcache/base/result.h"

namespace tqcache::model {

inline constexpr std::int64_t kMaxVocabSize = 1 << 20;    // the largest today have 2^18
inline constexpr std::size_t kMaxTokenBytes = 64 * 1024;  // a name or the bytes of a token
inline constexpr std::size_t kMaxMerges = 4 * 1024 * 1024;

// The numbers are part of the fingerprint.
enum class TokenKind : std::uint8_t {
  kOrdinary = 0,     // made by merging
  kControl = 1,      // a mark like <|im_end|>, never made from text unless the caller asks
  kUserDefined = 2,  // a word that is cut out of the text before merging
  kUnused = 3,       // fills the id space
};

struct Token {
  std::string bytes;  // what it stands for; the name, for all but ordinary tokens
  TokenKind kind = TokenKind::kOrdinary;
  bool normalized = false;  // looked for in the text after the normalizer, not before
};

class Vocabulary {
 public:
  // Errors: kCorrupt (an empty or doubled token), kTooLarge.
  static Result<Vocabulary> make(std::vector<Token> tokens);

  // Not copied: the look-ups point into the tokens.
  Vocabulary(Vocabulary&&) noexcept = default;
  Vocabulary& operator=(Vocabulary&&) noexcept = default;
  Vocabulary(const Vocabulary&) = delete;

  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  bool contains(std::int64_t id) const { return id >= 0 && id < size(); }
  // Requires: contains(id).
  const Token& token(std::int64_t id) const { return tokens_[static_cast<std::size_t>(id)]; }

  // The token that merging may make of these bytes: never a control token.
  std::optional<std::int32_t> find_ordinary(std::string_view bytes) const;
  // The token of this name that is not ordinary.
  std::optional<std::int32_t> find_added(std::string_view name) const;

 private:
  using Ids = std::unordered_map<std::string_view, std::int32_t>;
  explicit Vocabulary(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  Result<void> index();

  std::vector<Token> tokens_;
  Ids ordinary_;
  Ids added_;
};

}  // namespace tqcache::model
