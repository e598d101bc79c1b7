#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "support/gaussian.h"
#include "support/matchers.h"
#include "tqcache/codec/head_codec.h"
#include "tqcache/codec/rotation.h"
#include "tqcache/codec_spec.h"

namespace tqcache::codec {
namespace map_matrix_test {

using test::GaussianSource;
using testing::HasSubstr;

TransformMatrix matrix_of(std::span<const float> values) {
  return TransformMatrix::make(AlignedFloats(values.begin(), values.end())).value();
}

TEST(TransformMatrix, HasNoValuesByDefault) {
  EXPECT_TRUE(TransformMatrix().values().empty());
  EXPECT_TRUE(matrix_of({}).values().empty());
  EXPECT_EQ(matrix_of({}).shared(), nullptr);
  EXPECT_EQ(TransformMatrix(), matrix_of({}));
}

TEST(TransformMatrix, RefusesValuesThatAreNotFiniteOrTooLarge) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity, 16.001f, -16.001f}) {
    EXPECT_THAT(TransformMatrix::make({1, 2, bad, 3}),
                test::FailsWith(ErrorCode::kCorrupt, "matrix: value 2 outside -16 to 16"));
  }
  EXPECT_TRUE(TransformMatrix::make({16, -16}).ok());
}

TEST(TransformMatrix, IsEqualToWhatHasTheSameBits) {
  const std::vector<float> zero = {1, 0}, minus = {1, -0.0f};
  EXPECT_EQ(matrix_of(zero), matrix_of(zero));
  EXPECT_NE(matrix_of(zero), matrix_of(minus));
  EXPECT_NE(matrix_of(zero), TransformMatrix());
  EXPECT_NE(matrix_of(zero), matrix_of({&zero[0], 1}));
}

TEST(TransformMatrix, SharesItsValuesWithCopies) {
  const std::vector<float> values = {1, 2, 3, 4};
  const TransformMatrix matrix = matrix_of(values);
  const TransformMatrix copy = matrix;
  EXPECT_EQ(copy.values().data(), matrix.values().data());
  const Rotation rotation({.head_dim = 8,
                           .bits = 1,
                           .rotation = TransformKind::kMatrix,
                           .matrix = matrix_of(std::vector<float>(64, 0.5f))});
  EXPECT_EQ(rotation.matrix().size(), 64u);
}

TEST(TransformMatrix, StandsExactlyWithItsKindOfMapAndIsSquare) {
  PartSpec spec{.head_dim = 8, .bits = 1, .rotation = TransformKind::kMatrix};
  EXPECT_EQ(validate(spec).error().message, "matrix: 0 values where 64 belong");
  EXPECT_EQ(validate(spec).error().code, ErrorCode::kCorrupt);
  spec.matrix = matrix_of(std::vector<float>(63, 0.5f));
  EXPECT_EQ(validate(spec).error().message, "matrix: 63 values where 64 belong");
  spec.matrix = matrix_of(std::vector<float>(64, 0.5f));
  EXPECT_TRUE(validate(spec).ok());
  spec.rounds = 2;
  EXPECT_THAT(validate(spec).error().message, HasSubstr("rounds 2"));
  spec.rounds = 1;
  for (const TransformKind kind : {TransformKind::kHadamard, TransformKind::kDenseQr,
                                   TransformKind::kGaussian, TransformKind::kNone}) {
    spec.rotation = kind;
    EXPECT_EQ(validate(spec).error().message, "matrix: 64 values where 0 belong");
  }
}

TEST(TransformMatrix, CannotBeRequestedByACodecSpec) {
  const CodecSpec spec{.head_dim = 64, .rotation = TransformKind::kMatrix};
  EXPECT_FALSE(make_parts(spec).ok());
}

// The same matrix from a seed and by value: one map, one set of bytes.
void expect_same_bytes(CodecSpec spec, BlockOrder order) {
  const std::vector<PartSpec> drawn = make_parts(spec).value();
  std::vector<PartSpec> given = drawn;
  for (PartSpec& part : given) {
    const Rotation rotation(part);
    part.rotation = TransformKind::kMatrix;
    part.matrix = matrix_of(rotation.matrix());
    part.seed = 0;
  }
  const auto dim = static_cast<std::size_t>(spec.head_dim);
  const HeadCodec a = HeadCodec::make(spec.head_dim, drawn, order).value();
  const HeadCodec b = HeadCodec::make(spec.head_dim, given, order).value();
  EXPECT_EQ(a.mode(), b.mode());
  const std::vector<float> x = GaussianSource(7).vector(kBlockTokens * dim);
  const VectorRows rows{Dtype::kF32, reinterpret_cast<const std::byte*>(x.data()),
                        dim * sizeof(float)};
  std::vector<std::byte> codes_a(a.code_bytes()), codes_b(b.code_bytes());
  std::vector<std::uint16_t> scales_a(a.n_scale_rows() * kBlockTokens), scales_b(scales_a.size());
  ASSERT_TRUE(a.encode(rows, Center{}, {}, kBlockTokens, 0, codes_a, scales_a).ok());
  ASSERT_TRUE(b.encode(rows, Center{}, {}, kBlockTokens, 0, codes_b, scales_b).ok());
  EXPECT_EQ(codes_a, codes_b);
  EXPECT_EQ(scales_a, scales_b);
  std::vector<float> decoded_a(x.size()), decoded_b(x.size());
  a.decode({codes_a, scales_a}, {}, kBlockTokens, decoded_a);
  b.decode({codes_b, scales_b}, {}, kBlockTokens, decoded_b);
  EXPECT_EQ(decoded_a, decoded_b);
}

TEST(TransformMatrix, CodesAsTheSameMatrixFromASeedDoes) {
  for (const BlockOrder order : {BlockOrder::kKeys, BlockOrder::kValues}) {
    for (const int head_dim : {32, 80, 128}) {
      expect_same_bytes({.head_dim = head_dim, .bits = 3, .rotation = TransformKind::kDenseQr},
                        order);
      expect_same_bytes({.head_dim = head_dim,
                         .mode = Mode::kProd,
                         .bits = 3,
                         .rotation = TransformKind::kDenseQr},
                        order);
      expect_same_bytes({.head_dim = head_dim,
                         .mode = Mode::kMixed,
                         .bits = 2,
                         .rotation = TransformKind::kDenseQr,
                         .outlier_channels = 8,
                         .outlier_bits = 4},
                        order);
    }
  }
}

}  // namespace map_matrix_test
}  // namespace tqcache::codec
