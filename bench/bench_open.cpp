// bench/bench_open.cpp: time from a file to the first token: opening a turbo4 cache and the decode
// step that computes the logits of its last token. One thread; the file is in the page cache.
//
//   open/stored/<tokens>      uncompressed sections, mapped: checksums, no copy
//   open/trusted/<tokens>     the same without checksums of the mapped sections
//   open/zstd/<tokens>        compressed sections
//   open/read/<tokens>        uncompressed sections, read into memory
//   open/step/<tokens>        only the decode step, with a cache in memory; part of all the others
//
// The model is that of bench_model.h.

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "bench_model.h"
#include "tqcache/decoder.h"
#include "tqcache/file.h"
#include "tqcache/tqkv.h"

namespace {

using namespace tqcache;
using namespace tqcache::bench;

// A cache, in memory and in two files.
struct Files {
  cache::Cache cache;
  std::filesystem::path stored;
  std::filesystem::path zstd;
};

// The model and the files in a temporary folder, made on first use.
class Stage {
 public:
  Stage() { std::filesystem::create_directories(folder_); }
  ~Stage() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  const BenchModel& model() const { return model_; }

  const Files& files(std::int64_t n_tokens) {
    auto& entry = files_[n_tokens];
    if (entry != nullptr) return *entry;
    const std::string name = std::to_string(n_tokens);
    entry = std::make_unique<Files>(
        Files{convert(noise_cache(model_.config, model_.config.n_layers, n_tokens), "turbo4"),
              folder_ / (name + "-stored.tqkv"), folder_ / (name + "-zstd.tqkv")});
    must(format::write_cache_file(entry->cache, entry->stored,
                                  {.compression = format::Compression::kNone}));
    must(format::write_cache_file(entry->cache, entry->zstd, {}));
    return *entry;
  }

 private:
  BenchModel model_;
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("tqcache-bench-" + std::to_string(::getpid()));
  std::map<std::int64_t, std::unique_ptr<Files>> files_;
};

enum class Way { kStored, kTrusted, kZstd, kRead };

cache::Cache open(const Files& files, Way way) {
  format::ReadOptions options;
  options.n_threads = 1;
  options.verify_checksums = way != Way::kTrusted;
  if (way == Way::kRead) {
    const auto source = must(open_file(files.stored));
    return must(format::read_cache(*source, options));
  }
  return must(format::map_cache(way == Way::kZstd ? files.zstd : files.stored, options));
}

void open_to_first_token(benchmark::State& state, Stage* stage, std::int64_t n_tokens, Way way) {
  const Files& files = stage->files(n_tokens);
  model::Decoder decoder(stage->model().config, stage->model().weights, 1);
  must(decoder.last_logits(files.cache));  // allocates scratch memory
  for (auto _ : state) {
    const cache::Cache cache = open(files, way);
    benchmark::DoNotOptimize(must(decoder.last_logits(cache)).data());
  }
}

void step(benchmark::State& state, Stage* stage, std::int64_t n_tokens) {
  const Files& files = stage->files(n_tokens);
  model::Decoder decoder(stage->model().config, stage->model().weights, 1);
  for (auto _ : state) benchmark::DoNotOptimize(must(decoder.last_logits(files.cache)).data());
}

}  // namespace

int main(int argc, char** argv) {
  Stage stage;
  constexpr std::pair<const char*, Way> kWays[] = {{"stored", Way::kStored},
                                                   {"trusted", Way::kTrusted},
                                                   {"zstd", Way::kZstd},
                                                   {"read", Way::kRead}};
  for (const std::int64_t n_tokens : {4096, 32768}) {
    const std::string tokens = "/" + std::to_string(n_tokens);
    for (const auto& [name, way] : kWays) {
      benchmark::RegisterBenchmark(("open/" + std::string(name) + tokens).c_str(),
                                   open_to_first_token, &stage, n_tokens, way)
          ->Unit(benchmark::kMillisecond);
    }
    benchmark::RegisterBenchmark(("open/step" + tokens).c_str(), step, &stage, n_tokens)
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
