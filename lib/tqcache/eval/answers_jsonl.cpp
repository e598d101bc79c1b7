#include "tqcache/eval/answers_jsonl.h"

#include <string>
#include <utility>

#include "tqcache/eval/answers.h"
#include "tqcache/eval/answers_ask.h"
#include "tqcache/eval/answers_configurations.h"
#include "tqcache/eval/answers_progress.h"
#include "tqcache/model/decoder.h"

namespace tqcache::eval {
namespace {

std::string in_line(const AnswerRow& row) { return "line " + std::to_string(row.line); }

// Calls `use(row, prompt)` for every row that counts.
template <class Use>
Result<void> for_rows(const model::Model& model, const ByteSource& source, const Dialogue& dialogue,
                      std::int64_t limit, Use use) {
  AnswerRows rows(source);
  for (std::int64_t n = 0; limit == 0 || n < limit; ++n) {
    TQC_TRY_ASSIGN(const std::optional<AnswerRow> row, rows.next());
    if (!row) break;
    auto prompt = row_prompt(*row, model.tokenizer, dialogue);
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

  Result<void> measure(const AnswerRow& row, const RowPrompt& prompt, Pieces& pieces,
                       std::vector<AnswerScore>& scores) {
    TQC_TRY_ASSIGN(cache::Cache dense, model::make_cache(model_, Dtype::kF32));
    if (!prompt.cached.empty()) TQC_TRY(decoder_.prefill(dense, prompt.cached, pieces.piece()));
    pieces.finish(size_of(prompt));
    for (std::size_t i = 0; i < scores.size(); ++i) {
      TQC_TRY_ASSIGN(cache::Cache cache,
                     convert_copy(dense, options_.configurations[i], options_.n_threads));
      TQC_TRY_ASSIGN(const Ids ids, greedy_answer(decoder_, std::move(cache), prompt.asked,
                                                  options_.max_tokens, ends_, pieces.keep_going()));
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
                             const Dialogue& dialogue) {
  const bool one_text = row.texts.size() == 1;
  std::string read;
  for (std::size_t i = 0; i + 1 < row.texts.size(); ++i) read += row.texts[i] + "\n\n";
  TQC_TRY_ASSIGN(const Ids first, encode_text(tokenizer, one_text ? row.texts[0] : read));
  TQC_TRY_ASSIGN(const Ids last, encode_text(tokenizer, one_text ? "" : row.texts.back()));
  RowPrompt prompt = {join({dialogue.open_user, first}),
                      join({last, dialogue.close_user, dialogue.open_assistant})};
  if (prompt.asked.empty()) {
    // Without turns there is nothing to ask with but the end of the text.
    prompt.asked.push_back(prompt.cached.back());
    prompt.cached.pop_back();
  }
  return prompt;
}

Result<JsonlWork> check_rows(const model::Model& model, const ByteSource& source,
                             const Dialogue& dialogue, const JsonlOptions& options) {
  TQC_TRY(check_configurations(model, options.configurations));
  JsonlWork work;
  TQC_TRY(for_rows(model, source, dialogue, options.limit,
                   [&](const AnswerRow&, const RowPrompt& prompt) -> Result<void> {
                     ++work.n_rows;
                     work.n_packed_rows += std::ssize(prompt.cached) >= cache::kTokenBlock ? 1 : 0;
                     work.n_tokens += size_of(prompt);
                     return check_context(model.config, static_cast<std::int64_t>(size_of(prompt)),
                                          options.max_tokens);
                   }));
  if (work.n_rows == 0) return Error{ErrorCode::kInvalidArgument, "no row"};
  return work;
}

Result<JsonlResult> measure_rows(const model::Model& model, const ByteSource& source,
                                 const Dialogue& dialogue, const JsonlOptions& options,
                                 const Progress& progress) {
  JsonlResult result;
  TQC_TRY_ASSIGN(result.work, check_rows(model, source, dialogue, options));
  result.scores.resize(options.configurations.size());
  RowMeasurement measurement(model, dialogue, options);
  Pieces pieces(progress, result.work.n_tokens);
  TQC_TRY(for_rows(model, source, dialogue, options.limit,
                   [&](const AnswerRow& row, const RowPrompt& prompt) {
                     return measurement.measure(row, prompt, pieces, result.scores);
                   }));
  return result;
}

Report jsonl_report(const JsonlOptions& options, const JsonlResult& result) {
  Report report;
  report.title = "Questions and answers";
  report.facts = {{"rows", std::to_string(result.work.n_rows)},
                  {"rows with a full token block", std::to_string(result.work.n_packed_rows)}};
  Table table = {"Answers", {"configuration", "rows", "exact", "substring"}, {}};
  for (std::size_t i = 0; i < result.scores.size(); ++i) {
    const AnswerScore& score = result.scores[i];
    table.rows.push_back({options.configurations[i].name,
                          Number{static_cast<double>(score.trials), 0},
                          Number{score.mean(score.exact), 3}, Number{score.mean(score.found), 3}});
  }
  report.figures.emplace_back(std::move(table));
  report.notes = {
      "Exact: the answer is one of those expected; substring: it holds one of them. Both are "
      "compared in lower case, without punctuation and symbols, with single spaces."};
  if (result.work.n_packed_rows < result.work.n_rows) {
    report.notes.push_back(
        "Of a row whose texts before the question fill no token block of 256 tokens nothing is "
        "packed: every configuration keeps it dense.");
  }
  return report;
}

}  // namespace tqcache::eval
