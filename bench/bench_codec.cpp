// How fast the codec packs and unpacks head vectors, on one thread.
//
// Rates are in bytes of the f16 values that go in or would come out, so that they compare with
// the size of a dense cache. Arguments: head_dim, bits.
//
// usage: bench_codec --benchmark_repetitions=5 --benchmark_report_aggregates_only

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "tqcache/codec/quantizer.h"

namespace {

using tqcache::codec::Quantizer;

constexpr std::size_t kVectors = 256;  // a token block of one kv head; stays in the L2 cache
constexpr std::size_t kBytesOfF16 = 2;

struct Workload {
  Quantizer quantizer;
  std::size_t head_dim;
  std::vector<float> vectors;         // [kVectors, head_dim]
  std::vector<std::byte> codes;       // [kVectors, code_bytes]
  std::vector<std::uint16_t> scales;  // [kVectors], f16 bits

  std::span<float> vector(std::size_t i) { return {&vectors[i * head_dim], head_dim}; }
  std::span<std::byte> code(std::size_t i) {
    return std::span(codes).subspan(i * quantizer.code_bytes(), quantizer.code_bytes());
  }

  void encode_all() {
    for (std::size_t i = 0; i < kVectors; ++i) {
      const auto scale = quantizer.encode(vector(i), code(i));
      scales[i] = scale ? scale.value() : std::uint16_t{0};
    }
  }
};

Workload make_workload(const benchmark::State& state) {
  const auto head_dim = static_cast<std::size_t>(state.range(0));
  Workload work{.quantizer = Quantizer::make({.head_dim = static_cast<int>(state.range(0)),
                                              .bits = static_cast<int>(state.range(1))})
                                 .value(),
                .head_dim = head_dim,
                .vectors = std::vector<float>(kVectors * head_dim),
                .codes = {},
                .scales = std::vector<std::uint16_t>(kVectors)};
  work.codes.resize(kVectors * work.quantizer.code_bytes());
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& value : work.vectors) value = normal(random);
  return work;
}

void count_bytes(benchmark::State& state) {
  const auto values = static_cast<std::int64_t>(kVectors) * state.range(0);
  state.SetBytesProcessed(state.iterations() * values * static_cast<std::int64_t>(kBytesOfF16));
}

void encode(benchmark::State& state) {
  Workload work = make_workload(state);
  for (auto _ : state) {
    work.encode_all();
    benchmark::DoNotOptimize(work.codes.data());
  }
  count_bytes(state);
}

void decode(benchmark::State& state) {
  Workload work = make_workload(state);
  work.encode_all();
  for (auto _ : state) {
    for (std::size_t i = 0; i < kVectors; ++i) {
      work.quantizer.decode(work.code(i), work.scales[i], work.vector(i));
    }
    benchmark::DoNotOptimize(work.vectors.data());
  }
  count_bytes(state);
}

void shapes(benchmark::internal::Benchmark* benchmark) {
  for (const int head_dim : {64, 128, 256}) {
    for (const int bits : {2, 3, 4, 8}) benchmark->Args({head_dim, bits});
  }
}

BENCHMARK(encode)->Apply(shapes);
BENCHMARK(decode)->Apply(shapes);

}  // namespace
