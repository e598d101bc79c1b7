#include "tqcache/eval/answers_rows.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tqcache/base/json.h"
#include "tqcache/base/result.h"
#include "tqcache/eval/answers.h"

namespace tqcache::eval {
namespace {

constexpr std::array kTextKeys = {"prompt", "context", "input", "question"};
constexpr std::uint64_t kReadBytes = 64 * 1024;

Result<std::vector<std::string>> read_texts(const Json& row) {
  std::vector<std::string> texts;
  for (const char* const key : kTextKeys) {
    TQC_TRY_ASSIGN(std::string text, get_string_or(row, key, ""));
    if (!text.empty()) texts.push_back(std::move(text));
  }
  if (texts.empty()) return corrupt("none of prompt, context, input and question");
  return texts;
}

Result<std::vector<std::string>> read_answers(const Json& row) {
  std::vector<std::string> answers;
  if (find_value(row, "answers") != nullptr) {
    TQC_TRY_ASSIGN(const Json* const list, get_array(row, "answers"));
    for (const Json& each : *list) {
      if (!each.is_string()) return corrupt("answers: not a list of texts");
      answers.push_back(each.get<std::string>());
    }
  }
  TQC_TRY_ASSIGN(std::string answer, get_string_or(row, "answer", ""));
  if (!answer.empty()) answers.push_back(std::move(answer));
  if (answers.empty()) return corrupt("neither answers nor answer");
  for (const std::string& each : answers) {
    if (plain_answer(each).empty()) return corrupt("an answer without a letter or a digit");
  }
  return answers;
}

}  // namespace

Result<AnswerRow> parse_answer_row(std::string_view json) {
  TQC_TRY_ASSIGN(const Json row, parse_json_object(as_bytes(json)));
  AnswerRow parsed;
  TQC_TRY_ASSIGN(parsed.texts, read_texts(row));
  TQC_TRY_ASSIGN(parsed.answers, read_answers(row));
  return parsed;
}

Result<void> AnswerRows::fill() {
  const std::uint64_t size = source_->size();
  const std::uint64_t n = std::min(kReadBytes, size - std::min(offset_, size));
  const std::size_t before = pending_.size();
  pending_.resize(before + n);
  const auto out = std::as_writable_bytes(std::span(pending_)).subspan(before);
  TQC_TRY(source_->read_at(offset_, out));
  offset_ += n;
  return {};
}

Result<std::optional<std::string>> AnswerRows::next_line() {
  for (std::size_t looked_at = 0;;) {
    const std::size_t end = pending_.find('\n', looked_at);
    if (end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return std::optional(std::move(line));
    }
    looked_at = pending_.size();
    if (looked_at > kMaxRowBytes) {
      return Error{ErrorCode::kTooLarge, "longer than " + std::to_string(kMaxRowBytes) + " bytes"};
    }
    TQC_TRY(fill());
    if (pending_.size() > looked_at) continue;
    if (pending_.empty()) return std::optional<std::string>();
    return std::optional(std::exchange(pending_, {}));
  }
}

Result<std::optional<AnswerRow>> AnswerRows::next() {
  for (;;) {
    ++line_;
    const std::string where = "line " + std::to_string(line_);
    auto line = next_line();
    if (!line) return in_context(where, std::move(line).error());
    if (!line->has_value()) return std::optional<AnswerRow>();
    if ((*line)->find_first_not_of(" \t\r") == std::string::npos) continue;
    auto row = parse_answer_row(**line);
    if (!row) return in_context(where, std::move(row).error());
    row->line = line_;
    return std::optional(std::move(row).value());
  }
}

}  // namespace tqcache::eval
