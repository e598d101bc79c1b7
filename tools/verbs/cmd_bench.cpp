// tools/verbs/cmd_bench.cpp: how fast a model reads and writes, and what its cache takes, by
// backend.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "cli/cli.h"
#include "cli/eval_output.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "report/bench_report.h"
#include "tqcache/cache/configuration.h"
#include "tqcache/eval/speed.h"
#include "tqcache/model/loading/model.h"

namespace tqcache::cli {
namespace {

constexpr const char* kBenchExamples =
    R"(Every run begins with an empty cache, reads the whole prompt into it, and then
writes behind it: so the first speed is that of reading with packing counted, and
the second that of decode steps at that depth. Runs of the backends take turns.
The tokens are the same in all of them, whatever the model would say; without
--file they are drawn from the vocabulary.

  baseline  dense, f16
  affine    groups with scale and bias: affine4, unless --config says otherwise
  turbo     rotated codes: turbo4, unless --config says otherwise

A backend that packs nothing has nothing to compare, and is refused: a block is
packed when it has 256 tokens and the next one comes.

Examples:
  tqcache bench -m model.gguf
  tqcache bench -m model.gguf --backend baseline,affine,turbo --prompt-tokens 4096
  tqcache bench -m model.gguf --backend baseline,turbo --config k8v4
  tqcache bench -m model.gguf --backend turbo --config k=mse:4,v=mse:3,sink=4 --json
  tqcache bench -m model.gguf --file book.txt --html bench.html
)";

constexpr int kMostRuns = 1000;  // more is a typing mistake

struct BenchFlags {
  std::string model;
  std::vector<std::string> backends = {"baseline", "turbo"};
  std::optional<std::string> configuration;
  std::optional<std::string> file;
  BenchWork work;
  eval::SpeedOptions options;
  EvalOutput output;
};

// What each backend is when nobody says otherwise.
const std::map<std::string, std::string> kBackends = {
    {"baseline", std::string(cache::kDenseName)}, {"affine", "affine4"}, {"turbo", "turbo4"}};

std::string configuration_of(const BenchFlags& flags, const std::string& backend) {
  const bool is_chosen = flags.configuration && backend != "baseline";
  return is_chosen ? *flags.configuration : kBackends.at(backend);
}

// What stands beside the figures: the name that leaves a cache dense says nothing of its values.
std::string configuration_text(const BenchFlags& flags, const std::string& backend) {
  return backend == "baseline" ? "dense f16" : configuration_of(flags, backend);
}

bool is_affine(const cache::SidePlan& side) { return side.codec.mode == codec::Mode::kAffine; }

// Both sides of affine are affine or dense, and none of turbo is.
Result<void> check_backend(const std::string& backend, const cache::Configuration& configuration) {
  if (backend == "baseline") return {};
  for (const cache::SidePlan* side : {&configuration.options.keys, &configuration.options.values}) {
    if (side->dense || is_affine(*side) == (backend == "affine")) continue;
    return usage_error(
        fmt::format("--config: {} is not of the backend {}", configuration.name, backend));
  }
  return {};
}

Result<std::vector<eval::SpeedCase>> cases_of(const BenchFlags& flags) {
  std::vector<eval::SpeedCase> cases;
  for (const std::string& backend : flags.backends) {
    auto configuration = cache::parse_configuration(configuration_of(flags, backend));
    if (!configuration) return in_context("--config", std::move(configuration).error());
    TQC_TRY(check_backend(backend, *configuration));
    cases.push_back({backend, configuration->options, backend != "baseline"});
  }
  return cases;
}

Result<void> check_flags(const BenchFlags& flags) {
  for (auto each = flags.backends.begin(); each != flags.backends.end(); ++each) {
    if (std::find(flags.backends.begin(), each, *each) == each) continue;
    return usage_error(fmt::format("--backend: {} is there twice", *each));
  }
  const auto n_packing =
      std::ssize(flags.backends) - std::ranges::count(flags.backends, "baseline");
  if (!flags.configuration || n_packing == 1) return {};
  return usage_error(n_packing == 0 ? "--config: the baseline has none"
                                    : "--config is of one backend: name only one beside baseline");
}

// The prompt, and what is written behind it.
struct Tokens {
  std::vector<std::int32_t> prompt, continuation;
};

Outcome<Tokens> read_tokens(const BenchFlags& flags, const model::Model& model) {
  const BenchWork& work = flags.work;
  const std::int64_t n_tokens = work.prompt_tokens + work.generation_tokens;
  std::vector<std::int32_t> ids;
  if (flags.file) {
    TQC_TRY_ASSIGN(ids, read_prompt({{}, flags.file, {}, true}, model.tokenizer));
    if (std::ssize(ids) < n_tokens) {
      return usage_error(fmt::format("{} holds {} tokens, and {} are to be read and written",
                                     *flags.file, ids.size(), n_tokens));
    }
  } else {
    ids = eval::random_ids(n_tokens, model.config.vocab_size, work.seed);
  }
  const auto end_of_prompt = ids.begin() + work.prompt_tokens;
  return Tokens{{ids.begin(), end_of_prompt},
                {end_of_prompt, end_of_prompt + work.generation_tokens}};
}

Outcome<ExitCode> run(const Console& console, const BenchFlags& flags) {
  TQC_TRY(check_flags(flags));
  TQC_TRY_ASSIGN(const std::vector<eval::SpeedCase> cases, cases_of(flags));
  TQC_TRY(check_eval_output(flags.output));
  TQC_TRY_ASSIGN(const std::unique_ptr<model::Model> model,
                 in_file(flags.model, model::load_model(flags.model)));
  TQC_TRY_ASSIGN(const Tokens tokens, read_tokens(flags, *model));

  BenchResult result{flags.model, flags.file, flags.work, flags.options, {}};
  {
    ProgressBar bar(console, "bench", Unit::kTokens);
    TQC_TRY_ASSIGN(const std::vector<eval::Speed> speeds,
                   eval::measure_speed(*model, cases, tokens.prompt, tokens.continuation,
                                       flags.options, bar.callback()));
    for (std::size_t i = 0; i < cases.size(); ++i) {
      result.backends.push_back(
          {cases[i].name, configuration_text(flags, cases[i].name), speeds[i],
           working_set_bytes(*model, speeds[i].cache_bytes, speeds[i].scratch_bytes)});
    }
  }
  TQC_TRY(give_report(console, flags.output, bench_report(result), bench_json(result)));
  return ExitCode::kDone;
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const auto& [name, configuration] : kBackends) names.push_back(name);
  return names;
}

