// bench/bench_kernels.cpp: speed of the attention kernels, scores and weighted sums of values, on
// one core.
//
//   score/<f16|bf16|q8|turbo8|turbo4|...>/<kernels>/<keys>   one query, fast kernels
//   score/turbo4-centred/...                                 with mean removal before RoPE
//   score4/...                                               four queries that share the keys
//   score_exact/..., accumulate/..., accumulate4/..., accumulate_exact/...
//
// q8 is GGUF's Q8_0, read by the decoder's kernels for weights. head_dim is 128. The baseline is
// dense f16 in the same run, with kernels that are equally optimized.

#include <benchmark/benchmark.h>

#include <cstring>
#include <string>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/cache/centering_score.h"
#include "tqcache/codec/block_codec.h"
#include "tqcache/codec/kernels/head_queries.h"
#include "tqcache/model/linear/block_kernels.h"
#include "tqcache/model/linear/product_kernels.h"
#include "tqcache/model/linear/quantized_vector.h"

namespace {

using namespace tqcache;
using namespace tqcache::codec;

constexpr int kHeadDim = 128;
constexpr std::size_t kDim = kHeadDim;

// A fast random generator, the same on every machine.
std::uint64_t next_random(std::uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

std::vector<float> random_floats(std::size_t n, std::uint64_t seed) {
  std::vector<float> values(n);
  for (float& value : values) {
    // A sum of four uniform numbers is close enough to a normal distribution.
    const std::uint64_t bits = next_random(seed);
    int sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<int>((bits >> (16 * i)) & 0xffff);
    value = static_cast<float>(sum - 2 * 0xffff) / 37837.0f;
  }
  return values;
}

BlockCodec make_codec(int bits, BlockOrder order, const Kernels& kernels) {
  return BlockCodec(Quantizer::make({.head_dim = kHeadDim, .bits = bits}).value(), order, kernels);
}

// Quantized blocks of random codes, contiguous as in a section of a file.
struct PackedKeys {
  BlockCodec codec;
  std::size_t n_blocks;
  AlignedBytes codes;
  std::vector<std::uint16_t> scales;

  PackedKeys(int bits, BlockOrder order, std::size_t n_keys, const Kernels& kernels)
      : codec(make_codec(bits, order, kernels)), n_blocks(n_keys / kBlockTokens) {
    codes.resize(n_blocks * codec.shape().block_bytes());
    std::uint64_t seed = 0x9e3779b97f4a7c15;
    for (std::size_t i = 0; i + 8 <= codes.size(); i += 8) {
      const std::uint64_t word = next_random(seed);
      std::memcpy(codes.data() + i, &word, sizeof(word));
    }
    scales.assign(n_keys, 0x3c00);
  }

  PackedBlock block(std::size_t i) const {
    const std::size_t bytes = codec.shape().block_bytes();
    return codec.view(std::span(codes).subspan(i * bytes, bytes),
                      std::span(scales).subspan(i * kBlockTokens, kBlockTokens), kBlockTokens);
  }
};

struct DenseKeys {
  Dtype dtype;
  std::size_t n_blocks;
  AlignedBytes rows;

  DenseKeys(Dtype type, std::size_t n_keys) : dtype(type), n_blocks(n_keys / kBlockTokens) {
    const std::size_t block_bytes = kBlockTokens * kDim * dtype_size(dtype);
    rows.resize(n_blocks * block_bytes);
    store_f32(dtype, random_floats(kBlockTokens * kDim, 7), rows.data());
    for (std::size_t i = 1; i < n_blocks; ++i) {
      std::memcpy(rows.data() + i * block_bytes, rows.data(), block_bytes);
    }
  }

  DenseBlock block(std::size_t i) const {
    const std::size_t block_bytes = kBlockTokens * kDim * dtype_size(dtype);
    return {dtype, rows.data() + i * block_bytes, kDim, kBlockTokens};
  }
};

void set_counters(benchmark::State& state, std::size_t n_keys, std::size_t bytes) {
  const auto rounds = static_cast<double>(state.iterations());
  using benchmark::Counter;
  state.counters["keys/s"] =
      Counter(rounds * static_cast<double>(n_keys), Counter::kIsRate, Counter::kIs1000);
  state.counters["GB/s"] =
      Counter(rounds * static_cast<double>(bytes) * 1e-9, Counter::kIsRate, Counter::kIs1000);
}

void score_packed(benchmark::State& state, const Kernels* kernels, Kernels::Score score, int bits,
                  std::size_t n_queries, std::size_t n_keys) {
  const PackedKeys keys(bits, BlockOrder::kKeys, n_keys, *kernels);
  QueryGroup queries;
  queries.set_for_packed(keys.codec.quantizer(), random_floats(n_queries * kDim, 3));
  std::vector<float> scores(n_queries * n_keys);
  for (auto _ : state) {
    for (std::size_t i = 0; i < keys.n_blocks; ++i) {
      score(keys.block(i), keys.codec.tables(), queries.rows(),
            {scores.data() + i * kBlockTokens, n_keys});
    }
    benchmark::ClobberMemory();
  }
  set_counters(state, n_keys, keys.codes.size());
}

// As above, with the term that mean removal before RoPE adds to every score.
void score_centered(benchmark::State& state, const Kernels* kernels, Precision precision, int bits,
                    std::size_t n_queries, std::size_t n_keys) {
  const PackedKeys keys(bits, BlockOrder::kKeys, n_keys, *kernels);
  const auto score = precision == Precision::kExact ? kernels->score_exact : kernels->score_fast;
  const std::vector<float> q = random_floats(n_queries * kDim, 3);
  QueryGroup queries;
  queries.set_for_packed(keys.codec.quantizer(), q);
  cache::CenteringTable table({cache::RopeStyle::kHalfSplit, kHeadDim, 1e6});
  table.extend(static_cast<std::int64_t>(keys.n_blocks));
  cache::CenteringScore centering;
  centering.set(&table, random_floats(kDim, 9), q);
  std::vector<float> scores(n_queries * n_keys);
  for (auto _ : state) {
    for (std::size_t i = 0; i < keys.n_blocks; ++i) {
      float* const of_block = scores.data() + i * kBlockTokens;
      score(keys.block(i), keys.codec.tables(), queries.rows(), {of_block, n_keys});
      centering.add_to(static_cast<std::int64_t>(i), *kernels, precision, of_block, n_keys);
    }
    benchmark::ClobberMemory();
  }
  set_counters(state, n_keys, keys.codes.size());
}

// Blocks of 32 values: an f16 scale and 32 signed bytes.
void score_q8(benchmark::State& state, std::size_t n_keys) {
  constexpr std::size_t kRow = kDim / 32 * 34;
  AlignedBytes rows(n_keys * kRow, std::byte{0x11});
  const model::QuantizedVector<std::int16_t> q(random_floats(kDim, 3), model::best_blocks());
  const auto multiply = model::best_blocks().words.multiply.front();  // Q8_0 is the first type
  std::vector<float> scores(n_keys);
  for (auto _ : state) {
    multiply(rows.data(), n_keys, q.view(), kDim / model::kGroup, scores.data());
    benchmark::ClobberMemory();
  }
  set_counters(state, n_keys, rows.size());
}

void score_dense(benchmark::State& state, const Kernels* kernels, Dtype dtype,
                 std::size_t n_queries, std::size_t n_keys) {
  const DenseKeys keys(dtype, n_keys);
  QueryGroup queries;
  queries.set_for_dense(kDim, random_floats(n_queries * kDim, 3));
  std::vector<float> scores(n_queries * n_keys);
  for (auto _ : state) {
    for (std::size_t i = 0; i < keys.n_blocks; ++i) {
      kernels->score_dense(keys.block(i), queries.rows(),
                           {scores.data() + i * kBlockTokens, n_keys});
    }
    benchmark::ClobberMemory();
  }
  set_counters(state, n_keys, keys.rows.size());
}

std::vector<float> random_weights(std::size_t n) {
  std::vector<float> weights = random_floats(n, 5);
  for (float& weight : weights) weight *= weight * 1e-4f;
  return weights;
}

void accumulate_packed(benchmark::State& state, const Kernels* kernels,
                       Kernels::Accumulate accumulate, int bits, std::size_t n_queries,
                       std::size_t n_keys) {
  const PackedKeys values(bits, BlockOrder::kValues, n_keys, *kernels);
  const std::vector<float> weights = random_weights(n_queries * n_keys);
  std::vector<float> out(n_queries * kDim);
  for (auto _ : state) {
    for (std::size_t i = 0; i < values.n_blocks; ++i) {
      accumulate(values.block(i), values.codec.tables(),
                 {n_queries, n_keys, weights.data() + i * kBlockTokens}, {out.data(), kDim});
    }
    benchmark::ClobberMemory();
  }
  set_counters(state, n_keys, values.codes.size());
}

void accumulate_dense(benchmark::State& state, const Kernels* kernels, Dtype dtype,
                      std::size_t n_queries, std::size_t n_keys) {
  const DenseKeys values(dtype, n_keys);
  const std::vector<float> weights = random_weights(n_queries * n_keys);
  std::vector<float> out(n_queries * kDim);
  for (auto _ : state) {
    for (std::size_t i = 0; i < values.n_blocks; ++i) {
      kernels->accumulate_dense(values.block(i),
                                {n_queries, n_keys, weights.data() + i * kBlockTokens},
                                {out.data(), kDim});
    }
    benchmark::ClobberMemory();
  }
  set_counters(state, n_keys, values.rows.size());
}

std::string path(const std::string& verb, const std::string& what, const Kernels* kernels) {
  return verb + "/" + what + "/" + kernels->name;
}

void add_attention(const Kernels* kernels, std::size_t n_keys) {
  const std::string keys = "/" + std::to_string(n_keys);
  const auto add = [&](const std::string& verb, const std::string& what, auto function,
                       auto... arguments) {
    benchmark::RegisterBenchmark((path(verb, what, kernels) + keys).c_str(), function, arguments...,
                                 n_keys);
  };
  for (const std::size_t n_queries : {std::size_t{1}, std::size_t{4}}) {
    const std::string group = n_queries == 1 ? "" : std::to_string(n_queries);
    for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16}) {
      const std::string name(dtype_name(dtype));
      add("score" + group, name, score_dense, kernels, dtype, n_queries);
      add("accumulate" + group, name, accumulate_dense, kernels, dtype, n_queries);
    }
    for (const int bits : {2, 3, 4, 8}) {
      const std::string name = "turbo" + std::to_string(bits);
      add("score" + group, name, score_packed, kernels, kernels->score_fast, bits, n_queries);
      add("score_exact" + group, name, score_packed, kernels, kernels->score_exact, bits,
          n_queries);
      add("accumulate" + group, name, accumulate_packed, kernels, kernels->accumulate_fast, bits,
          n_queries);
      add("accumulate_exact" + group, name, accumulate_packed, kernels, kernels->accumulate_exact,
          bits, n_queries);
    }
    add("score" + group, "turbo4-centred", score_centered, kernels, Precision::kFast, 4, n_queries);
    add("score_exact" + group, "turbo4-centred", score_centered, kernels, Precision::kExact, 4,
        n_queries);
  }
}

}  // namespace

int main(int argc, char** argv) {
  for (const std::size_t n_keys : {std::size_t{4096}, std::size_t{65536}, std::size_t{1048576}}) {
    for (const Kernels* kernels : all_kernels()) add_attention(kernels, n_keys);
    const std::string name =
        std::string("score/q8/") + codec::best_kernels().name + "/" + std::to_string(n_keys);
    benchmark::RegisterBenchmark(name.c_str(), score_q8, n_keys);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
