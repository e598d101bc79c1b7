#include "tqcache/research/answers_jsonl.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "tqcache/base/json.h"
#include "tqcache/decoder.h"
#include "tqcache/error.h"
#include "tqcache/eval/total_progress.h"
#include "tqcache/research/answers.h"
#include "tqcache/research/questions.h"

namespace tqcache::research {
namespace {

constexpr std::array kTextKeys = {"prompt", "context", "input", "question"};
constexpr std::uint64_t kReadBytes = 64 * 1024;

Result<std::vector<std::string>> read_texts(const Json& row) {
  std::vector<std::string> texts;
  for (const char* const key : kTextKeys) {
    TQC_TRY_ASSIGN(std::string text, get_string_or(row, key, ""));
    if (!text.empty()) texts.push_back(std::move(text));
  }
  if (texts.empty())
    return corrupt(
        "no prompt: a row needs one of \"prompt\", \"context\", \"input\" and \"question\"");
  return texts;
}

Result<std::vector<std::string>> read_answers(const Json& row) {
  std::vector<std::string> answers;
  if (find_value(row, "answers") != nullptr) {
    TQC_TRY_ASSIGN(const Json* const list, get_array(row, "answers"));
    for (const Json& each : *list) {
      if (!each.is_string()) return corrupt("answers: not a list of strings");
      answers.push_back(each.get<std::string>());
    }
  }
  TQC_TRY_ASSIGN(std::string answer, get_string_or(row, "answer", ""));
  if (!answer.empty()) answers.push_back(std::move(answer));
  if (answers.empty()) return corrupt("no expected answer: a row needs \"answers\" or \"answer\"");
  for (const std::string& each : answers) {
    if (plain_answer(each).empty()) return corrupt("answer without a letter or a digit");
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
      return too_large("longer than " + std::to_string(kMaxRowBytes) + " bytes");
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

namespace {

std::string in_line(const AnswerRow& row) { return "line " + std::to_string(row.line); }

// Calls `use(row, prompt)` for every row within the limit.
template <class Use>
Result<void> for_rows(const model::Model& model, const ByteSource& source, const Dialogue& dialogue,
                      const JsonlOptions& options, Use use) {
  AnswerRows rows(source);
  for (std::int64_t n = 0; options.limit == 0 || n < options.limit; ++n) {
    TQC_TRY_ASSIGN(const std::optional<AnswerRow> row, rows.next());
    if (!row) break;
    auto prompt = row_prompt(*row, model.tokenizer, dialogue, options.keep_going);
    if (!prompt) return in_context(in_line(*row), std::move(prompt).error());
    if (auto used = use(*row, *prompt); !used) {
      return in_context(in_line(*row), std::move(used).error());
    }
  }
  return {};
}

std::uint64_t size_of(const RowPrompt& prompt) {
  return prompt.cached.size() + prompt.asked.size();
}

class RowMeasurement {
 public:
  RowMeasurement(const model::Model& model, const Dialogue& dialogue, const JsonlOptions& options)
      : model_(model),
        options_(options),
        ends_(answer_end(dialogue, model.tokenizer)),
        decoder_(model, options.n_threads) {}

  Result<void> measure(const AnswerRow& row, const RowPrompt& prompt, eval::TotalProgress& runs,
                       std::vector<AnswerScore>& scores) {
    TQC_TRY_ASSIGN(cache::Cache dense, model::make_cache(model_, Dtype::kF32));
    if (!prompt.cached.empty()) TQC_TRY(decoder_.prefill(dense, prompt.cached, runs.next_run()));
    runs.finish_run(size_of(prompt));
    for (std::size_t i = 0; i < scores.size(); ++i) {
      TQC_TRY_ASSIGN(cache::Cache cache,
                     convert_copy(dense, options_.configurations[i], options_.n_threads));
      TQC_TRY_ASSIGN(const Ids ids, greedy_answer(decoder_, std::move(cache), prompt.asked,
                                                  options_.max_tokens, ends_, runs.keep_going()));
      const Match match = match_answer(model_.tokenizer.decode(ids), row.answers);
      scores[i].add({.trials = 1, .exact = match.exact, .found = match.found});
    }
    return {};
  }

 private:
  const model::Model& model_;
  const JsonlOptions& options_;
  EndsAnswer ends_;
  model::Decoder decoder_;
};

}  // namespace

Result<RowPrompt> row_prompt(const AnswerRow& row, const tokenizer::Tokenizer& tokenizer,
                             const Dialogue& dialogue, const KeepGoing& keep_going) {
  const bool one_text = row.texts.size() == 1;
  std::string read;
  for (std::size_t i = 0; i + 1 < row.texts.size(); ++i) read += row.texts[i] + "\n\n";
  TQC_TRY_ASSIGN(const Ids first,
                 encode_text(tokenizer, one_text ? row.texts[0] : read, keep_going));
  TQC_TRY_ASSIGN(const Ids last,
                 encode_text(tokenizer, one_text ? "" : row.texts.back(), keep_going));
  RowPrompt prompt = {join({dialogue.begin, dialogue.open_user, first}),
                      join({last, dialogue.close_user, dialogue.open_answer()})};
  if (prompt.asked.empty()) {
    // Without chat turns the end of the text is the question.
    prompt.asked.push_back(prompt.cached.back());
    prompt.cached.pop_back();
  }
  return prompt;
}

Result<JsonlWork> check_rows(const model::Model& model, const ByteSource& source,
                             const Dialogue& dialogue, const JsonlOptions& options) {
  TQC_TRY(check_configurations(model, options.configurations));
  JsonlWork work;
  TQC_TRY(for_rows(model, source, dialogue, options,
                   [&](const AnswerRow&, const RowPrompt& prompt) -> Result<void> {
                     ++work.n_rows;
                     work.n_packed_rows += std::ssize(prompt.cached) >= cache::kTokenBlock ? 1 : 0;
                     work.n_tokens += size_of(prompt);
                     return check_context(model.config, static_cast<std::int64_t>(size_of(prompt)),
                                          options.max_tokens);
                   }));
  if (work.n_rows == 0) return invalid("the file has no rows");
  return work;
}

Result<JsonlResult> measure_rows(const model::Model& model, const ByteSource& source,
                                 const Dialogue& dialogue, const JsonlOptions& options,
                                 const Progress& progress) {
  JsonlResult result;
  TQC_TRY_ASSIGN(result.work, check_rows(model, source, dialogue, options));
  result.scores.resize(options.configurations.size());
  RowMeasurement measurement(model, dialogue, options);
  eval::TotalProgress runs(progress, result.work.n_tokens);
  TQC_TRY(for_rows(model, source, dialogue, options,
                   [&](const AnswerRow& row, const RowPrompt& prompt) {
                     return measurement.measure(row, prompt, runs, result.scores);
                   }));
  return result;
}

eval::Report jsonl_report(const JsonlOptions& options, const JsonlResult& result) {
  eval::Report report;
  report.title = "Questions and answers";
  report.facts = {{"rows", std::to_string(result.work.n_rows)},
                  {"rows with a full token block", std::to_string(result.work.n_packed_rows)}};
  eval::Table table = {"Answers", {"configuration", "rows", "exact", "substring"}, {}};
  for (std::size_t i = 0; i < result.scores.size(); ++i) {
    const AnswerScore& score = result.scores[i];
    table.rows.push_back(
        {options.configurations[i].name, eval::Number{static_cast<double>(score.trials), 0},
         eval::Number{score.mean(score.exact), 3}, eval::Number{score.mean(score.found), 3}});
  }
  report.figures.emplace_back(std::move(table));
  report.notes = {
      "Exact: the answer equals an expected one; substring: it contains one. Texts are compared in "
      "lower case, without punctuation and symbols, with single spaces."};
  if (result.work.n_packed_rows < result.work.n_rows) {
    report.notes.push_back(
        "Rows with fewer than 256 tokens before the question fill no token block: every "
        "configuration keeps them dense.");
  }
  return report;
}

}  // namespace tqcache::research
