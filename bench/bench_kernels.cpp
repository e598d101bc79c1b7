// Speed of the kernels: scores, sums of values, encoding and decoding, one core.
//
//   score/<f16|bf16|q8|turbo8|turbo4|...>/<kernels>/<keys>        one query, fast kernels
//   score4/...                                                    four queries that share the keys
//   score_exact/..., accumulate/..., accumulate4/..., accumulate_exact/...
//   encode/<preset>-<k|v>/<kernels>, decode/...                   f16, GB/s of f16
//
// head_dim 128. Dense f16 with kernels of the same care is the baseline, in the same run. Compare
// medians: --benchmark_repetitions=9 --benchmark_enable_random_interleaving=true

#include <benchmark/benchmark.h>

#include <cstring>
#include <string>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/codec/block_codec.h"
#include "tqcache/codec/query_group.h"

namespace {

using namespace tqcache;
using namespace tqcache::codec;

constexpr int kHeadDim = 128;
constexpr std::size_t kDim = kHeadDim;

// Fast, uniform enough, and the same everywhere.
std::uint64_t next_random(std::uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

std::vector<float> random_floats(std::size_t n, std::uint64_t seed) {
  std::vector<float> values(n);
  for (float& value : values) {
    // Four uniform numbers make a bell that is near enough.
    const std::uint64_t bits = next_random(seed);
    int sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<int>((bits >> (16 * i)) & 0xffff);
    value = static_cast<float>(sum - 2 * 0xffff) / 37837.0f;
  }
  return values;
}

BlockCodec make_codec(int bits, BlockOrder order, const Kernels& kernels) {
  return BlockCodec(Quantizer::make(CodecSpec{.head_dim = kHeadDim, .bits = bits}).value(), order,
                    kernels);
}

// Packed blocks of random codes, one after another as in a file's section.
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

constexpr std::size_t kConvertedBlocks = 16;

void encode(benchmark::State& state, const Kernels* kernels, int bits, BlockOrder order) {
  const BlockCodec codec = make_codec(bits, order, *kernels);
  const DenseKeys x(Dtype::kF16, kConvertedBlocks * kBlockTokens);
  AlignedBytes codes(codec.shape().block_bytes());
  std::vector<std::uint16_t> scales(kBlockTokens);
  for (auto _ : state) {
    for (std::size_t i = 0; i < x.n_blocks; ++i) {
      const VectorRows rows = {Dtype::kF16, x.block(i).rows, kDim * 2};
      if (!codec.encode(rows, kBlockTokens, codes, scales)) return state.SkipWithError("refused");
    }
    benchmark::ClobberMemory();
  }
  set_counters(state, x.n_blocks * kBlockTokens, x.rows.size());
}

void decode(benchmark::State& state, const Kernels* kernels, int bits, BlockOrder order) {
  const PackedKeys keys(bits, order, kConvertedBlocks * kBlockTokens, *kernels);
  AlignedBytes rows(kBlockTokens * kDim * 2);
  const std::size_t bytes = keys.codec.shape().block_bytes();
  for (auto _ : state) {
    for (std::size_t i = 0; i < keys.n_blocks; ++i) {
      keys.codec.decode(std::span(keys.codes).subspan(i * bytes, bytes),
                        std::span(keys.scales).first(kBlockTokens), kBlockTokens,
                        {Dtype::kF16, rows.data(), kDim * 2});
    }
    benchmark::ClobberMemory();
  }
  set_counters(state, keys.n_blocks * kBlockTokens, keys.n_blocks * rows.size());
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
  }
}

void add_conversion(const Kernels* kernels) {
  for (const int bits : {2, 3, 4, 8}) {
    const std::string preset = "turbo" + std::to_string(bits);
    benchmark::RegisterBenchmark(path("encode", preset + "-k", kernels).c_str(), encode, kernels,
                                 bits, BlockOrder::kKeys);
    benchmark::RegisterBenchmark(path("encode", preset + "-v", kernels).c_str(), encode, kernels,
                                 bits, BlockOrder::kValues);
    benchmark::RegisterBenchmark(path("decode", preset + "-k", kernels).c_str(), decode, kernels,
                                 bits, BlockOrder::kKeys);
    benchmark::RegisterBenchmark(path("decode", preset + "-v", kernels).c_str(), decode, kernels,
                                 bits, BlockOrder::kValues);
  }
}

}  // namespace

int main(int argc, char** argv) {
  for (const Kernels* kernels : all_kernels()) {
    add_conversion(kernels);
    for (const std::size_t n_keys : {std::size_t{4096}, std::size_t{65536}, std::size_t{1048576}}) {
      add_attention(kernels, n_keys);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
