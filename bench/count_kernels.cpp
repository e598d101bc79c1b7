// bench/count_kernels.cpp: one kernel of the codec, run a given number of times on one core: what
// bench/count_kernels.sh counts the instructions of.
//
// usage: count_kernels KERNEL N
//
// KERNEL: encode, decode, score, values (turbo4, one block of 256 head vectors of 128), score_f16,
// values_f16 (the same block dense). Scores and sums are of one query, with the fast kernels.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/codec/block_codec.h"
#include "tqcache/codec/kernels/head_queries.h"

using namespace tqcache;
using namespace tqcache::codec;

namespace {

constexpr int kHeadDim = 128;
constexpr std::size_t kDim = kHeadDim;

std::vector<float> some_floats(std::size_t n, std::uint32_t seed) {
  std::vector<float> values(n);
  for (float& value : values) {
    seed = seed * 1664525 + 1013904223;
    value = static_cast<float>(static_cast<int>(seed >> 8) - (1 << 23)) / (1 << 23);
  }
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fputs("usage: count_kernels KERNEL N\n", stderr), 2;
  const std::string_view name = argv[1];
  const int n = std::atoi(argv[2]);

  const Kernels& kernels = best_kernels();
  const bool of_values = name.starts_with("values");
  const BlockCodec codec(Quantizer::make({.head_dim = kHeadDim, .bits = 4}).value(),
                         of_values ? BlockOrder::kValues : BlockOrder::kKeys, kernels);
  AlignedBytes rows(kBlockTokens * kDim * sizeof(std::uint16_t));
  store_f32(Dtype::kF16, some_floats(kBlockTokens * kDim, 7), rows.data());
  const VectorRows in{Dtype::kF16, rows.data(), kDim * sizeof(std::uint16_t)};
  AlignedBytes block(codec.shape().block_bytes());
  std::vector<std::uint16_t> scales(kBlockTokens);
  if (!codec.encode(in, {}, kBlockTokens, block, scales)) return 1;
  const PackedBlock packed = codec.view(block, scales, kBlockTokens);
  const DenseBlock dense{Dtype::kF16, rows.data(), kDim, kBlockTokens};

  QueryGroup queries;
  if (name == "score_f16") {
    queries.set_for_dense(kDim, some_floats(kDim, 3));
  } else {
    queries.set_for_packed(codec.quantizer(), some_floats(kDim, 3));
  }
  std::vector<float> scores(kBlockTokens), sums(kDim);
  const std::vector<float> weights = some_floats(kBlockTokens, 5);
  const WeightRows weight_rows{1, kBlockTokens, weights.data()};

  for (int i = 0; i < n; ++i) {
    if (name == "encode") {
      if (!codec.encode(in, {}, kBlockTokens, block, scales)) return 1;
    } else if (name == "decode") {
      codec.decode(block, scales, kBlockTokens,
                   {Dtype::kF16, rows.data(), kDim * sizeof(std::uint16_t)});
    } else if (name == "score") {
      kernels.score_fast(packed, codec.tables(), queries.rows(), {scores.data(), kBlockTokens});
    } else if (name == "values") {
      kernels.accumulate_fast(packed, codec.tables(), weight_rows, {sums.data(), kDim});
    } else if (name == "score_f16") {
      kernels.score_dense(dense, queries.rows(), {scores.data(), kBlockTokens});
    } else if (name == "values_f16") {
      kernels.accumulate_dense(dense, weight_rows, {sums.data(), kDim});
    } else {
      return std::fprintf(stderr, "count_kernels: unknown kernel: %s\n", argv[1]), 2;
    }
  }
  std::printf("%s\n", kernels.name);
  return 0;
}