void add_work_flags(CLI::App& app, BenchFlags& flags) {
  app.add_option("--prompt-tokens", flags.work.prompt_tokens, "Tokens to read")
      ->type_name("N")
      ->check(at_least(1))
      ->capture_default_str();
  app.add_option("--generation-tokens", flags.work.generation_tokens, "Tokens to write behind them")
      ->type_name("N")
      ->check(at_least(1))
      ->capture_default_str();
  app.add_option("--file", flags.file, "A text to take the tokens from; - is standard input")
      ->type_name("FILE")
      ->check(file_name());
  app.add_option("--seed", flags.work.seed, "Of the tokens, without --file")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--warmup", flags.options.n_warmups, "Runs of each backend that do not count")
      ->type_name("N")
      ->check(CLI::Range(0, kMostRuns).description(""))
      ->capture_default_str();
  app.add_option("--repeats", flags.options.n_repeats, "Runs of each backend that do")
      ->type_name("N")
      ->check(CLI::Range(1, kMostRuns).description(""))
      ->capture_default_str();
}

}  // namespace

Action define_bench(CLI::App& app) {
  const auto flags = std::make_shared<BenchFlags>();
  add_model_flag(app, flags->model, true);
  app.add_option("--backend", flags->backends, "baseline, affine, turbo: one or more, by commas")
      ->type_name("LIST")
      ->delimiter(',')
      ->check(CLI::IsMember(backend_names()).description(""))
      ->default_str("baseline,turbo");
  app.add_option("--config", flags->configuration,
                 "How the backend beside baseline keeps the cache: a preset, or "
                 "k=mse:4,v=mse:3,boundary=2:8,sink=4")
      ->type_name("TEXT");
  add_work_flags(app, *flags);
  add_threads_flag(app, flags->options.n_threads);
  add_scorer_flag(app, flags->options.scorer);
  add_eval_output_flags(app, flags->output);
  app.footer(kBenchExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
