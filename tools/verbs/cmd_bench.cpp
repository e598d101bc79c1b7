// tools/verbs/cmd_bench.cpp: speed and memory of a model, by cache configuration.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "cli/common_flags.h"
#include "cli/model_facts.h"
#include "cli/prompt.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "report/speed_fields.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/eval/speed.h"
#include "tqcache/model.h"
#include "tqcache/quantize.h"
#include "tqcache/session.h"
#include "verbs/bench_cuda.h"
#include "verbs/eval_common.h"

namespace tqcache::cli {
namespace {

// The work of every run.
struct BenchWork {
  std::int64_t prompt_tokens = 1024;
  std::int64_t generation_tokens = 64;
  std::uint64_t seed = 1;
};

struct BenchBackend {
  std::string name;           // "turbo"
  std::string configuration;  // "turbo4"
  eval::Speed speed;
  std::uint64_t working_set_bytes = 0;
};

struct BenchResult {
  std::string model;
  std::optional<std::string> file;  // absent: random tokens
  BenchWork work;
  eval::SpeedOptions options;
  std::vector<BenchBackend> backends;
};

using eval::Number;

// Medians of a backend.
struct Rates {
  double prompt = 0;      // tokens per second
  double generation = 0;  // tokens per second
};

Rates rates_of(const BenchWork& work, const eval::SpeedRun& run) {
  return {static_cast<double>(work.prompt_tokens) / run.prompt_seconds,
          static_cast<double>(work.generation_tokens) / run.generation_seconds};
}

Rates median_rates(const BenchResult& result, const BenchBackend& backend) {
  return rates_of(result.work, eval::median_run(backend.speed));
}

const BenchBackend* baseline_of(const BenchResult& result) {
  const auto found = std::ranges::find(result.backends, "baseline", &BenchBackend::name);
  return found == result.backends.end() ? nullptr : &*found;
}

// A backend relative to the baseline: times as fast, times smaller.
struct Comparison {
  double prompt = 0;
  double generation = 0;
  double cache = 0;
};

Comparison compare(const BenchResult& result, const BenchBackend& baseline,
                   const BenchBackend& backend) {
  const Rates base = median_rates(result, baseline);
  const Rates rates = median_rates(result, backend);
  return {rates.prompt / base.prompt, rates.generation / base.generation,
          static_cast<double>(baseline.speed.cache_bytes.used) /
              static_cast<double>(backend.speed.cache_bytes.used)};
}

eval::Table medians_table(const BenchResult& result) {
  eval::Table table{
      "Medians",
      {"backend", "configuration", "prompt tokens/s", "written tokens/s", "cache bytes", "scored"},
      {}};
  const BenchBackend* baseline = baseline_of(result);
  const bool has_comparison = baseline != nullptr && result.backends.size() > 1;
  if (has_comparison) {
    table.columns.insert(table.columns.end(), {"prompt x", "written x", "smaller x"});
  }
  for (const BenchBackend& backend : result.backends) {
    const Rates rates = median_rates(result, backend);
    std::vector<eval::Cell> row = {backend.name,
                                   backend.configuration,
                                   Number{rates.prompt, 1},
                                   Number{rates.generation, 1},
                                   Number{static_cast<double>(backend.speed.cache_bytes.used), 0},
                                   std::string(backend.speed.route.step)};
    if (has_comparison) {
      const Comparison times = compare(result, *baseline, backend);
      for (const double each : {times.prompt, times.generation, times.cache}) {
        row.emplace_back(Number{each, 2});
      }
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

eval::Table runs_table(const BenchResult& result) {
  eval::Table table{
      "Runs",
      {"backend", "run", "prompt tokens/s", "written tokens/s", "prompt s", "written s"},
      {}};
  for (const BenchBackend& backend : result.backends) {
    for (std::size_t i = 0; i < backend.speed.runs.size(); ++i) {
      const eval::SpeedRun& run = backend.speed.runs[i];
      const Rates rates = rates_of(result.work, run);
      table.rows.push_back({backend.name, Number{static_cast<double>(i + 1), 0},
                            Number{rates.prompt, 1}, Number{rates.generation, 1},
                            Number{run.prompt_seconds, 4}, Number{run.generation_seconds, 4}});
    }
  }
  return table;
}

// The medians drawn, a bar for each backend.
std::vector<eval::Figure> median_bars(const BenchResult& result) {
  eval::Bars reading{"Prompt tokens read in a second", "tokens/s", {}, 1};
  eval::Bars writing{"Tokens written in a second", "tokens/s", {}, 1};
  eval::Bars memory{"Keys and values in memory", "bytes", {}, 0};
  for (const BenchBackend& backend : result.backends) {
    const Rates rates = median_rates(result, backend);
    reading.bars.push_back({backend.name, {{"tokens/s", rates.prompt}}});
    writing.bars.push_back({backend.name, {{"tokens/s", rates.generation}}});
    memory.bars.push_back(
        {backend.name, {{"bytes", static_cast<double>(backend.speed.cache_bytes.used)}}});
  }
  return {std::move(reading), std::move(writing), std::move(memory)};
}

std::string count_text(std::int64_t n) { return grouped(static_cast<std::uint64_t>(n)); }

std::string tokens_text(const BenchResult& result) {
  return result.file ? *result.file : fmt::format("drawn, seed {}", result.work.seed);
}

Json run_json(const BenchWork& work, const eval::SpeedRun& run) {
  Json json;
  json["prompt_tps"] = rate(work.prompt_tokens, run.prompt_seconds);
  json["generation_tps"] = rate(work.generation_tokens, run.generation_seconds);
  json["prompt_wall_time_s"] = run.prompt_seconds;
  json["generation_wall_time_s"] = run.generation_seconds;
  return json;
}

Json backend_json(const BenchResult& result, const BenchBackend& backend) {
  const eval::SpeedRun median = eval::median_run(backend.speed);
  Json json;
  json["backend"] = backend.name;
  json["configuration"] = backend.configuration;
  add_speed_fields({.prompt_tokens = result.work.prompt_tokens,
                    .generation_tokens = result.work.generation_tokens,
                    .timed_tokens = result.work.generation_tokens,
                    .prompt_seconds = median.prompt_seconds,
                    .generation_seconds = median.generation_seconds,
                    .cache_bytes = backend.speed.cache_bytes,
                    .working_set_bytes = backend.working_set_bytes,
                    .route = backend.speed.route},
                   json);
  json["packed_blocks"] = backend.speed.packed_blocks;
  json["runs"] = Json::array();
  for (const eval::SpeedRun& run : backend.speed.runs) {
    json["runs"].push_back(run_json(result.work, run));
  }
  return json;
}

Json comparison_json(const BenchResult& result) {
  const BenchBackend* baseline = baseline_of(result);
  if (baseline == nullptr || result.backends.size() < 2) return nullptr;
  Json json = Json::array();
  for (const BenchBackend& backend : result.backends) {
    if (&backend == baseline) continue;
    const Comparison times = compare(result, *baseline, backend);
    json.push_back({{"backend", backend.name},
                    {"prompt_speedup", times.prompt},
                    {"generation_speedup", times.generation},
                    {"cache_ratio", times.cache}});
  }
  return json;
}

// A table of medians, each with its ratio to the baseline if there is one; the medians drawn; and a
// table of all runs.
eval::Report bench_report(const BenchResult& result) {
  const BenchWork& work = result.work;
  eval::Report report;
  report.title = "Speed by backend";
  report.facts = {{"model", result.model},
                  {"tokens", tokens_text(result)},
                  {"work", fmt::format("{} read, then {} written", count_text(work.prompt_tokens),
                                       count_text(work.generation_tokens))},
                  {"runs", fmt::format("{}, after {} to warm up, in turn", result.options.n_repeats,
                                       result.options.n_warmups)},
                  {"kernels", std::string(codec::best_kernels().name)}};
  report.figures = {medians_table(result)};
  std::ranges::move(median_bars(result), std::back_inserter(report.figures));
  report.figures.emplace_back(runs_table(result));
  report.notes = {"Bytes: keys and values in memory at the end of a run."};
  for (const BenchBackend& backend : result.backends) {
    const std::string& fallback = backend.speed.route.fallback;
    if (!fallback.empty()) report.notes.push_back(backend.name + ": scored in f32, " + fallback);
  }
  return report;
}

Json bench_json(const BenchResult& result) {
  Json json;
  json["schema"] = 1;
  json["model"] = result.model;
  json["file"] = result.file ? Json(*result.file) : Json(nullptr);
  json["seed"] = result.file ? Json(nullptr) : Json(result.work.seed);
  json["threads"] = result.options.n_threads;
  json["warmup"] = result.options.n_warmups;
  json["repeats"] = result.options.n_repeats;
  json["kernels"] = codec::best_kernels().name;
  json["backends"] = Json::array();
  for (const BenchBackend& backend : result.backends) {
    json["backends"].push_back(backend_json(result, backend));
  }
  json["comparison"] = comparison_json(result);
  return json;
}

constexpr const char* kBenchExamples =
    R"(Each run prefills an empty cache with the prompt, then decodes tokens behind it. The first speed
includes quantization, the second is that of decode steps at that depth. The backends take turns.
All runs use the same tokens, whatever the model would predict; without --file they are random.

  baseline  dense f16
  affine    groups with scale and bias: affine4, or --config
  turbo     rotated and quantized: turbo4, or --config

A block of 256 tokens is quantized when it is full and the next token arrives. A backend that would
quantize nothing is refused.

With --device cuda no model runs: the kernels for NVIDIA GPUs encode, decode and attend to random
keys and values of one layer of that model, or of 8 heads of 128 that 32 query heads read. Each time
is a median, and stands beside that of a copy of the dense values in the memory of the GPU. Other
data passes through the GPU's cache before each run.

Examples:
  tqcache bench -m model.gguf
  tqcache bench -m model.gguf --backend baseline,affine,turbo --prompt-tokens 4096
  tqcache bench -m model.gguf --backend baseline,turbo --config k8v4
  tqcache bench -m model.gguf --backend turbo --config k=mse:4,v=mse:3 --json
  tqcache bench -m model.gguf --file book.txt --html bench.html
  tqcache bench --device cuda
  tqcache bench --device cuda -m model.gguf --config k8v4 --prompt-tokens 32768
)";

constexpr int kMostRuns = 1000;  // more is a typing mistake

struct BenchFlags {
  std::string model;
  std::string device = "cpu";
  const Flag* prompt_tokens = nullptr;
  const Flag* repeats = nullptr;
  std::vector<const Flag*> of_cpu;  // flags that --device cuda does not have
  std::vector<std::string> backends = {"baseline", "turbo"};
  std::optional<std::string> configuration;
  std::optional<std::string> file;
  BenchWork work;
  eval::SpeedOptions options;
  EvalOutput output;
};

// The default configuration of each backend.
const std::map<std::string, std::string> kBackends = {
    {"baseline", std::string(cache::kDenseName)}, {"affine", "affine4"}, {"turbo", "turbo4"}};

std::string configuration_of(const BenchFlags& flags, const std::string& backend) {
  const bool is_chosen = flags.configuration && backend != "baseline";
  return is_chosen ? *flags.configuration : kBackends.at(backend);
}

// The label in tables, because the name of the dense configuration does not say its type.
std::string configuration_text(const BenchFlags& flags, const std::string& backend) {
  return backend == "baseline" ? "dense f16" : configuration_of(flags, backend);
}

bool is_affine(const cache::TensorPlan& tensor) {
  return tensor.codec.mode == codec::Mode::kAffine;
}

// With the backend affine, K and V are affine or dense; with turbo, neither is affine.
Result<void> check_backend(const std::string& backend, const cache::Configuration& configuration) {
  if (backend == "baseline") return {};
  for (const cache::TensorPlan* tensor :
       {&configuration.options.keys, &configuration.options.values}) {
    if (tensor->dense || is_affine(*tensor) == (backend == "affine")) continue;
    return usage_error(fmt::format("--config: {} is not a setting of the backend {}",
                                   configuration.name, backend));
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
    return usage_error(fmt::format("--backend: {} is given twice", *each));
  }
  const bool packs = std::ranges::any_of(
      flags.backends, [](const std::string& backend) { return backend != "baseline"; });
  const std::int64_t n_tokens = flags.work.prompt_tokens + flags.work.generation_tokens;
  if (packs && n_tokens <= cache::kTokenBlock) {
    return usage_error(fmt::format(
        "--prompt-tokens and --generation-tokens: {} in all, and nothing is quantized before {} "
        "(a block of {} is full and the next token arrives)",
        counted(n_tokens, "token"), cache::kTokenBlock + 1, cache::kTokenBlock));
  }
  const auto n_packing =
      std::ssize(flags.backends) - std::ranges::count(flags.backends, "baseline");
  if (!flags.configuration || n_packing == 1) return {};
  return usage_error(n_packing == 0 ? "--config: the baseline has no settings"
                                    : "--config: name exactly one backend besides baseline");
}

// The prompt, and the tokens generated after it.
struct Tokens {
  std::vector<std::int32_t> prompt, continuation;
};

Result<Tokens> read_tokens(const BenchFlags& flags, const model::Model& model) {
  const BenchWork& work = flags.work;
  const std::int64_t n_tokens = work.prompt_tokens + work.generation_tokens;
  std::vector<std::int32_t> ids;
  if (flags.file) {
    TQC_TRY_ASSIGN(ids, read_prompt({{}, flags.file, {}, true}, model.tokenizer));
    if (std::ssize(ids) < n_tokens) {
      return usage_error(
          fmt::format("{} has {} tokens, but {} are needed", *flags.file, ids.size(), n_tokens));
    }
  } else {
    ids = eval::random_ids(n_tokens, model.config.vocab_size, work.seed);
  }
  const auto end_of_prompt = ids.begin() + work.prompt_tokens;
  return Tokens{{ids.begin(), end_of_prompt},
                {end_of_prompt, end_of_prompt + work.generation_tokens}};
}

Result<ExitCode> run_on_gpu(const Console& console, const BenchFlags& flags) {
  for (const Flag* flag : flags.of_cpu) {
    if (flag->is_given()) return usage_error(flag->name() + ": not with --device cuda");
  }
  CudaBench bench;
  bench.model = flags.model;
  bench.configuration = flags.configuration.value_or("turbo4");
  if (flags.prompt_tokens->is_given()) bench.n_tokens = flags.work.prompt_tokens;
  bench.n_runs = static_cast<int>(flags.repeats->is_given() ? flags.options.n_repeats : 20);
  return bench_cuda(console, bench, flags.output);
}

Result<ExitCode> run(const Console& console, const BenchFlags& flags) {
  if (flags.device == "cuda") return run_on_gpu(console, flags);
  if (flags.model.empty()) return usage_error("--model is required, unless with --device cuda");
  TQC_TRY(check_flags(flags));
  TQC_TRY_ASSIGN(const std::vector<eval::SpeedCase> cases, cases_of(flags));
  TQC_TRY(check_eval_output(flags.output));
  TQC_TRY_ASSIGN(const std::unique_ptr<model::Model> model, load_model(console, flags.model));
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
           session::working_set_bytes(*model, speeds[i].cache_bytes, speeds[i].scratch_bytes)});
    }
  }
  eval::Report report = bench_report(result);
  add_run_facts(flags.options.n_threads, model.get(), report);
  TQC_TRY(give_report(console, flags.output, report, bench_json(result)));
  return ExitCode::kDone;
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const auto& [name, configuration] : kBackends) names.push_back(name);
  return names;
}

