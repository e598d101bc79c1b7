// Head vectors in mode trellis (docs/reference/codec.md §10).

#include "tqcache/codec/trellis/trellis_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "packed_head.h"
#include "support/matchers.h"
#include "tqcache/base/half.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/codec/trellis/trellis.h"

namespace tqcache::codec::test {
namespace trellis_rows_test {

constexpr CodecSpec kSpec{.head_dim = 128, .mode = Mode::kTrellis, .step = 0.25f};

std::vector<float> gaussian_rows(std::size_t n, std::size_t dim, float factor = 1) {
  GaussianSource source(7);
  std::vector<float> rows(n * dim);
  for (float& x : rows) x = factor * static_cast<float>(source.next());
  return rows;
}

VectorRows view_of(const std::vector<float>& rows, std::size_t dim) {
  return {Dtype::kF32, reinterpret_cast<const std::byte*>(rows.data()), dim * sizeof(float)};
}

Packed encoded(const HeadCodec& codec, const std::vector<float>& rows, std::size_t n_skipped = 0) {
  Packed packed(codec);
  auto done = codec.encode(view_of(rows, codec.head_dim()), {}, {}, rows.size() / codec.head_dim(),
                           n_skipped, packed.codes, packed.scales);
  if (!done) ADD_FAILURE() << done.error().message;
  return packed;
}

double relative_error(const CodecSpec& spec) {
  const HeadCodec codec = make_codec(spec);
  const std::vector<float> rows = gaussian_rows(256, codec.head_dim());
  const Packed packed = encoded(codec, rows);
  std::vector<float> decoded(rows.size());
  codec.decode(packed.head(), {}, 256, decoded);
  double error = 0;
  double energy = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    error += std::pow(static_cast<double>(decoded[i]) - static_cast<double>(rows[i]), 2);
    energy += std::pow(static_cast<double>(rows[i]), 2);
  }
  return error / energy;
}

// Uniform scalar codes of this step would have step^2 / 12 at twice the number of levels: 4 / 12.
TEST(TrellisRows, HaveTheErrorOfTheirStep) {
  for (const int head_dim : {64, 80, 128, 256}) {
    for (const float step : {0.1f, 0.25f, 0.44f}) {
      CodecSpec spec = kSpec;
      spec.head_dim = head_dim;
      spec.step = step;
      const double of_step = 0.2635 * static_cast<double>(step) * static_cast<double>(step);
      const double drawn_in = of_step / (1 + of_step);
      const double expected = of_step + drawn_in * drawn_in;
      EXPECT_NEAR(relative_error(spec) / expected, 1, 0.06) << head_dim << ", " << step;
    }
  }
}

TEST(TrellisRows, AreDrawnInByTheErrorOfTheirStep) {
  EXPECT_FLOAT_EQ(step_shrink(0.25f), 1 / (1 + 0.2635f * 0.0625f));
  for (const float step : {0.25f, 0.6f}) {
    CodecSpec spec = kSpec;
    spec.step = step;
    const HeadCodec codec = make_codec(spec);
    const std::vector<float> rows = gaussian_rows(256, 128);
    std::vector<float> decoded(rows.size());
    codec.decode(encoded(codec, rows).head(), {}, 256, decoded);
    double product = 0, energy = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      product += static_cast<double>(rows[i]) * static_cast<double>(decoded[i]);
      energy += static_cast<double>(rows[i]) * static_cast<double>(rows[i]);
    }
    EXPECT_NEAR(product / energy, static_cast<double>(step_shrink(step)), 2e-3);
  }
}

TEST(TrellisRows, AreAPathThroughTheTrellis) {
  for (const BlockOrder order : {BlockOrder::kKeys, BlockOrder::kValues}) {
    const HeadCodec codec = make_codec(kSpec, order);
    const Packed packed = encoded(codec, gaussian_rows(256, 128));
    std::vector<std::uint8_t> symbols(256 * 128);
    ASSERT_TRUE(trellis_block_symbols({128, 256}, packed.codes, order, symbols).ok());
    std::vector<std::byte> again(packed.codes.size());
    ASSERT_TRUE(decode_trellis_block({128, 256}, symbols, order, again).ok());
    EXPECT_EQ(again, packed.codes);
  }
}

TEST(TrellisRows, HaveScalesOfAByte) {
  const Packed packed = encoded(make_codec(kSpec), gaussian_rows(256, 128, 3));
  for (const std::uint16_t scale : packed.scales) {
    EXPECT_EQ(scale & 0x7f, 0);
    EXPECT_NEAR(f16_to_f32(scale), 128 * 0.25 * 3, 30);
  }
}

TEST(TrellisRows, RoundTheScaleToTheNearestOfThreeBits) {
  // 128 steps of 1/4 of |x| / 8, with |x| = 8 / 32 (1 + m / 8 + a bit): 1.m in binary.
  EXPECT_EQ(step_scale(0.25f * 1.0625f - 1e-3f, 64, 0.25f), f32_to_f16(1.0f));
  EXPECT_EQ(step_scale(0.25f * 1.0625f, 64, 0.25f), f32_to_f16(1.125f));
  EXPECT_EQ(step_scale(0.25f * 1.9375f, 64, 0.25f), f32_to_f16(2.0f));
  EXPECT_EQ(step_scale(0, 64, 0.25f), 0);
}

void expect_same_on_every_table(const CodecSpec& spec, const std::vector<float>& rows) {
  const Packed expected = encoded(make_codec(spec, BlockOrder::kKeys, scalar_kernels()), rows);
  for (const Kernels* kernels : all_kernels()) {
    EXPECT_EQ(encoded(make_codec(spec, BlockOrder::kKeys, *kernels), rows), expected)
        << kernels->name << ", " << spec.head_dim;
  }
}

