// tools/verbs/eval_questions.cpp: measurements that ask a model questions: needle, jsonl, memory.

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "cli/cache_io.h"
#include "cli/common_flags.h"
#include "cli/terminal.h"
#include "cli/verb.h"
#include "tqcache/base/posix.h"
#include "tqcache/research/answers_jsonl.h"
#include "tqcache/research/memory.h"
#include "tqcache/research/needle.h"
#include "verbs/examinee.h"

namespace tqcache::cli {
namespace {

constexpr const char* kEvalNeedleExamples =
    R"(Hides a secret code of five digits in text from FILE, at a depth in percent, and asks for it at the
end; the whole prompt has exactly the given number of tokens. The document is prefilled once for
each length, depth and trial. Its cache is then converted to each configuration, and the question is
answered from the converted cache, as users would experience it. Text, code and city depend only on
--seed, the length, the depth and the trial.

--needle and --question hide a fact of your own.

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

Result<research::NeedleOptions> needle_options(const NeedleFlags& flags) {
  research::NeedleOptions options;
  TQC_TRY_ASSIGN(options.lengths, parse_counts("--lengths", flags.lengths, 1, cache::kMaxTokens));
  TQC_TRY_ASSIGN(options.depths, parse_numbers("--depths", flags.depths, {0, 100}));
  options.trials = flags.trials;
  options.seed = flags.seed;
  options.max_tokens = flags.answers.max_tokens;
  options.n_threads = flags.answers.n_threads;
  if (flags.needle.empty() != flags.question.empty()) {
    return usage_error("--needle and --question need each other");
  }
  if (flags.needle.empty() && !flags.answer.empty()) {
    return usage_error("--answer needs --needle and --question");
  }
  if (!flags.needle.empty()) {
    TQC_TRY_ASSIGN(options.needle,
                   research::custom_needle(flags.needle, flags.question, flags.answer));
  }
  return options;
}

Json needle_json(const NeedleFlags& flags, const Examinee& examinee,
                 const research::NeedleOptions& options, const research::NeedleResult& result) {
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
    each.update(score_json(research::total(result.grids[c])));
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

Result<ExitCode> run(const Console& console, const NeedleFlags& flags) {
  TQC_TRY_ASSIGN(research::NeedleOptions options, needle_options(flags));
  TQC_TRY_ASSIGN(const std::string text, read_text_file(flags.file));
  TQC_TRY_ASSIGN(const Examinee examinee, open_examinee(console, flags.answers));
  options.configurations = examinee.configurations;
  TQC_TRY_ASSIGN(const research::Haystack haystack,
                 in_file(display_name(flags.file, "standard input"),
                         research::Haystack::make(text, examinee.model->tokenizer,
                                                  [] { return !interrupted(); })));
  TQC_TRY(research::check_needles(*examinee.model, haystack, examinee.dialogue, options));
  research::NeedleResult result;
  {
    ProgressBar bar(console, "needle", Unit::kTokens);
    TQC_TRY_ASSIGN(result, research::measure_needles(*examinee.model, haystack, examinee.dialogue,
                                                     options, bar.callback()));
  }
  eval::Report report = research::needle_report(options, result);
  report.facts.insert(report.facts.begin(), {"text", display_name(flags.file, "standard input")});
  add_facts(flags.answers, examinee, report);
  TQC_TRY(give_report(console, flags.answers.output, report,
                      needle_json(flags, examinee, options, result)));
  return ExitCode::kDone;
}

}  // namespace

Action define_eval_needle(FlagSet& app) {
  const auto flags = std::make_shared<NeedleFlags>();
  add_answer_flags(app, flags->answers);
  app.add("--file", flags->file, "Text to hide the needle in, UTF-8; - is standard input")
      ->type_name("FILE")
      ->file()
      ->required();
  app.add("--lengths", flags->lengths, "Lengths of the whole prompt, in tokens")
      ->type_name("LIST")
      ->show_default();
  app.add("--depths", flags->depths,
          "Depths of the needle, in percent of the text: 0,50 or 0..100:25")
      ->type_name("LIST")
      ->show_default();
  app.add("--trials", flags->trials, "Trials per length and depth")
      ->type_name("N")
      ->range(1, 100000)
      ->show_default();
  app.add("--seed", flags->seed, "Seed of texts and codes")->type_name("N")->show_default();
  app.add("--needle", flags->needle, "Fact to hide")->type_name("TEXT");
  app.add("--question", flags->question, "Question to ask")->type_name("TEXT");
  app.add("--answer", flags->answer, "Expected answer; by default the needle")->type_name("TEXT");
  app.footer(kEvalNeedleExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

namespace {

constexpr const char* kEvalJsonlExamples =
    R"(Each line of FILE is a JSON object with one or more of prompt, context, input and question, which
are joined in this order by blank lines, and with answers (a list of texts) or answer (one text):
  {"context": "...", "question": "Who?", "answers": ["Alice", "the girl"]}

All texts but the last are prefilled, their cache is converted to each configuration, and the last
text is answered from the converted cache. A row with one text is prefilled as it is. Bad rows, and
rows longer than the context of the model, are refused with their line number before anything is
measured.

Exact match: the answer equals one of the expected ones. Substring match: it contains one, but not
as part of a longer number. Both ignore case, punctuation, symbols and repeated spaces.

Examples:
  tqcache eval jsonl -m model.gguf --file questions.jsonl
  tqcache eval jsonl -m model.gguf --file questions.jsonl --limit 100 --configs f32,turbo4,turbo3
  tqcache eval jsonl -m base.gguf --file completions.jsonl --raw --max-new-tokens 16
)";

struct JsonlFlags {
  AnswerFlags answers;
  std::string file;
  std::int64_t limit = 0;
};

Json jsonl_json(const JsonlFlags& flags, const Examinee& examinee,
                const research::JsonlResult& result) {
  Json json = facts_json(flags.answers, examinee);
  json["file"] = flags.file;
  json["rows"] = result.work.n_rows;
  json["packed_rows"] = result.work.n_packed_rows;
  json["configurations"] = Json::array();
  for (std::size_t i = 0; i < result.scores.size(); ++i) {
    const research::AnswerScore& score = result.scores[i];
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

Result<ExitCode> run(const Console& console, const JsonlFlags& flags) {
  const std::string name = display_name(flags.file, "standard input");
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, open_source(flags.file));
  TQC_TRY_ASSIGN(const Examinee examinee, open_examinee(console, flags.answers));
  research::JsonlOptions options;
  options.configurations = examinee.configurations;
  options.limit = flags.limit;
  options.max_tokens = flags.answers.max_tokens;
  options.n_threads = flags.answers.n_threads;
  options.keep_going = [] { return !interrupted(); };
  research::JsonlResult result;
  {
    ProgressBar bar(console, "jsonl", Unit::kTokens);
    TQC_TRY_ASSIGN(result,
                   in_file(name, research::measure_rows(*examinee.model, *source, examinee.dialogue,
                                                        options, bar.callback())));
  }
  eval::Report report = research::jsonl_report(options, result);
  report.facts.insert(report.facts.begin(), {"questions", name});
  add_facts(flags.answers, examinee, report);
  TQC_TRY(give_report(console, flags.answers.output, report, jsonl_json(flags, examinee, result)));
  return ExitCode::kDone;
}

}  // namespace

Action define_eval_jsonl(FlagSet& app) {
  const auto flags = std::make_shared<JsonlFlags>();
  flags->answers.max_tokens = 64;
  add_answer_flags(app, flags->answers);
  app.add("--file", flags->file,
          "Questions and answers, one JSON object per line; - is standard input")
      ->type_name("FILE")
      ->file()
      ->required();
  app.add("--limit", flags->limit, "Maximum number of rows; 0 means all")
      ->type_name("N")
      ->at_least(0)
      ->show_default();
  app.footer(kEvalJsonlExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

namespace {

constexpr const char* kEvalMemoryExamples =
    R"(A user tells the model their name, city, job, favorite food and color, pet, hobby and age, then
talks about other things until the conversation has --tokens tokens. The cache is converted to each
configuration, saved to a temporary folder (TMPDIR), and loaded again. Each fact is asked for at
once and after some further turns, each time as the only question. Everything is random, depends
only on --seed, and is the same for all configurations.

Examples:
  tqcache eval memory -m model.gguf
  tqcache eval memory -m model.gguf --trials 20 --tokens 4096 --configs f32,turbo4,turbo3
  tqcache eval memory -m model.gguf --turns 0,10,20 --json
)";

struct MemoryFlags {
  AnswerFlags answers;
  std::int64_t trials = 5;
  std::int64_t n_tokens = 1024;
  std::string turns = "0,1,2,5";
  std::uint64_t seed = 0;
};

// A new folder, removed with its content at the end of the scope.
class ScratchFolder {
 public:
  static Result<std::unique_ptr<ScratchFolder>> make() {
    std::error_code error;
    std::string name = (std::filesystem::temp_directory_path(error) / "tqcache-XXXXXX").string();
    if (error || posix::mkdtemp(name.data()) == nullptr) {
      return Error{ErrorCode::kIo, error ? error.message() : std::strerror(errno), name};
    }
    return std::unique_ptr<ScratchFolder>(new ScratchFolder(name));
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  explicit ScratchFolder(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

Result<research::MemoryOptions> memory_options(const MemoryFlags& flags) {
  research::MemoryOptions options;
  TQC_TRY_ASSIGN(options.turns, parse_counts("--turns", flags.turns, 0, 10000));
  std::ranges::sort(options.turns);
  options.turns.erase(std::unique(options.turns.begin(), options.turns.end()), options.turns.end());
  options.trials = flags.trials;
  options.n_tokens = flags.n_tokens;
  options.seed = flags.seed;
  options.max_tokens = flags.answers.max_tokens;
  options.n_threads = flags.answers.n_threads;
  return options;
}

Json memory_json(const MemoryFlags& flags, const Examinee& examinee,
                 const research::MemoryOptions& options, const research::MemoryResult& result) {
  Json json = facts_json(flags.answers, examinee);
  json["conversations"] = options.trials;
  json["tokens"] = options.n_tokens;
  json["seed"] = options.seed;
  json["configurations"] = Json::array();
  for (std::size_t c = 0; c < result.scores.size(); ++c) {
    research::AnswerScore all;
    Json cells = Json::array();
    for (std::size_t f = 0; f < research::kFactKinds.size(); ++f) {
      for (std::size_t t = 0; t < options.turns.size(); ++t) {
        Json cell = {{"fact", research::kFactKinds[f]}, {"turns", options.turns[t]}};
        cell.update(score_json(result.scores[c][f][t]));
        cells.push_back(std::move(cell));
        all.add(result.scores[c][f][t]);
      }
    }
    Json each;
    each["name"] = options.configurations[c].name;
    each.update(score_json(all));
    each["cells"] = std::move(cells);
    json["configurations"].push_back(std::move(each));
  }
  return json;
}

Result<ExitCode> run(const Console& console, const MemoryFlags& flags) {
  TQC_TRY_ASSIGN(research::MemoryOptions options, memory_options(flags));
  TQC_TRY_ASSIGN(const Examinee examinee, open_examinee(console, flags.answers));
  options.configurations = examinee.configurations;
  TQC_TRY(research::check_memory(*examinee.model, examinee.dialogue, options));
  TQC_TRY_ASSIGN(const std::unique_ptr<ScratchFolder> folder, ScratchFolder::make());
  options.folder = folder->path();
  options.access = console.access;
  research::MemoryResult result;
  {
    ProgressBar bar(console, "memory", Unit::kTokens);
    TQC_TRY_ASSIGN(result, research::measure_memory(*examinee.model, examinee.dialogue, options,
                                                    bar.callback()));
  }
  eval::Report report = research::memory_report(options, result);
  add_facts(flags.answers, examinee, report);
  TQC_TRY(give_report(console, flags.answers.output, report,
                      memory_json(flags, examinee, options, result)));
  return ExitCode::kDone;
}

}  // namespace

Action define_eval_memory(FlagSet& app) {
  const auto flags = std::make_shared<MemoryFlags>();
  add_answer_flags(app, flags->answers);
  app.add("--trials", flags->trials, "Number of conversations")
      ->type_name("N")
      ->range(1, 100000)
      ->show_default();
  app.add("--tokens", flags->n_tokens, "Tokens of the conversation when it is saved")
      ->type_name("N")
      ->range(1, cache::kMaxTokens)
      ->show_default();
  app.add("--turns", flags->turns, "Further turns before each question")
      ->type_name("LIST")
      ->show_default();
  app.add("--seed", flags->seed, "Seed of the conversations")->type_name("N")->show_default();
  app.footer(kEvalMemoryExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
