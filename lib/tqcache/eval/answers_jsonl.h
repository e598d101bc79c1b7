#pragma once
// eval/answers_jsonl.h: how many questions of a file a model answers from a cache, for each way to
// keep it.
//
// All texts of a row but the last are read into a dense cache, which is converted; the last one is
// asked of what came out. Of a row with one text that text is read, and the answer is asked for.

#include <cstdint>
#include <vector>

#include "tqcache/base/file.h"
#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/configuration.h"
#include "tqcache/eval/answers_dialogue.h"
#include "tqcache/eval/answers_rows.h"
#include "tqcache/eval/answers_score.h"
#include "tqcache/eval/report.h"
#include "tqcache/model/loading/model.h"

namespace tqcache::eval {

struct JsonlOptions {
  std::vector<cache::Configuration> configurations;
  std::int64_t limit = 0;  // rows at most; 0: all
  std::int64_t max_tokens = 64;
  unsigned n_threads = 0;
};

struct RowPrompt {
  Ids cached;  // what is read and converted
  Ids asked;   // not empty
};

// Texts are joined by blank lines. Errors: those of Tokenizer::encode.
Result<RowPrompt> row_prompt(const AnswerRow& row, const tokenizer::Tokenizer& tokenizer,
                             const Dialogue& dialogue);

// What is there to do, once every row has been looked at.
struct JsonlWork {
  std::int64_t n_rows = 0;
  std::int64_t n_packed_rows = 0;  // that have a full token block to convert
  std::uint64_t n_tokens = 0;      // to be read
};

// Reads all rows that count, so that a bad one is known before hours are spent.
// Errors: those of AnswerRows; kInvalidArgument when there is no row, when one does not fit into
//         the model's context (with its line), and those of check_configurations().
Result<JsonlWork> check_rows(const model::Model& model, const ByteSource& source,
                             const Dialogue& dialogue, const JsonlOptions& options);

struct JsonlResult {
  JsonlWork work;
  std::vector<AnswerScore> scores;  // [configurations]; without `forced` and `log_probability`
};

// Progress: tokens read, of all.
// Errors:   as check_rows(); those of the decoder and of cache::convert; kInterrupted.
// Memory:   one row, and the caches of its prompt: dense in f32, and a copy.
Result<JsonlResult> measure_rows(const model::Model& model, const ByteSource& source,
                                 const Dialogue& dialogue, const JsonlOptions& options,
                                 const Progress& progress = {});

Report jsonl_report(const JsonlOptions& options, const JsonlResult& result);

}  // namespace tqcache::eval
