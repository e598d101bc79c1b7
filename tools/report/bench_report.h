#pragma once
// tools/report/bench_report.h: what `tqcache bench` measured, as a report and as JSON.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/console.h"
#include "report/speed_fields.h"
#include "tqcache/eval/report.h"
#include "tqcache/eval/speed.h"

namespace tqcache::cli {

// What every run does.
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
  std::optional<std::string> file;  // absent: tokens were drawn
  BenchWork work;
  eval::SpeedOptions options;
  std::vector<BenchBackend> backends;
};

// A table of medians, each beside the baseline if that is there, and one of all runs.
eval::Report bench_report(const BenchResult& result);

// The same with the fields that `generate --json` has, for each backend.
Json bench_json(const BenchResult& result);

}  // namespace tqcache::cli
