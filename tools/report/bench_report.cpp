#include "report/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/text.h"
#include "tqcache/codec/kernels/kernels.h"

namespace tqcache::cli {
namespace {

using eval::Number;

// Of a backend by its medians.
struct Rates {
  double prompt = 0;      // tokens a second
  double generation = 0;  // tokens a second
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

// How a backend does beside the baseline: times as fast, times smaller.
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

}  // namespace

eval::Report bench_report(const BenchResult& result) {
  const BenchWork& work = result.work;
  eval::Report report;
  report.title = "Speed by backend";
  report.facts = {
      {"model", result.model},
      {"tokens", tokens_text(result)},
      {"work", fmt::format("{} read, then {} written", count_text(work.prompt_tokens),
                           count_text(work.generation_tokens))},
      {"runs", fmt::format("{}, after {} to warm up, in turn", result.options.n_repeats,
                           result.options.n_warmups)},
      {"threads",
       result.options.n_threads == 0 ? "all processors" : std::to_string(result.options.n_threads)},
      {"kernels", std::string(codec::best_kernels().name)},
      {"program", "tqcache " TQCACHE_VERSION}};
  report.figures = {medians_table(result), runs_table(result)};
  report.notes = {"Bytes are those of keys and values in memory at the end of a run."};
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

}  // namespace tqcache::cli
