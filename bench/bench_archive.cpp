// bench/bench_archive.cpp: speed of the archive tier (docs/reference/codec.md, 10) on one thread,
// with a random cache of 16,384 tokens: 4 kv heads of 128, f16. As in models, the variance of keys
// and values concentrates in a few directions.
//
//   save/<transforms>/<step>   a dense, uncompressed file to an archive with that quantization step
//   load/<transforms>/<step>   the archive, in memory, to a quantized cache
//   choose                     the step for 3 bits per value, and the decision for or against
//                              transforms
//   memcpy                     a copy of as many bytes, as a reference for the machine
//
// <transforms>: the tensors with learned transforms: neither, values, keys (before RoPE) or both.
// GB/s counts dense values per second of processor time.

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "bench_model.h"
#include "tqcache/cache/rope_angles.h"
#include "tqcache/codec/kernels/row_transform.h"
#include "tqcache/file.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/tqkv.h"

namespace {

using namespace tqcache;
using namespace tqcache::bench;

constexpr std::int64_t kTokens = 16384;
constexpr cache::HeadShape kShape = {4, 128};
constexpr cache::Rope kRope = {cache::RopeStyle::kHalfSplit, 128, 1e6};
constexpr std::size_t kDenseBytes = 2 * 2 * 4 * 128 * kTokens;

// Rows of 256 tokens of a kv head: independent values with decreasing variance, then rotated.
class Drawn {
 public:
  explicit Drawn(unsigned seed) : random_(seed), matrix_(kDim * kDim) {
    std::normal_distribution<float> bell;
    for (std::size_t i = 0; i < kDim; ++i) {
      const float loudness = std::exp2(-static_cast<float>(i) / 48.0f);
      for (std::size_t j = 0; j < kDim; ++j) matrix_[i * kDim + j] = loudness * bell(random_);
    }
  }

  void fill(AlignedFloats& rows) {
    std::normal_distribution<float> bell(0.0f, 0.1f);
    AlignedFloats independent(rows.size());
    for (float& value : independent) value = bell(random_);
    codec::multiply_rows(independent, matrix_, kDim, rows);
  }

 private:
  static constexpr std::size_t kDim = 128;
  std::mt19937 random_;
  AlignedFloats matrix_;
};

void turn_rows(const cache::RopeTable& rope, std::int64_t position, std::span<float> rows) {
  const auto dim = static_cast<std::size_t>(kShape.head_dim);
  for (std::size_t at = 0; at < rows.size(); at += dim) {
    rope.rotate_to(position++, kShape.head_dim, rows.subspan(at, dim));
  }
}

cache::DenseTensor draw_tensor(const cache::RopeTable* rope) {
  cache::DenseTensor tensor;
  const std::size_t head_values = static_cast<std::size_t>(cache::kTokenBlock * kShape.head_dim);
  std::vector<Drawn> heads;
  for (unsigned head = 0; head < kShape.n_kv_heads; ++head)
    heads.emplace_back(2 * head + (rope != nullptr));
  AlignedFloats rows(head_values);
  for (std::int64_t block = 0; block < kTokens / cache::kTokenBlock; ++block) {
    AlignedBytes bytes(heads.size() * head_values * 2);
    for (std::size_t head = 0; head < heads.size(); ++head) {
      heads[head].fill(rows);
      if (rope != nullptr) turn_rows(*rope, block * cache::kTokenBlock, rows);
      store_f32(Dtype::kF16, rows, bytes.data() + head * head_values * 2);
    }
    tensor.blocks.push_back(std::move(bytes));
  }
  return tensor;
}

cache::TensorPlan plan_of(float step, bool is_mapped) {
  cache::TensorPlan plan;
  plan.codec.mode = codec::Mode::kTrellis;
  plan.codec.step = step;
  plan.fit_transforms = is_mapped;
  return plan;
}

struct Way {
  const char* name;
  bool keys;
  bool values;
};
constexpr Way kWays[] = {
    {"none", false, false}, {"values", false, true}, {"keys", true, false}, {"both", true, true}};

cache::ConvertOptions options_of(const Way& way, float step) {
  cache::ConvertOptions options;
  options.keys = plan_of(step, way.keys);
  options.values = plan_of(step, way.values);
  options.n_threads = 1;
  return options;
}

// The dense cache as a file in memory, and a temporary folder.
class Stage {
 public:
  Stage() {
    std::filesystem::create_directories(folder_);
    cache::Cache cache;
    cache.identity.rope = kRope;
    cache.tokens.resize(kTokens, 1);
    const cache::RopeTable rope(kRope);
    cache.layers.emplace_back(
        cache::AttentionLayer{kShape, draw_tensor(&rope), draw_tensor(nullptr)});
    dense_ = memory_source(
        must(format::write_cache_bytes(cache, {.compression = format::Compression::kNone})));
  }
  ~Stage() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  const ByteSource& dense() const { return *dense_; }
  std::filesystem::path path() const { return folder_ / "archive.tqkv"; }

  void save(const Way& way, float step) const {
    format::WriteOptions write;
    write.overwrite = Overwrite::kAllow;
    must(format::convert_file(*dense_, path(), options_of(way, step), write));
  }

 private:
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("tqcache-bench-" + std::to_string(::getpid()));
  std::unique_ptr<ByteSource> dense_;
};

void report(benchmark::State& state) {
  state.counters["GB/s"] = benchmark::Counter(
      1e-9 * kDenseBytes * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void save(benchmark::State& state, const Stage& stage, const Way& way, float step) {
  for (auto _ : state) stage.save(way, step);
  report(state);
  const auto bytes = static_cast<double>(std::filesystem::file_size(stage.path()));
  state.counters["bits"] = 16.0 * bytes / kDenseBytes;
}

void load(benchmark::State& state, const Stage& stage, const Way& way, float step) {
  stage.save(way, step);
  const auto source = must(open_file(stage.path()));
  for (auto _ : state) {
    benchmark::DoNotOptimize(must(format::read_cache(*source, {.n_threads = 1})));
  }
  report(state);
}

void choose(benchmark::State& state, const Stage& stage) {
  const auto reader = must(format::SectionReader::open(stage.dense()));
  for (auto _ : state) {
    benchmark::DoNotOptimize(must(format::choose_step(reader, options_of(kWays[0], 1.0f),
                                                      {.bits = 3.0, .mse = std::nullopt})));
  }
  report(state);
}

void copy(benchmark::State& state) {
  const std::vector<std::byte> from(kDenseBytes, std::byte{1});
  std::vector<std::byte> to(kDenseBytes);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  }
  report(state);
}

}  // namespace

int main(int argc, char** argv) {
  const Stage stage;
  const auto add = [](const std::string& name, auto run) {
    benchmark::RegisterBenchmark(name.c_str(), run)->Unit(benchmark::kMillisecond);
  };
  for (const Way& way : kWays) {
    for (const float step : {0.18f, 0.24f, 0.38f}) {
      const std::string name =
          std::string("/") + way.name + "/" + std::to_string(step).substr(0, 4);
      add("save" + name, [&stage, &way, step](auto& state) { save(state, stage, way, step); });
      add("load" + name, [&stage, &way, step](auto& state) { load(state, stage, way, step); });
    }
  }
  add("choose", [&stage](auto& state) { choose(state, stage); });
  add("memcpy", copy);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
