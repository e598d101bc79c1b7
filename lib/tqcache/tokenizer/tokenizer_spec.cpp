#include "tqcache/tokenizer/tokenizer_spec.h"

#include <optional>
#include <utility>

#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer/byte_alphabet.h"

namespace tqcache::tokenizer {
namespace {

Error corrupt_merge(std::size_t index, std::string_view what) {
  return {ErrorCode::kCorrupt, "merge " + std::to_string(index) + ": " + std::string(what)};
}

std::optional<unsigned> hex_digit(char c) {
  if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
  if (c >= 'A' && c <= 'F') return static_cast<unsigned>(c - 'A' + 10);
  return std::nullopt;
}

// The byte that "<0x41>" stands for.
std::optional<char> byte_of_name(std::string_view name) {
  if (name.size() != 6 || !name.starts_with("<0x") || name[5] != '>') return std::nullopt;
  const std::optional<unsigned> high = hex_digit(name[3]);
  const std::optional<unsigned> low = hex_digit(name[4]);
  if (!high || !low) return std::nullopt;
  return static_cast<char>(*high << 4 | *low);
}

}  // namespace

Token piece_token(std::string_view text, bool has_byte_tokens) {
  if (has_byte_tokens) {
    if (const auto byte = byte_of_name(text)) return {std::string(1, *byte), TokenKind::kByte};
  }
  if (text.find(' ') != std::string_view::npos) return {std::string(text), TokenKind::kUnused};
  return {spaces_for_marks(text), TokenKind::kOrdinary};
}

Result<MergeBytes> parse_merge(std::string_view line, std::size_t index, bool by_bytes) {
  const std::size_t space = line.find(' ');  // a space inside a part has another spelling
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    return corrupt_merge(index, "not two parts");
  }
  return parse_merge(line.substr(0, space), line.substr(space + 1), index, by_bytes);
}

Result<MergeBytes> parse_merge(std::string_view left, std::string_view right, std::size_t index,
                               bool by_bytes) {
  if (left.empty() || right.empty()) return corrupt_merge(index, "an empty part");
  if (!by_bytes) return MergeBytes{spaces_for_marks(left), spaces_for_marks(right)};
  std::optional<std::string> left_bytes = bytes_from_alphabet(left);
  std::optional<std::string> right_bytes = bytes_from_alphabet(right);
  if (!left_bytes || !right_bytes) {
    return corrupt_merge(index, "a character outside the byte alphabet");
  }
  return MergeBytes{std::move(*left_bytes), std::move(*right_bytes)};
}

Result<Token> ordinary_token(std::string_view text, std::int64_t id) {
  std::optional<std::string> bytes = bytes_from_alphabet(text);
  if (!bytes) {
    return Error{ErrorCode::kCorrupt, "token " + std::to_string(id) + ": " +
                                          tensors::printable_name(text) +
                                          " has a character outside the byte alphabet"};
  }
  return Token{std::move(*bytes), TokenKind::kOrdinary, false};
}

}  // namespace tqcache::tokenizer
