#pragma once
// research/answers_jsonl.h: share of the questions in a JSON-lines file that a model answers from a
// cache, for each configuration. Reading the file is safe for untrusted input.
//
//   {"context": "...", "question": "...", "answers": ["48213", "the code is 48213"]}
//   {"prompt": "...", "answer": "48213"}
//
// A row has one or more of prompt, context, input and question, which form the prompt in this
// order, and `answers`, a list of texts, or `answer`, one text. Other keys and empty lines are
// ignored.
//
// All texts of a row except the last are read into a dense cache, which is converted; the last one
// is the question to the converted cache. If a row has only one text, that text is read, and the
// model continues with the answer.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/model.h"
#include "tqcache/progress.h"
#include "tqcache/quantize.h"
#include "tqcache/report.h"
#include "tqcache/research/answers.h"
#include "tqcache/research/questions.h"

namespace tqcache::research {

inline constexpr std::size_t kMaxRowBytes = std::size_t{64} << 20;

struct AnswerRow {
  std::int64_t line = 0;             // in the file, from 1
  std::vector<std::string> texts;    // those that are present and not empty
  std::vector<std::string> answers;  // at least one, each with a letter or a digit
};

// Errors: kCorrupt (not an object, a key of another type, none of the keys, an answer without a
//         letter or a digit), kTooLarge (nesting).
Result<AnswerRow> parse_answer_row(std::string_view json);

// Reads one row after another, with at most one in memory.
class AnswerRows {
 public:
  // Requires: `source` outlives this.
  explicit AnswerRows(const ByteSource& source) : source_(&source) {}

  // nullopt after the last row.
  // Errors: as parse_answer_row(), kTooLarge (a line of more than kMaxRowBytes), those of the
  //         source; the message names the line.
  Result<std::optional<AnswerRow>> next();

 private:
  Result<std::optional<std::string>> next_line();
  Result<void> fill();

  const ByteSource* source_;
  std::uint64_t offset_ = 0;  // of the first byte that is not in pending_ yet
  std::string pending_;       // read, but not returned
  std::int64_t line_ = 0;     // lines returned
};

struct JsonlOptions {
  std::vector<cache::Configuration> configurations;
  std::int64_t limit = 0;  // maximum number of rows; 0: all
  std::int64_t max_tokens = 64;
  unsigned n_threads = 0;
  KeepGoing keep_going = {};
};

struct RowPrompt {
  Ids cached;  // read into the cache and converted
  Ids asked;   // not empty
};

// Texts are joined by blank lines. Errors: those of Tokenizer::encode.
Result<RowPrompt> row_prompt(const AnswerRow& row, const tokenizer::Tokenizer& tokenizer,
                             const Dialogue& dialogue, const KeepGoing& keep_going = {});

// The amount of work, known after a pass over all rows.
struct JsonlWork {
  std::int64_t n_rows = 0;
  std::int64_t n_packed_rows = 0;  // with at least one full token block to convert
  std::uint64_t n_tokens = 0;      // to be read
};

// Reads all rows within the limit, so that a bad row is reported before hours are spent.
// Errors: those of AnswerRows; kInvalidArgument if there are no rows or a row does not fit into the
//         model's context (with its line), and those of check_configurations().
Result<JsonlWork> check_rows(const model::Model& model, const ByteSource& source,
                             const Dialogue& dialogue, const JsonlOptions& options);

struct JsonlResult {
  JsonlWork work;
  std::vector<AnswerScore> scores;  // [configurations]; without `forced` and `log_probability`
};

// Progress: tokens read, over all rows.
// Errors:   as check_rows(); those of the decoder and of cache::convert; kInterrupted.
// Memory:   one row, and the caches of its prompt: dense in f32, and a copy.
Result<JsonlResult> measure_rows(const model::Model& model, const ByteSource& source,
                                 const Dialogue& dialogue, const JsonlOptions& options,
                                 const Progress& progress = {});

eval::Report jsonl_report(const JsonlOptions& options, const JsonlResult& result);

}  // namespace tqcache::research
