// bench/bench_planes.cpp: speed of the byte-plane split of dense sections
// (docs/reference/format.md, 6.5) on one thread. The rates count the bytes of the values. Values
// are normally distributed, each channel with its own standard deviation, as in real keys.
//
//   compress/<dtype>, decompress/<dtype>   with the compression ratio
//   zstd/<dtype>                           the same bytes as one zstd frame of level 1

#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/format/sections/plane_section.h"

namespace {

using namespace tqcache;

// A token block of 8 kv heads.
constexpr std::size_t kHeads = 8, kTokens = 256, kHeadDim = 128;

AlignedBytes values_of(Dtype dtype) {
  std::mt19937 random(1);
  std::normal_distribution<float> bell;
  std::vector<float> loudness(kHeadDim);
  for (float& each : loudness) each = std::exp(0.5f * bell(random));
  std::vector<float> values(kHeads * kTokens * kHeadDim);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = loudness[i % kHeadDim] * bell(random);
  AlignedBytes raw(values.size() * dtype_size(dtype));
  store_f32(dtype, values, raw.data());
  return raw;
}

void report(benchmark::State& state, std::size_t raw, std::size_t stored) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(raw));
  state.counters["ratio"] = static_cast<double>(raw) / static_cast<double>(stored);
}

void compress(benchmark::State& state, Dtype dtype) {
  const AlignedBytes raw = values_of(dtype);
  const auto compressor = format::Compressor::for_planes();
  Bytes stored;
  for (auto _ : state) {
    if (!format::compress_planes(compressor, raw, dtype_size(dtype), stored)) {
      return state.SkipWithError("nothing to compress");
    }
  }
  report(state, raw.size(), stored.size());
}

void decompress(benchmark::State& state, Dtype dtype) {
  AlignedBytes raw = values_of(dtype);
  const std::size_t width = dtype_size(dtype);
  Bytes stored;
  format::compress_planes(format::Compressor::for_planes(), raw, width, stored);
  const format::Decompressor decompressor;
  for (auto _ : state) {
    if (!format::check_planes(stored, raw.size(), width) ||
        !format::decompress_planes(decompressor, stored, width, raw)) {
      return state.SkipWithError("not decompressed");
    }
    benchmark::ClobberMemory();
  }
  report(state, raw.size(), stored.size());
}

void compress_zstd(benchmark::State& state, Dtype dtype) {
  const AlignedBytes raw = values_of(dtype);
  const auto compressor = format::Compressor::make(1).value();
  Bytes frame;
  for (auto _ : state) {
    if (!compressor.compress(raw, frame)) return state.SkipWithError("nothing to compress");
  }
  report(state, raw.size(), frame.size());
}

}  // namespace

int main(int argc, char** argv) {
  const std::pair<const char*, Dtype> dtypes[] = {
      {"f16", Dtype::kF16}, {"bf16", Dtype::kBF16}, {"f32", Dtype::kF32}};
  for (const auto& [name, dtype] : dtypes) {
    benchmark::RegisterBenchmark((std::string("compress/") + name).c_str(), compress, dtype);
    benchmark::RegisterBenchmark((std::string("decompress/") + name).c_str(), decompress, dtype);
    benchmark::RegisterBenchmark((std::string("zstd/") + name).c_str(), compress_zstd, dtype);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
