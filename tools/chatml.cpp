#include "chatml.h"

#include <algorithm>
#include <string>

namespace tqcache::cli {

void append_ids(Ids& ids, const Ids& more) { ids.insert(ids.end(), more.begin(), more.end()); }

Result<ChatMl> ChatMl::make(const model::Tokenizer& tokenizer) {
  const std::optional<std::int32_t> start = tokenizer.find_token("<|im_start|>");
  const std::optional<std::int32_t> end = tokenizer.find_token("<|im_end|>");
  if (!start || !end) {
    return Error{ErrorCode::kUnsupported, "the model has no ChatML tokens, so no turns to chat in"};
  }
  return ChatMl(tokenizer, *start, *end);
}

Result<Ids> ChatMl::plain(std::string_view text) const {
  return tokenizer_->encode(text, model::Tokenizer::Special::kAsText);
}

Result<Ids> ChatMl::open_turn(std::string_view role) const {
  TQC_TRY_ASSIGN(const Ids head, plain(std::string(role) + "\n"));
  Ids ids = {start_};
  append_ids(ids, head);
  return ids;
}

Result<Ids> ChatMl::turn(std::string_view role, std::string_view text) const {
  // Role, line end and text are one run of plain text, so they are cut into tokens together.
  TQC_TRY_ASSIGN(const Ids body, plain(std::string(role) + "\n" + std::string(text)));
  TQC_TRY_ASSIGN(const Ids line_end, plain("\n"));
  Ids ids = {start_};
  append_ids(ids, body);
  ids.push_back(end_);
  append_ids(ids, line_end);
  return ids;
}

Result<Ids> ChatMl::closing(std::span<const std::int32_t> tokens) const {
  const auto is_mark = [&](std::int32_t id) { return id == start_ || id == end_; };
  const auto mark = std::find_if(tokens.rbegin(), tokens.rend(), is_mark);
  if (mark == tokens.rend()) return Ids{};
  const bool open = *mark == start_;
  if (!open && mark != tokens.rbegin()) return Ids{};
  TQC_TRY_ASSIGN(const Ids line_end, plain("\n"));
  Ids ids;
  if (open) ids.push_back(end_);
  append_ids(ids, line_end);
  return ids;
}

}  // namespace tqcache::cli
