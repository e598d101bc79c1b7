#pragma once
// tools/verbs/eval_answers.h: what the measurements that ask questions share: flags, the model, the
// frames of its turns.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/console.h"
#include "cli/eval_output.h"
#include "cli/outcome.h"
#include "tqcache/cache/configuration.h"
#include "tqcache/eval/answers.h"
#include "tqcache/eval/questions.h"
#include "tqcache/model/loading/model.h"

namespace tqcache::cli {

struct AnswerFlags {
  std::string model;
  std::string configurations = "f32,turbo4";
  std::int64_t max_tokens = 32;
  bool raw = false;
  unsigned n_threads = 0;
  EvalOutput output;
};

// --model, --configs, --max-tokens, --raw, --threads and those of the output.
void add_answer_flags(CLI::App& app, AnswerFlags& flags);

// A check for add_option: at least `minimum`, and at most `maximum`.
CLI::Validator within(std::int64_t minimum, std::int64_t maximum);

// A model that is asked, in ways that are known to be good.
struct Examinee {
  std::vector<cache::Configuration> configurations;
  std::unique_ptr<model::Model> model;
  eval::Dialogue dialogue;
  std::string turns;  // for people: "ChatML", "none"
};

// Errors: kInvalidArgument (configurations; the page of --html exists), those of loading.
Outcome<Examinee> open_examinee(const AnswerFlags& flags);

// Numbers of a flag: "0,25,50", or evenly from one to another, "0..100:25"; "0..100" has five.
// Errors: kInvalidArgument, naming the flag, for what is no number, one out of range, none at all,
//         or more than a hundred.
struct NumberRange {
  double least = 0;
  double most = 0;
};
Result<std::vector<double>> parse_numbers(std::string_view flag, std::string_view text,
                                          NumberRange range);
// Whole ones.
Result<std::vector<std::int64_t>> parse_counts(std::string_view flag, std::string_view text,
                                               std::int64_t least, std::int64_t most);

// All of a file of text. Errors: those of reading; kTooLarge.
Outcome<std::string> read_text_file(const std::string& path);

// {"trials": 8, "found": 7, "exact": 7, "forced": 7, "log_probability": -0.02}
Json score_json(const eval::AnswerScore& score);

// What every report of theirs begins with: the model, how it was asked, the version of this
// program.
void add_facts(const AnswerFlags& flags, const Examinee& examinee, eval::Report& report);
Json facts_json(const AnswerFlags& flags, const Examinee& examinee);

}  // namespace tqcache::cli
