#pragma once
// eval/answers_rows.h: questions and their answers from a file of JSON lines. Safe for untrusted
// input.
//
//   {"context": "...", "question": "...", "answers": ["48213", "the code is 48213"]}
//   {"prompt": "...", "answer": "48213"}
//
// A row has at least one of prompt, context, input and question, which make up the prompt in this
// order, and `answers`, a list of texts, or `answer`, one text. Other keys may stand in it and are
// not looked at. Empty lines are left out.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/bytes.h"
#include "tqcache/base/file.h"
#include "tqcache/base/result.h"

namespace tqcache::eval {

inline constexpr std::size_t kMaxRowBytes = std::size_t{64} << 20;

struct AnswerRow {
  std::int64_t line = 0;             // in the file, from 1
  std::vector<std::string> texts;    // that were there and not empty
  std::vector<std::string> answers;  // at least one, each with a letter or a digit
};

// Errors: kCorrupt (not an object, a key of another kind, none of the keys, an answer without a
//         letter or a digit), kTooLarge (nesting).
Result<AnswerRow> parse_answer_row(std::string_view json);

// Reads one row after another, with no more than one in memory.
class AnswerRows {
 public:
  // Requires: `source` outlives this.
  explicit AnswerRows(const ByteSource& source) : source_(&source) {}

  // Nothing at the end.
  // Errors: as parse_answer_row(), kTooLarge (a line of more than kMaxRowBytes), those of the
  //         source; the message names the line.
  Result<std::optional<AnswerRow>> next();

 private:
  Result<std::optional<std::string>> next_line();
  Result<void> fill();

  const ByteSource* source_;
  std::uint64_t offset_ = 0;  // of what is not in pending_ yet
  std::string pending_;       // read, but not given
  std::int64_t line_ = 0;     // lines given
};

}  // namespace tqcache::eval
