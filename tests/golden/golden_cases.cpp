#include "golden_cases.h"

#include "format/file_fixture.h"
#include "golden_builder.h"

namespace tqcache::test {
namespace {

using cache::Centering;
using codec::CodecSpec;
using codec::Mode;
using codec::ScaleRule;
using codec::TransformKind;

CodecSpec mse(int bits) { return {.mode = Mode::kMse, .bits = bits}; }

cache::Cache dense() {
  GoldenBuilder builder(1, 260);
  builder.identity().adapter_fingerprint = Sha256{std::byte{0xad}};
  return builder.attention({2, 3}, dense_as(Dtype::kF16), dense_as(Dtype::kBF16))
      .attention({1, 3}, dense_as(Dtype::kF32), dense_as(Dtype::kF32))
      .arrays()
      .build();
}

// No tokens, and so nothing that a codec could fix.
cache::Cache empty() {
  return GoldenBuilder(2, 0)
      .attention({2, 64},
                 coded({.mode = Mode::kMixed, .bits = 2, .outlier_channels = 16, .outlier_bits = 3},
                       Centering::kPreRope, 4),
                 dense_as(Dtype::kF16))
      .build();
}

cache::Cache mse_bits() {
  return GoldenBuilder(3, 260)
      .attention({1, 32}, coded(mse(1)), coded(mse(2)))
      .attention({1, 32}, coded(mse(3)), coded(mse(4)))
      .attention({1, 32}, coded(mse(5)), coded(mse(6)))
      .attention({1, 32}, coded(mse(7)), coded(mse(8)))
      .build();
}

// Units of keys that are cut short, groups of values that are not full, and Hartley's factor.
cache::Cache mse_head_dims() {
  return GoldenBuilder(4, 256)
      .attention({1, 36}, coded(mse(3)), coded(mse(5)))
      .attention({1, 80}, coded(mse(2)), coded(mse(1)))
      .build();
}

cache::Cache mse_maps_and_scales() {
  const CodecSpec two_rounds{.bits = 2, .seed = 1, .rounds = 2, .scale = ScaleRule::kNorm};
  const CodecSpec three_rounds{.bits = 3, .seed = 2, .rounds = 3, .scale = ScaleRule::kRaw};
  const CodecSpec dense{.bits = 4, .seed = 3, .rotation = TransformKind::kDenseQr};
  return GoldenBuilder(5, 260)
      .attention({1, 32}, coded(two_rounds), coded(three_rounds))
      .attention({1, 32}, coded(dense), coded(two_rounds))
      .build();
}

cache::Cache prod() {
  const CodecSpec gaussian{.mode = Mode::kProd, .bits = 3};
  const CodecSpec orthogonal{.mode = Mode::kProd,
                             .bits = 2,
                             .scale = ScaleRule::kRaw,
                             .residual = TransformKind::kDenseQr};
  return GoldenBuilder(6, 260)
      .attention({2, 32}, coded(gaussian, Centering::kPreRope), coded(orthogonal))
      .attention({1, 48}, coded(orthogonal), coded(gaussian, Centering::kPostRope))
      .build();
}

cache::Cache mixed() {
  const CodecSpec quarter{
      .mode = Mode::kMixed, .bits = 2, .outlier_channels = 16, .outlier_bits = 3};
  const CodecSpec few{.mode = Mode::kMixed, .bits = 1, .outlier_channels = 8, .outlier_bits = 5};
  return GoldenBuilder(7, 260)
      .attention({1, 64}, coded(quarter, Centering::kPreRope), coded(quarter, Centering::kPostRope))
      .attention({2, 36}, coded(few), coded(few))
      .build();
}

cache::Cache affine() {
  const CodecSpec groups_of_4_bits{.mode = Mode::kAffine, .bits = 4, .group_size = 32};
  const CodecSpec groups_of_8_bits{.mode = Mode::kAffine, .bits = 8, .group_size = 32};
  return GoldenBuilder(8, 260)
      .attention({1, 64}, coded(groups_of_4_bits), coded(groups_of_4_bits))
      .attention({1, 32}, coded(groups_of_8_bits, Centering::kPreRope), coded(groups_of_4_bits))
      .build();
}

// Two packed blocks, so that the mean rotates on from one to the next; and components that RoPE
// leaves alone.
cache::Cache centering() {
  GoldenBuilder builder(9, 520);
  builder.identity().rope = {cache::RopeStyle::kInterleaved, 24, 500000.5};
  return builder
      .attention({2, 32}, coded(mse(2), Centering::kPreRope), coded(mse(2), Centering::kPostRope))
      .attention({1, 32}, coded(mse(2), Centering::kPostRope), coded(mse(2), Centering::kNone))
      .build();
}

// Pairs that rotate more slowly than their base says, one of them faster.
cache::Cache scaled_rope() {
  GoldenBuilder builder(13, 520);
  builder.identity().rope = {
      cache::RopeStyle::kHalfSplit, 16, 500000, {1, 1, 0.5f, 2.25f, 8, 8, 8, 8}};
  return builder
      .attention({1, 32}, coded(mse(3), Centering::kPreRope), coded(mse(3), Centering::kPostRope))
      .build();
}

cache::Cache sinks() {
  TensorChoice in_bf16 = coded(mse(2), Centering::kPostRope, 20);
  in_bf16.dtype = Dtype::kBF16;
  TensorChoice in_f32 =
      coded({.mode = Mode::kMixed, .bits = 2, .outlier_channels = 8, .outlier_bits = 3},
            Centering::kNone, 1);
  in_f32.dtype = Dtype::kF32;
  const TensorChoice whole_block = coded(mse(1), Centering::kNone, cache::kTokenBlock);
  return GoldenBuilder(10, 260)
      .attention({2, 32}, coded(mse(2), Centering::kPreRope, 4), in_bf16)
      .attention({1, 32}, in_f32, whole_block)
      .build();
}

// The last block is full: packed in one tensor, dense in the other.
cache::Cache full_tail() {
  TensorChoice dense_tail = coded(mse(2), Centering::kPostRope);
  dense_tail.keep_full_tail = true;
  return GoldenBuilder(11, 256)
      .attention({1, 32}, coded(mse(2), Centering::kPreRope), dense_tail)
      .build();
}

// Some sections shrink and some do not.
cache::Cache zstd() {
  cache::Cache cache = GoldenBuilder(12, 260)
                           .attention({2, 32}, coded(mse(2), Centering::kPreRope), coded(mse(4)))
                           .attention({2, 4}, dense_as(Dtype::kF32), dense_as(Dtype::kBF16))
                           .arrays()
                           .build();
  auto& layer = std::get<cache::AttentionLayer>(cache.layers[1]);
  for (AlignedBytes& block : std::get<cache::DenseTensor>(layer.k).blocks) {
    std::ranges::fill(block, std::byte{0});
  }
  return cache;
}

// Numbers of every dtype in planes, packed blocks in frames, and what stays as it is.
cache::Cache planes() {
  return GoldenBuilder(18, 300)
      .attention({2, 4}, dense_as(Dtype::kF16), dense_as(Dtype::kBF16))
      .attention({1, 32}, coded(mse(2), Centering::kPreRope), dense_as(Dtype::kF32))
      .arrays()
      .build();
}

TensorChoice archived(float step, Centering center, bool fit_transforms, std::int64_t n_sinks = 0) {
  TensorChoice tensor = coded({.mode = Mode::kTrellis, .step = step}, center, n_sinks);
  tensor.plan.fit_transforms = fit_transforms;
  return tensor;
}

// Paths of symbols; maps before RoPE, after it, and of values.
cache::Cache archive() {
  return GoldenBuilder(19, 520)
      .attention({2, 40}, archived(0.3f, Centering::kPreRope, true, 4),
                 archived(0.5f, Centering::kPostRope, true))
      .attention({1, 64}, archived(0.2f, Centering::kPostRope, true),
                 archived(0.8f, Centering::kNone, false))
      .attention({1, 32}, archived(0.4f, Centering::kPreRope, false), dense_as(Dtype::kBF16))
      .build();
}

// Coded by matrices that stand in the file.
cache::Cache matrix() {
  const CodecSpec spec{
      .head_dim = 32, .mode = Mode::kProd, .bits = 3, .rotation = TransformKind::kDenseQr};
  return pack_dense(GoldenBuilder(20, 260)
                        .attention({1, 32}, dense_as(Dtype::kF16), dense_as(Dtype::kBF16))
                        .build(),
                    by_value(must(codec::make_parts(spec))));
}

cache::Cache hidden_tokens() {
  return GoldenBuilder(14, 520)
      .attention({1, 32}, coded(mse(2), Centering::kPreRope), coded(mse(2), Centering::kPostRope))
      .hide_tokens()
      .build();
}

cache::Cache unknown_tokens() {
  return GoldenBuilder(15, 260)
      .attention({1, 3}, dense_as(Dtype::kF16), dense_as(Dtype::kBF16))
      .forget_tokens()
      .build();
}

// Windows that are full, full to the last token, and not full.
cache::Cache rotating() {
  return GoldenBuilder(16, 40)
      .rotating({{2, 4}, 24, 4}, Dtype::kF16, Dtype::kF16)
      .attention({1, 4}, dense_as(Dtype::kF16), dense_as(Dtype::kF16))
      .rotating({{1, 5}, 40, 0}, Dtype::kBF16, Dtype::kF32)
      .rotating({{1, 5}, 1024, 4}, Dtype::kF32, Dtype::kBF16)
      .build();
}

// Windows that begin in a packed block, in the dense tail, and with the first token; dense keys.
cache::Cache turbo_rotating() {
  return GoldenBuilder(21, 530)
      .turbo_rotating({{1, 32}, 300, 0}, coded(mse(2)), coded(mse(3), Centering::kPostRope))
      .turbo_rotating({{2, 32}, 10, 0}, coded(mse(2), Centering::kPreRope), coded(mse(2)))
      .attention({1, 4}, dense_as(Dtype::kF16), dense_as(Dtype::kF16))
      .turbo_rotating({{1, 32}, 1024, 0}, coded(mse(2), Centering::kPreRope), coded(mse(2)))
      .turbo_rotating({{1, 32}, 100, 0}, dense_as(Dtype::kBF16),
                      coded({.mode = Mode::kAffine, .bits = 4, .group_size = 32}))
      .build();
}

// Keys and values of different sizes: a latent and its rotated part, shorter values, and windows.
cache::Cache unequal() {
  return GoldenBuilder(22, 530)
      .unequal({1, 64}, 8, dense_as(Dtype::kBF16), dense_as(Dtype::kF32))
      .unequal({2, 48}, 32, coded(mse(2), Centering::kPreRope), coded(mse(3), Centering::kPostRope))
      .unequal({1, 4}, 40, dense_as(Dtype::kF16),
               coded({.mode = Mode::kMixed, .bits = 2, .outlier_channels = 8, .outlier_bits = 3}))
      .rotating({{2, 6}, 24, 4, 5}, Dtype::kF16, Dtype::kBF16)
      .turbo_rotating({{1, 32}, 300, 0, 64}, coded(mse(2)), coded(mse(3), Centering::kPostRope))
      .turbo_rotating({{1, 5}, 100, 0, 32}, dense_as(Dtype::kBF16),
                      coded({.mode = Mode::kAffine, .bits = 4, .group_size = 32}))
      .build();
}

// Factors of keys before and after RoPE, for each mode that may have them: equal in the two
// components of a pair, and other ones from component to component; the least one.
cache::Cache factors() {
  const auto with = [](TensorChoice tensor, std::size_t n, int step) {
    for (std::size_t i = 0; i < n; ++i) {
      const int number = static_cast<int>(i) % (step > 0 ? 16 : 31);
      tensor.plan.factors.push_back(
          static_cast<std::int8_t>(step > 0 ? step * (number - 7) : number - 15));
    }
    return tensor;
  };
  GoldenBuilder builder(29, 520);
  builder.identity().rope = {cache::RopeStyle::kHalfSplit, 32, 10000};
  TensorChoice extremes = with(coded(mse(4), Centering::kPreRope, 2), 32, 1);
  extremes.plan.factors[3] = 64;
  extremes.plan.factors[4] = -127;
  return builder
      .attention({2, 32}, with(coded(mse(3), Centering::kPreRope, 4), 64, 3),
                 coded(mse(2), Centering::kPostRope))
      .attention({1, 32}, extremes, coded(mse(2), Centering::kNone))
      .attention(
          {2, 32},
          with(coded({.mode = Mode::kMixed, .bits = 2, .outlier_channels = 8, .outlier_bits = 3},
                     Centering::kPostRope),
               64, 0),
          dense_as(Dtype::kF16))
      .attention({1, 32}, with(coded({.mode = Mode::kProd, .bits = 3}, Centering::kPreRope), 32, 2),
                 dense_as(Dtype::kF16))
      .build();
}

cache::Cache appended() {
  return GoldenBuilder(17, 520)
      .attention({1, 32}, coded(mse(2), Centering::kPreRope), dense_as(Dtype::kF16))
      .build();
}

}  // namespace

std::vector<GoldenCase> golden_cases() {
  using format::Compression;
  return {
      {"dense", Compression::kNone, dense},
      {"empty", Compression::kNone, empty},
      {"mse_bits", Compression::kNone, mse_bits},
      {"mse_head_dims", Compression::kNone, mse_head_dims},
      {"mse_maps_and_scales", Compression::kNone, mse_maps_and_scales},
      {"prod", Compression::kNone, prod},
      {"mixed", Compression::kNone, mixed},
      {"affine", Compression::kNone, affine},
      {"centring", Compression::kNone, centering},
      {"sinks", Compression::kNone, sinks},
      {"full_tail", Compression::kNone, full_tail},
      {"zstd", Compression::kZstd, zstd},
      {"scaled_rope", Compression::kNone, scaled_rope},
      {"hidden_tokens", Compression::kNone, hidden_tokens},
      {"unknown_tokens", Compression::kNone, unknown_tokens},
      {"rotating", Compression::kNone, rotating},
      {"appended", Compression::kNone, appended, {100, 300}},
      {"planes", Compression::kPlanes, planes},
      {"archive", Compression::kZstd, archive},
      {"matrix", Compression::kNone, matrix},
      {"turbo_rotating", Compression::kNone, turbo_rotating},
      {"unequal", Compression::kPlanes, unequal},
      {"factors", Compression::kNone, factors},
  };
}

}  // namespace tqcache::test