void add_work_flags(FlagSet& app, BenchFlags& flags) {
  flags.prompt_tokens = app.add("--prompt-tokens", flags.work.prompt_tokens,
                                "Tokens to prefill; with --device cuda those of the cache")
                            ->type_name("N")
                            ->at_least(1)
                            ->show_default("1024, or 131072 with --device cuda");
  flags.of_cpu.push_back(
      app.add("--generation-tokens", flags.work.generation_tokens, "Tokens to decode behind them")
          ->type_name("N")
          ->at_least(1)
          ->show_default());
  flags.of_cpu.push_back(
      app.add("--file", flags.file, "Text to take the tokens from; - is standard input")
          ->type_name("FILE")
          ->file());
  flags.of_cpu.push_back(
      app.add("--seed", flags.work.seed, "Seed of the random tokens, without --file")
          ->type_name("N")
          ->show_default());
  flags.of_cpu.push_back(
      app.add("--warmup", flags.options.n_warmups, "Runs of each backend that are not measured")
          ->type_name("N")
          ->range(0, kMostRuns)
          ->show_default());
  const std::string repeats = fmt::format("{}, or 20 with --device cuda", flags.options.n_repeats);
  flags.repeats = app.add("--repeats", flags.options.n_repeats, "Runs that are measured")
                      ->type_name("N")
                      ->range(1, kMostRuns)
                      ->show_default(repeats);
}

}  // namespace

Action define_bench(FlagSet& app) {
  const auto flags = std::make_shared<BenchFlags>();
  add_model_flag(app, flags->model, false);
  app.add("--device", flags->device, "What to measure: a model on the CPU, or kernels of the GPU")
      ->type_name("NAME")
      ->one_of({"cpu", "cuda"})
      ->show_default();
  flags->of_cpu.push_back(
      app.add("--backend", flags->backends,
              "Backends to measure, separated by commas: baseline, affine, turbo")
          ->type_name("LIST")
          ->separated_by(',')
          ->one_of(backend_names())
          ->show_default("baseline,turbo"));
  app.add("--config", flags->configuration,
          "Settings of the backend beside baseline: a preset, or "
          "k=mse:4,v=mse:3,boundary=2:8")
      ->type_name("TEXT");
  add_work_flags(app, *flags);
  add_resource_flags(app, flags->options.n_threads);
  add_scorer_flag(app, flags->options.scorer);
  add_activations_flag(app, flags->options.activations);
  add_eval_output_flags(app, flags->output);
  app.footer(kBenchExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
