// tools/verbs/eval_needle.cpp: does a model find what is hidden in a long text, for each way to
// keep the cache of it?

#include <fmt/format.h>

#include <memory>

#include "cli/cache_io.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "tqcache/eval/needle.h"
#include "verbs/eval_answers.h"
#include "verbs/eval_verbs.h"

namespace tqcache::cli {
namespace {

constexpr const char* kEvalNeedleExamples =
    R"(A secret code of five digits is hidden in a run of the text of FILE, at a depth
of so many percent, and asked for at the end; the prompt has exactly the wanted
number of tokens. The document is read once for each length, depth and trial. Its
cache is then converted as each configuration says, and the question is put to
what came out: that is what a user gets. Which text, which code and which city
depend on --seed, the length, the depth and the number of the trial alone.

With --needle and --question something of your own is hidden.

Examples:
  tqcache eval needle -m model.gguf --file book.txt
  tqcache eval needle -m model.gguf --file book.txt --lengths 1024,4096,8192 --trials 8
  tqcache eval needle -m model.gguf --file book.txt --depths 0..100:10 --configs f32,turbo4,turbo3
  tqcache eval needle -m model.gguf --file book.txt --needle "The bell rings at noon." \
      --question "When does the bell ring?" --answer "At noon."
)";

struct NeedleFlags {
  AnswerFlags answers;
  std::string file;
  std::string lengths = "1024,4096";
  std::string depths = "0..100";
  std::int64_t trials = 4;
  std::uint64_t seed = 0;
  std::string needle, question, answer;
};

Result<eval::NeedleOptions> needle_options(const NeedleFlags& flags) {
  eval::NeedleOptions options;
  TQC_TRY_ASSIGN(options.lengths, parse_counts("--lengths", flags.lengths, 1, cache::kMaxTokens));
  TQC_TRY_ASSIGN(options.depths, parse_numbers("--depths", flags.depths, {0, 100}));
  options.trials = flags.trials;
  options.seed = flags.seed;
  options.max_tokens = flags.answers.max_tokens;
  options.n_threads = flags.answers.n_threads;
  if (flags.needle.empty() != flags.question.empty()) {
    return usage_error("--needle and --question go together");
  }
  if (flags.needle.empty() && !flags.answer.empty()) {
    return usage_error("--answer: only with --needle and --question");
  }
  if (!flags.needle.empty()) {
    TQC_TRY_ASSIGN(options.needle, eval::custom_needle(flags.needle, flags.question, flags.answer));
  }
  return options;
}

Json needle_json(const NeedleFlags& flags, const Examinee& examinee,
                 const eval::NeedleOptions& options, const eval::NeedleResult& result) {
  Json json = facts_json(flags.answers, examinee);
  json["file"] = flags.file;
  json["lengths"] = options.lengths;
  json["depths"] = options.depths;
  json["trials"] = options.trials;
  json["seed"] = options.seed;
  json["configurations"] = Json::array();
  for (std::size_t c = 0; c < result.grids.size(); ++c) {
    Json each;
    each["name"] = options.configurations[c].name;
    each.update(score_json(eval::total(result.grids[c])));
    each["cells"] = Json::array();
    for (std::size_t l = 0; l < options.lengths.size(); ++l) {
      for (std::size_t d = 0; d < options.depths.size(); ++d) {
        Json cell = {{"length", options.lengths[l]}, {"depth", options.depths[d]}};
        cell.update(score_json(result.grids[c][l][d]));
        each["cells"].push_back(std::move(cell));
      }
    }
    json["configurations"].push_back(std::move(each));
  }
  return json;
}

Outcome<ExitCode> run(const Console& console, const NeedleFlags& flags) {
  TQC_TRY_ASSIGN(eval::NeedleOptions options, needle_options(flags));
  TQC_TRY_ASSIGN(const std::string text, read_text_file(flags.file));
  TQC_TRY_ASSIGN(const Examinee examinee, open_examinee(flags.answers));
  options.configurations = examinee.configurations;
  TQC_TRY_ASSIGN(const eval::Haystack haystack,
                 in_file(display_name(flags.file, "standard input"),
                         eval::Haystack::make(text, examinee.model->tokenizer)));
  TQC_TRY(eval::check_needles(*examinee.model, haystack, examinee.dialogue, options));
  eval::NeedleResult result;
  {
    ProgressBar bar(console, "needle", Unit::kTokens);
    TQC_TRY_ASSIGN(result, eval::measure_needles(*examinee.model, haystack, examinee.dialogue,
                                                 options, bar.callback()));
  }
  eval::Report report = eval::needle_report(options, result);
  report.facts.insert(report.facts.begin(), {"text", display_name(flags.file, "standard input")});
  add_facts(flags.answers, examinee, report);
  TQC_TRY(give_report(console, flags.answers.output, report,
                      needle_json(flags, examinee, options, result)));
  return ExitCode::kDone;
}

}  // namespace

Action define_eval_needle(CLI::App& app) {
  const auto flags = std::make_shared<NeedleFlags>();
  add_answer_flags(app, flags->answers);
  app.add_option("--file", flags->file, "The text to hide it in, UTF-8; - is standard input")
      ->type_name("FILE")
      ->check(file_name())
      ->required();
  app.add_option("--lengths", flags->lengths, "Tokens of the whole prompt")
      ->type_name("LIST")
      ->capture_default_str();
  app.add_option("--depths", flags->depths,
                 "Percent of the text before the needle: 0,50 or 0..100:25")
      ->type_name("LIST")
      ->capture_default_str();
  app.add_option("--trials", flags->trials, "Of each length and depth")
      ->type_name("N")
      ->check(within(1, 100000))
      ->capture_default_str();
  app.add_option("--seed", flags->seed, "Of texts and codes")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--needle", flags->needle, "What to hide")->type_name("TEXT");
  app.add_option("--question", flags->question, "What to ask")->type_name("TEXT");
  app.add_option("--answer", flags->answer, "What to expect; the needle itself if not given")
      ->type_name("TEXT");
  app.footer(kEvalNeedleExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