TEST(TrellisRows, AreTheSameBytesOnEveryTable) {
  for (const int head_dim : {32, 40, 80, 96, 128, 144, 576}) {
    CodecSpec spec = kSpec;
    spec.head_dim = head_dim;
    // Groups that are not full, and a vector without length.
    std::vector<float> rows = gaussian_rows(37, static_cast<std::size_t>(head_dim));
    std::fill_n(rows.begin() + 3 * head_dim, head_dim, 0.0f);
    expect_same_on_every_table(spec, rows);
  }
}

TEST(TrellisRows, AreTheSameBytesWhateverTurnsThem) {
  const std::vector<float> rows = gaussian_rows(37, 96);
  CodecSpec spec = kSpec;
  spec.head_dim = 96;
  for (const TransformKind rotation : {TransformKind::kDenseQr, TransformKind::kNone}) {
    spec.rotation = rotation;
    expect_same_on_every_table(spec, rows);
  }
  spec.rotation = TransformKind::kHadamard;
  spec.rounds = 2;
  expect_same_on_every_table(spec, rows);
}

TEST(TrellisRows, AreTheSameBytesFarFromZero) {
  CodecSpec spec = kSpec;
  spec.rotation = TransformKind::kNone;
  spec.step = 1.0f / 64;  // the loud component is beyond the last level
  std::vector<float> rows = gaussian_rows(37, 128);
  for (std::size_t i = 5; i < rows.size(); i += 128) rows[i] = 1e3f;
  expect_same_on_every_table(spec, rows);
}

TEST(TrellisRows, HaveCodeZeroWithoutAScale) {
  std::vector<float> rows = gaussian_rows(3, 128);
  std::fill_n(rows.begin() + 128, 128, 0.0f);
  const HeadCodec codec = make_codec(kSpec);
  const Packed packed = encoded(codec, rows, 1);
  std::vector<std::uint8_t> codes(256 * 128);
  unpack_block({128, 8, BlockOrder::kKeys}, packed.codes, codes);
  for (const std::size_t token : {0u, 1u, 3u, 255u}) {
    EXPECT_EQ(packed.scales[token], 0);
    for (std::size_t i = 0; i < 128; ++i) EXPECT_EQ(codes[token * 128 + i], 0);
  }
  EXPECT_NE(packed.scales[2], 0);
}

TEST(TrellisRows, RefuseALengthBeyondF16) {
  std::vector<float> rows = gaussian_rows(4, 128);
  std::fill_n(rows.begin() + 2 * 128, 128, 3000.0f);
  Packed packed(make_codec(kSpec));
  EXPECT_THAT(
      make_codec(kSpec).encode(view_of(rows, 128), {}, {}, 4, 0, packed.codes, packed.scales),
      test::FailsWith(ErrorCode::kUnsupported, "token 2: scale beyond f16"));
}

TEST(TrellisRows, RefuseWhatIsNotFinite) {
  std::vector<float> rows = gaussian_rows(4, 128);
  rows[3 * 128 + 5] = INFINITY;
  Packed packed(make_codec(kSpec));
  EXPECT_THAT(
      make_codec(kSpec).encode(view_of(rows, 128), {}, {}, 4, 0, packed.codes, packed.scales),
      test::FailsWith(ErrorCode::kCorrupt, "token 3: component 5: not finite"));
}

TEST(TrellisSpec, RefusesStepsOutOfRange) {
  for (const float step : {0.0f, 0.01f, 9.0f, NAN, -1.0f}) {
    CodecSpec spec = kSpec;
    spec.step = step;
    const auto parts = make_parts(spec);
    ASSERT_FALSE(parts.ok()) << step;
    EXPECT_EQ(parts.error().code, ErrorCode::kUnsupported);
  }
}

TEST(TrellisSpec, KnowsItsParts) {
  EXPECT_EQ(mode_of(128, make_parts(kSpec).value()).value(), Mode::kTrellis);
}

void expect_no_mode(std::vector<PartSpec> parts, std::string_view message) {
  EXPECT_THAT(mode_of(128, parts), test::FailsWith(ErrorCode::kCorrupt, message));
}

TEST(TrellisSpec, RefusesPartsThatAreNone) {
  const std::vector<PartSpec> good = make_parts(kSpec).value();
  std::vector<PartSpec> parts = good;
  parts[0].bits = 4;
  expect_no_mode(parts, "part 0: levels of 4 bits");
  parts = good;
  parts[0].centroids[3] += 1e-4f;
  expect_no_mode(parts, "part 0: centroids that are not the levels");
  parts = good;
  parts[0].rotation = TransformKind::kNone;
  parts[0].has_bias = true;
  expect_no_mode(parts, "part 0: a bias beside a step");
  parts = make_parts({.head_dim = 128, .mode = Mode::kProd, .bits = 3}).value();
  parts[0].scale = ScaleRule::kStep;
  parts[0].step = 1;
  EXPECT_FALSE(mode_of(128, parts).ok());
  parts = make_parts({.head_dim = 128}).value();
  parts[0].step = 1;
  expect_no_mode(parts, "part 0: a step beside another rule of the scale");
}

TEST(TrellisSpec, IsForNoOtherMode) {
  const auto parts = make_parts({.head_dim = 128, .scale = ScaleRule::kStep});
  ASSERT_FALSE(parts.ok());
  EXPECT_EQ(parts.error().code, ErrorCode::kUnsupported);
}

}  // namespace trellis_rows_test
}  // namespace tqcache::codec::test
