#include "tqcache/model/tokenizer_spec.h"

#include <optional>
#include <utility>

#include "tqcache/model/byte_alphabet.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::model {
namespace {

Error corrupt_merge(std::size_t index, std::string_view what) {
  return {ErrorCode::kCorrupt, "merge " + std::to_string(index) + ": " + std::string(what)};
}

}  // namespace

Result<MergeBytes> parse_merge(std::string_view line, std::size_t index) {
  const std::size_t space = line.find(' ');  // a space inside a part is spelled "Ġ"
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    return corrupt_merge(index, "not two parts");
  }
  return parse_merge(line.substr(0, space), line.substr(space + 1), index);
}

Result<MergeBytes> parse_merge(std::string_view left, std::string_view right, std::size_t index) {
  std::optional<std::string> left_bytes = bytes_from_alphabet(left);
  std::optional<std::string> right_bytes = bytes_from_alphabet(right);
  if (!left_bytes || !right_bytes) {
    return corrupt_merge(index, "a character outside the byte alphabet");
  }
  if (left_bytes->empty() || right_bytes->empty()) return corrupt_merge(index, "an empty part");
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

}  // namespace tqcache::model
