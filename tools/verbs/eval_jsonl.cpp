// tools/verbs/eval_jsonl.cpp: does a model answer the questions of a file, for each way to keep the
// cache of what it was told?

#include <fmt/format.h>

#include <memory>

#include "cli/cache_io.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "tqcache/eval/answers_jsonl.h"
#include "verbs/eval_answers.h"
#include "verbs/eval_verbs.h"

namespace tqcache::cli {
namespace {

constexpr const char* kEvalJsonlExamples =
    R"(Each line of FILE is a JSON object with at least one of prompt, context, input
and question, which are joined in this order by blank lines, and with answers, a
list of texts, or answer, one text:
  {"context": "...", "question": "Who?", "answers": ["Alice", "the girl"]}

All but the last text are read, their cache is converted as each configuration
says, and the last one is put to what came out. Of a row with one text that text
is read. Bad rows are refused, with the number of their line, before anything is
measured; so are rows longer than the model's context.

Exact: the answer is one of those expected. Substring: it holds one of them, and
not as a part of a longer number. Both in lower case, without punctuation and
symbols, with single spaces.

Examples:
  tqcache eval jsonl -m model.gguf --file questions.jsonl
  tqcache eval jsonl -m model.gguf --file questions.jsonl --limit 100 --configs f32,turbo4,turbo3
  tqcache eval jsonl -m base.gguf --file completions.jsonl --raw --max-tokens 16
)";

struct JsonlFlags {
  AnswerFlags answers;
  std::string file;
  std::int64_t limit = 0;
};

Json jsonl_json(const JsonlFlags& flags, const Examinee& examinee,
                const eval::JsonlResult& result) {
  Json json = facts_json(flags.answers, examinee);
  json["file"] = flags.file;
  json["rows"] = result.work.n_rows;
  json["packed_rows"] = result.work.n_packed_rows;
  json["configurations"] = Json::array();
  for (std::size_t i = 0; i < result.scores.size(); ++i) {
    const eval::AnswerScore& score = result.scores[i];
    Json each;
    each["name"] = examinee.configurations[i].name;
    each["rows"] = score.trials;
    each["exact"] = score.exact;
    each["substring"] = score.found;
    each["exact_match"] = score.mean(score.exact);
    each["substring_match"] = score.mean(score.found);
    json["configurations"].push_back(std::move(each));
  }
  return json;
}

Outcome<ExitCode> run(const Console& console, const JsonlFlags& flags) {
  const std::string name = display_name(flags.file, "standard input");
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, open_source(flags.file));
  TQC_TRY_ASSIGN(const Examinee examinee, open_examinee(flags.answers));
  eval::JsonlOptions options;
  options.configurations = examinee.configurations;
  options.limit = flags.limit;
  options.max_tokens = flags.answers.max_tokens;
  options.n_threads = flags.answers.n_threads;
  eval::JsonlResult result;
  {
    ProgressBar bar(console, "jsonl", Unit::kTokens);
    TQC_TRY_ASSIGN(result,
                   in_file(name, eval::measure_rows(*examinee.model, *source, examinee.dialogue,
                                                    options, bar.callback())));
  }
  eval::Report report = eval::jsonl_report(options, result);
  report.facts.insert(report.facts.begin(), {"questions", name});
  add_facts(flags.answers, examinee, report);
  TQC_TRY(give_report(console, flags.answers.output, report, jsonl_json(flags, examinee, result)));
  return ExitCode::kDone;
}

}  // namespace

Action define_eval_jsonl(CLI::App& app) {
  const auto flags = std::make_shared<JsonlFlags>();
  flags->answers.max_tokens = 64;
  add_answer_flags(app, flags->answers);
  app.add_option("--file", flags->file, "Questions and answers, one JSON object a line")
      ->type_name("FILE")
      ->check(file_name())
      ->required();
  app.add_option("--limit", flags->limit, "Rows at most; 0: all")
      ->type_name("N")
      ->check(at_least(0))
      ->capture_default_str();
  app.footer(kEvalJsonlExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
