#include "tqcache/model/vocabulary.h"

#include <string>
#include <utility>

#include "tqcache/tensors/printable_name.h"

namespace tqcache::model {
namespace {

std::string place(std::size_t id) { return "token " + std::to_string(id); }

Result<void> check_token(const Token& token, std::size_t id) {
  if (token.bytes.empty()) return Error{ErrorCode::kCorrupt, place(id) + ": empty"};
  if (token.bytes.size() > kMaxTokenBytes) {
    return Error{ErrorCode::kTooLarge,
                 place(id) + ": " + std::to_string(token.bytes.size()) + " bytes"};
  }
  return {};
}

template <class Map>
std::optional<std::int32_t> find(const Map& ids, std::string_view key) {
  const auto found = ids.find(key);
  if (found == ids.end()) return std::nullopt;
  return found->second;
}

}  // namespace

Result<Vocabulary> Vocabulary::make(std::vector<Token> tokens) {
  if (tokens.empty()) return Error{ErrorCode::kCorrupt, "vocabulary: no tokens"};
  if (tokens.size() > static_cast<std::size_t>(kMaxVocabSize)) {
    return Error{ErrorCode::kTooLarge, "vocabulary: " + std::to_string(tokens.size()) + " tokens"};
  }
  Vocabulary vocabulary(std::move(tokens));
  TQC_TRY(vocabulary.index());
  return vocabulary;
}

Result<void> Vocabulary::index() {
  ordinary_.reserve(tokens_.size());
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    const Token& token = tokens_[id];
    TQC_TRY(check_token(token, id));
    Ids& ids = token.kind == TokenKind::kOrdinary ? ordinary_ : added_;
    const auto [first, is_new] = ids.emplace(token.bytes, static_cast<std::int32_t>(id));
    if (!is_new) {
      return Error{ErrorCode::kCorrupt, place(id) + ": " + tensors::printable_name(token.bytes) +
                                            " is token " + std::to_string(first->second) + " too"};
    }
  }
  // A word of the merge list that was declared as a token of its own as well keeps its merges.
  for (const auto& [name, id] : added_) {
    if (token(id).kind == TokenKind::kUserDefined) ordinary_.emplace(name, id);
  }
  return {};
}

std::optional<std::int32_t> Vocabulary::find_ordinary(std::string_view bytes) const {
  return find(ordinary_, bytes);
}

std::optional<std::int32_t> Vocabulary::find_added(std::string_view name) const {
  return find(added_, name);
}

}  // namespace tqcache::model
