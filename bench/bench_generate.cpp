// bench/bench_generate.cpp: speed of decode steps of a whole model after long prompts.
//
//   generate/<preset>/<depth>/threads:<n>     tokens/s of the decode steps after `depth` tokens
//
// The model is that of bench_model.h: 8 layers, d_model 1024, d_ff 3072, 16 query heads on 4 kv
// heads, head_dim 128, a vocabulary of 512, f16; codes are scored with the fast kernels.

#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

#include "bench_model.h"
#include "tqcache/cache.h"
#include "tqcache/decoder.h"

namespace {

using namespace tqcache;
using namespace tqcache::bench;

// The number of tokens generated before a cache is truncated to its depth again: half a token
// block, so that no block is quantized meanwhile.
constexpr std::int64_t kMostSteps = cache::kTokenBlock / 2;

// The model, and caches of every preset and depth, made on first use.
struct Stage {
  BenchModel model;
  std::map<std::pair<std::string, std::int64_t>, std::unique_ptr<cache::Cache>> caches;

  cache::Cache& cache(const std::string& preset, std::int64_t depth) {
    auto& entry = caches[{preset, depth}];
    if (entry == nullptr) {
      cache::Cache dense = noise_cache(model.config, model.config.n_layers, depth);
      entry = std::make_unique<cache::Cache>(convert(std::move(dense), preset));
    }
    return *entry;
  }
};

void generate(benchmark::State& state, Stage* stage, const std::string& preset, std::int64_t depth,
              unsigned n_threads) {
  cache::Cache& cache = stage->cache(preset, depth);
  cache = must(cache::truncate(std::move(cache), depth));
  model::Decoder decoder(stage->model.config, stage->model.weights, n_threads);
  must(decoder.decode_step(cache, 1));  // allocates scratch memory and the new token block
  for (auto _ : state) {
    must(decoder.decode_step(cache, static_cast<std::int32_t>(cache.n_tokens() % 512)));
    if (cache.n_tokens() < depth + kMostSteps) continue;
    state.PauseTiming();
    cache = must(cache::truncate(std::move(cache), depth + 1));
    state.ResumeTiming();
  }
  using benchmark::Counter;
  state.counters["tokens/s"] = Counter(static_cast<double>(state.iterations()), Counter::kIsRate);
  state.counters["cache_MB"] = static_cast<double>(cache::byte_count(cache).used) * 1e-6;
}

constexpr const char* kPresets[] = {"f16", "turbo4", "turbo4-none", "turbo3", "turbo2"};

}  // namespace

int main(int argc, char** argv) {
  Stage stage;
  for (const std::int64_t depth : {0, 4096, 16384, 32768}) {
    for (const std::string preset : kPresets) {
      for (const unsigned n_threads : {1u, 2u}) {
        const std::string name = "generate/" + preset + "/" + std::to_string(depth) +
                                 "/threads:" + std::to_string(n_threads);
        benchmark::RegisterBenchmark(name.c_str(), generate, &stage, preset, depth, n_threads)
            ->Unit(benchmark::kMillisecond)
            ->UseRealTime();
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
