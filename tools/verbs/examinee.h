#pragma once
// tools/verbs/examinee.h: a model that is asked questions, and the flags that say how.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/console.h"
#include "cli/flags.h"
#include "tqcache/error.h"
#include "tqcache/model.h"
#include "tqcache/quantize.h"
#include "tqcache/report.h"
#include "tqcache/research/answers.h"
#include "tqcache/research/questions.h"
#include "verbs/eval_common.h"

namespace tqcache::cli {

struct AnswerFlags {
  std::string model;
  std::string configurations = "f32,turbo4";
  std::int64_t max_tokens = 32;
  bool raw = false;
  unsigned n_threads = 0;
  EvalOutput output;
};

// --model, --configs, --max-tokens, --raw, --threads and the output flags.
void add_answer_flags(FlagSet& app, AnswerFlags& flags);

// A model to question, and valid configurations.
struct Examinee {
  std::vector<cache::Configuration> configurations;
  std::unique_ptr<model::Model> model;
  research::Dialogue dialogue;
  std::string turns;  // for display: "ChatML", "none"
};

// Errors: kInvalidArgument (configurations; the page of --html exists), those of loading.
Result<Examinee> open_examinee(const Console& console, const AnswerFlags& flags);

// Numbers of a flag: a list "0,25,50", or evenly spaced "0..100:25"; "0..100" has five.
// Errors: kInvalidArgument, naming the flag, for text that is not a number, a number out of range,
//         an empty list, or more than a hundred numbers.
struct NumberRange {
  double least = 0;
  double most = 0;
};
Result<std::vector<double>> parse_numbers(std::string_view flag, std::string_view text,
                                          NumberRange range);
// Whole numbers.
Result<std::vector<std::int64_t>> parse_counts(std::string_view flag, std::string_view text,
                                               std::int64_t least, std::int64_t most);

// The whole of a text file. Errors: those of reading; kTooLarge.
Result<std::string> read_text_file(const std::string& path);

// {"trials": 8, "found": 7, "exact": 7, "forced": 7, "log_probability": -0.02}
Json score_json(const research::AnswerScore& score);

// The first lines of every such report: the model, how it was asked, the version of this program.
void add_facts(const AnswerFlags& flags, const Examinee& examinee, eval::Report& report);
Json facts_json(const AnswerFlags& flags, const Examinee& examinee);

}  // namespace tqcache::cli
