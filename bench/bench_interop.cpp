// bench/bench_interop.cpp: speed of reading and writing caches of other programs, section by
// section as in `tqcache convert`, without the conversion itself. f16, one thread, files in the
// page cache. The rates count the bytes of keys and values.
//
//   import/<format>/<tokens>       mlx-lm, hf, npz; llama: rows of all heads, as with flash
//                                  attention; llama-transposed: values as without it
//   import/read/<tokens>           the mlx-lm file, read in chunks of 1 MiB, as a reference
//   export/<format>/<tokens>       from a cache in memory to a new file

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "bench_model.h"
#include "tqcache/file.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/hf/hf.h"
#include "tqcache/interop/llama/llama_state.h"
#include "tqcache/interop/mlx/mlx_lm.h"
#include "tqcache/interop/npz/npz_cache.h"

namespace {

using namespace tqcache;
using namespace tqcache::bench;
namespace fs = std::filesystem;

enum class Format { kMlxLm, kHf, kNpz, kLlama, kLlamaTransposed };

constexpr const char* kNames[] = {"mlx-lm", "hf", "npz", "llama", "llama-transposed"};

interop::LlamaGeometry geometry_of(const cache::CacheDesc& cache) {
  interop::LlamaGeometry geometry;
  geometry.architecture = "qwen3";
  for (const cache::LayerDesc& layer : cache.layers) {
    const auto [n_kv_heads, head_dim] = std::get<cache::AttentionDesc>(layer).shape;
    geometry.layers.push_back(
        {interop::LlamaLayerKind::kAttention, n_kv_heads, head_dim, head_dim});
    geometry.n_rot = head_dim;
  }
  return geometry;
}

void write(Format format, const cache::CacheReader& cache, const fs::path& path) {
  interop::LlamaExport llama;
  llama.overwrite = Overwrite::kAllow;
  interop::MlxLmExport mlx_lm;
  mlx_lm.overwrite = Overwrite::kAllow;
  llama.flash_attention = format == Format::kLlama;
  switch (format) {
    case Format::kMlxLm:
      return must(interop::export_mlx_lm(cache, path, mlx_lm));
    case Format::kHf:
      return must(interop::export_hf(cache, path, Overwrite::kAllow));
    case Format::kNpz:
      return must(interop::export_npz(cache, path, Overwrite::kAllow));
    case Format::kLlama:
    case Format::kLlamaTransposed:
      return must(
          interop::export_llama_state(cache, geometry_of(cache.description()), path, llama));
  }
}

std::shared_ptr<const cache::CacheReader> read(Format format, const fs::path& path,
                                               const cache::CacheDesc& like) {
  const std::shared_ptr<const ByteSource> file = must(open_file(path));
  switch (format) {
    case Format::kMlxLm:
      return must(interop::reader_of(must(interop::import_mlx_lm(file))));
    case Format::kHf:
      return must(interop::reader_of(must(interop::import_hf(file))));
    case Format::kNpz:
      return must(interop::reader_of(must(interop::import_npz(file))));
    case Format::kLlama:
    case Format::kLlamaTransposed:
      break;
  }
  return must(interop::reader_of(must(interop::import_llama_state(file, geometry_of(like))).cache));
}

// A cache, and a file of it for each program, in a temporary folder.
class Stage {
 public:
  Stage() { fs::create_directories(folder_); }
  ~Stage() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  const cache::CacheReader& cache(std::int64_t n_tokens) {
    auto& entry = caches_[n_tokens];
    if (entry == nullptr) {
      entry = cache::reader_of(std::make_shared<const cache::Cache>(
          noise_cache(model_.config, model_.config.n_layers, n_tokens)));
    }
    return *entry;
  }

  fs::path file(Format format, std::int64_t n_tokens) {
    const fs::path path =
        folder_ / (std::string(kNames[static_cast<int>(format)]) + std::to_string(n_tokens));
    if (!fs::exists(path)) write(format, cache(n_tokens), path);
    return path;
  }

  fs::path scratch() const { return folder_ / "out"; }

 private:
  BenchModel model_;
  fs::path folder_ = fs::temp_directory_path() / ("tqcache-bench-" + std::to_string(::getpid()));
  std::map<std::int64_t, std::shared_ptr<const cache::CacheReader>> caches_;
};

std::uint64_t value_bytes(const cache::CacheReader& cache) {
  std::uint64_t bytes = 0;
  for (const tqcache::cache::BlockInfo& block : cache.blocks()) bytes += block.raw_bytes;
  return bytes;
}

void count_bytes(benchmark::State& state, std::uint64_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
}

void bench_import(benchmark::State& state, Stage& stage, Format format, std::int64_t n_tokens) {
  const cache::CacheDesc& like = stage.cache(n_tokens).description();
  const fs::path path = stage.file(format, n_tokens);
  AlignedBytes raw;
  for (auto _ : state) {
    const auto sections = read(format, path, like);
    for (std::size_t i = 0; i < sections->blocks().size(); ++i) {
      must(sections->read(i, raw));
      benchmark::DoNotOptimize(raw.data());
    }
  }
  count_bytes(state, value_bytes(stage.cache(n_tokens)));
}

void bench_read(benchmark::State& state, Stage& stage, std::int64_t n_tokens) {
  const fs::path path = stage.file(Format::kMlxLm, n_tokens);
  AlignedBytes piece(1 << 20);
  std::uint64_t size = 0;
  for (auto _ : state) {
    const auto file = must(open_file(path));
    size = file->size();
    for (std::uint64_t at = 0; at < size; at += piece.size()) {
      must(file->read_at(at, std::span(piece).first(static_cast<std::size_t>(
                                 std::min<std::uint64_t>(piece.size(), size - at)))));
      benchmark::DoNotOptimize(piece.data());
    }
  }
  count_bytes(state, size);
}

void bench_export(benchmark::State& state, Stage& stage, Format format, std::int64_t n_tokens) {
  const cache::CacheReader& cache = stage.cache(n_tokens);
  for (auto _ : state) write(format, cache, stage.scratch());
  count_bytes(state, value_bytes(cache));
}

void register_all(Stage& stage, std::int64_t n_tokens) {
  const std::string tokens = "/" + std::to_string(n_tokens);
  for (int i = 0; i < static_cast<int>(std::size(kNames)); ++i) {
    const auto format = static_cast<Format>(i);
    const std::string name = kNames[i] + tokens;
    benchmark::RegisterBenchmark(("import/" + name).c_str(), [=, &stage](benchmark::State& state) {
      bench_import(state, stage, format, n_tokens);
    });
    benchmark::RegisterBenchmark(("export/" + name).c_str(), [=, &stage](benchmark::State& state) {
      bench_export(state, stage, format, n_tokens);
    });
  }
  benchmark::RegisterBenchmark(
      ("import/read" + tokens).c_str(),
      [=, &stage](benchmark::State& state) { bench_read(state, stage, n_tokens); });
}

}  // namespace

int main(int argc, char** argv) {
  Stage stage;
  register_all(stage, 4096);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
