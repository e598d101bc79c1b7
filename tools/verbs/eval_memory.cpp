// tools/verbs/eval_memory.cpp: what does a model still know of a conversation that was saved and
// loaded?

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "cli/cli.h"
#include "cli/progress.h"
#include "tqcache/eval/memory.h"
#include "verbs/eval_answers.h"
#include "verbs/eval_verbs.h"

namespace tqcache::cli {
namespace {

constexpr const char* kEvalMemoryExamples =
    R"(Somebody tells the model their name, city, job, favorite food and color, pet,
hobby and age, and then talks of other things until the conversation has --tokens
tokens. Its cache is converted as each configuration says, written to a file in a
temporary folder (TMPDIR), and read back. Each fact is asked for at once and again
after some further turns, always as if nothing had been asked before. All of it is
drawn from --seed, and the same for all configurations.

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

// A folder of its own, taken away with all that is in it.
class ScratchFolder {
 public:
  static Outcome<std::unique_ptr<ScratchFolder>> make() {
    std::error_code error;
    std::string name = (std::filesystem::temp_directory_path(error) / "tqcache-XXXXXX").string();
    if (error || ::mkdtemp(name.data()) == nullptr) {
      return Failure{Error{ErrorCode::kIo, error ? error.message() : std::strerror(errno)}, name,
                     false};
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

Result<eval::MemoryOptions> memory_options(const MemoryFlags& flags) {
  eval::MemoryOptions options;
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
                 const eval::MemoryOptions& options, const eval::MemoryResult& result) {
  Json json = facts_json(flags.answers, examinee);
  json["conversations"] = options.trials;
  json["tokens"] = options.n_tokens;
  json["seed"] = options.seed;
  json["configurations"] = Json::array();
  for (std::size_t c = 0; c < result.scores.size(); ++c) {
    eval::AnswerScore all;
    Json cells = Json::array();
    for (std::size_t f = 0; f < eval::kFactKinds.size(); ++f) {
      for (std::size_t t = 0; t < options.turns.size(); ++t) {
        Json cell = {{"fact", eval::kFactKinds[f]}, {"turns", options.turns[t]}};
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

Outcome<ExitCode> run(const Console& console, const MemoryFlags& flags) {
  TQC_TRY_ASSIGN(eval::MemoryOptions options, memory_options(flags));
  TQC_TRY_ASSIGN(const Examinee examinee, open_examinee(flags.answers));
  options.configurations = examinee.configurations;
  TQC_TRY(eval::check_memory(*examinee.model, examinee.dialogue, options));
  TQC_TRY_ASSIGN(const std::unique_ptr<ScratchFolder> folder, ScratchFolder::make());
  options.folder = folder->path();
  eval::MemoryResult result;
  {
    ProgressBar bar(console, "memory", Unit::kTokens);
    TQC_TRY_ASSIGN(
        result, eval::measure_memory(*examinee.model, examinee.dialogue, options, bar.callback()));
  }
  eval::Report report = eval::memory_report(options, result);
  add_facts(flags.answers, examinee, report);
  TQC_TRY(give_report(console, flags.answers.output, report,
                      memory_json(flags, examinee, options, result)));
  return ExitCode::kDone;
}

}  // namespace

Action define_eval_memory(CLI::App& app) {
  const auto flags = std::make_shared<MemoryFlags>();
  add_answer_flags(app, flags->answers);
  app.add_option("--trials", flags->trials, "Conversations")
      ->type_name("N")
      ->check(within(1, 100000))
      ->capture_default_str();
  app.add_option("--tokens", flags->n_tokens, "Tokens that a conversation has when it is saved")
      ->type_name("N")
      ->check(within(1, cache::kMaxTokens))
      ->capture_default_str();
  app.add_option("--turns", flags->turns, "Further turns after which to ask")
      ->type_name("LIST")
      ->capture_default_str();
  app.add_option("--seed", flags->seed, "Of conversations")->type_name("N")->capture_default_str();
  app.footer(kEvalMemoryExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
