// bench/bench_trellis.cpp: speed of trellis-coded quantization (TCQ) on one core.
//
//   encode/d<n>/<kernels>         f32 rows to symbols, with the sums
//   encode_far/d<n>/<kernels>     the same, with one of 128 components near the last level
//   decode_keys/d<n>/<kernels>    symbols to packed 8-bit blocks of keys
//   decode_values/d<n>/<kernels>  symbols to packed 8-bit blocks of values
//   save_keys/d<n>/<kernels>      packed blocks of keys back to symbols
//   decode_levels/d<n>            symbols to reproduction levels, component by component
//   eigen/<n>                     eigenvectors of a covariance matrix of that size
//
// GB/s counts the same number of values in f16, so that it can be compared with the size of a dense
// cache.

#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/codec/trellis/symmetric_eigen.h"
#include "tqcache/codec/trellis/trellis.h"

namespace {

using namespace tqcache;
using namespace tqcache::codec;

constexpr std::size_t kBlocks = 16;  // a megabyte of f16 at dim 128
constexpr float kStep = 0.1846f;     // of the standard deviation: 3.5 bits per value
constexpr float kNearTheEnd = 126.0f;

struct Workload {
  TrellisShape shape;
  AlignedFloats y;
  AlignedBytes packed;
  std::vector<std::uint8_t> symbols;
  std::vector<std::int8_t> levels;
  std::vector<float> products, squares;

  Workload(std::size_t dim, bool far)
      : shape{dim, kBlockTokens},
        y(kBlocks * shape.size()),
        packed(kBlocks * shape.size()),
        symbols(kBlocks * shape.size()),
        levels(shape.size()),
        products(kBlockTokens),
        squares(kBlockTokens) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 1.0f / kStep);
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] = far && i % 128 == 0 ? kNearTheEnd : normal(random);
    }
  }

  std::span<std::uint8_t> symbols_of(std::size_t block) {
    return std::span(symbols).subspan(block * shape.size(), shape.size());
  }
  std::span<std::byte> packed_of(std::size_t block) {
    return std::span(packed).subspan(block * shape.size(), shape.size());
  }
  bool encode(std::size_t block, const Kernels& kernels) {
    const auto rows = std::span<const float>(y).subspan(block * shape.size(), shape.size());
    return encode_trellis(shape, rows, {symbols_of(block), products, squares}, kernels).ok();
  }
  void encode_all() {
    for (std::size_t block = 0; block < kBlocks; ++block) encode(block, best_kernels());
  }
};

// Runs `step` for one block after another, repeatedly.
template <class Step>
void run(benchmark::State& state, const TrellisShape& shape, const Step& step) {
  for (auto _ : state) {
    for (std::size_t block = 0; block < kBlocks; ++block) {
      if (!step(block)) return state.SkipWithError("refused");
    }
  }
  const double bytes = static_cast<double>(2 * kBlocks * shape.size());
  state.counters["GB/s"] = benchmark::Counter(
      bytes * 1e-9 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void encode(benchmark::State& state, std::size_t dim, bool far, const Kernels& kernels) {
  Workload work(dim, far);
  run(state, work.shape, [&](std::size_t block) { return work.encode(block, kernels); });
}

void decode(benchmark::State& state, std::size_t dim, BlockOrder order, const Kernels& kernels) {
  Workload work(dim, false);
  work.encode_all();
  run(state, work.shape, [&](std::size_t block) {
    return decode_trellis_block(work.shape, work.symbols_of(block), order, work.packed_of(block),
                                kernels)
        .ok();
  });
}

void save(benchmark::State& state, std::size_t dim, const Kernels& kernels) {
  Workload work(dim, false);
  work.encode_all();
  for (std::size_t block = 0; block < kBlocks; ++block) {
    if (!decode_trellis_block(work.shape, work.symbols_of(block), BlockOrder::kKeys,
                              work.packed_of(block))) {
      return state.SkipWithError("refused");
    }
  }
  run(state, work.shape, [&](std::size_t block) {
    return trellis_block_symbols(work.shape, work.packed_of(block), BlockOrder::kKeys,
                                 work.symbols_of(block), kernels)
        .ok();
  });
}

void decode_levels(benchmark::State& state, std::size_t dim) {
  Workload work(dim, false);
  work.encode_all();
  run(state, work.shape, [&](std::size_t block) {
    return decode_trellis(work.shape, work.symbols_of(block), work.levels).ok();
  });
}

void eigen(benchmark::State& state, std::size_t n) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  std::vector<double> matrix(n * n, 0.0), row(n);
  for (std::size_t sample = 0; sample < 2 * n; ++sample) {
    for (double& value : row) value = normal(random);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) matrix[i * n + j] += row[i] * row[j];
    }
  }
  for (auto _ : state) benchmark::DoNotOptimize(symmetric_eigen(n, matrix));
}

void add_for_kernels(std::size_t dim, const Kernels& kernels) {
  const std::string name = "/d" + std::to_string(dim) + "/" + kernels.name;
  benchmark::RegisterBenchmark(("encode" + name).c_str(), encode, dim, false, kernels);
  benchmark::RegisterBenchmark(("encode_far" + name).c_str(), encode, dim, true, kernels);
  benchmark::RegisterBenchmark(("decode_keys" + name).c_str(), decode, dim, BlockOrder::kKeys,
                               kernels);
  benchmark::RegisterBenchmark(("decode_values" + name).c_str(), decode, dim, BlockOrder::kValues,
                               kernels);
  benchmark::RegisterBenchmark(("save_keys" + name).c_str(), save, dim, kernels);
}

}  // namespace

int main(int argc, char** argv) {
  for (const std::size_t dim : {64u, 128u, 256u, 1024u}) {
    for (const Kernels* kernels : all_kernels()) add_for_kernels(dim, *kernels);
    const std::string name = "decode_levels/d" + std::to_string(dim);
    benchmark::RegisterBenchmark(name.c_str(), decode_levels, dim);
  }
  for (const std::size_t n : {64u, 128u, 256u, 1024u}) {
    benchmark::RegisterBenchmark(("eigen/" + std::to_string(n)).c_str(), eigen, n)
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
