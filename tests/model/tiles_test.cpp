#include "tqcache/model/linear/tiles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/gaussian.h"
#include "support/random_blocks.h"
#include "tqcache/base/half.h"
#include "tqcache/tensors/block_types.h"

namespace tqcache::model {
namespace tiles_test {

class Tiles : public testing::Test {
 protected:
  void SetUp() override {
    if (best_tiles() == nullptr) GTEST_SKIP() << "no AMX here, or TQCACHE_ISA is set";
  }
  const TileKernels& tiles() const { return *best_tiles(); }
};

ConstRows rows_of(const std::vector<float>& values, std::size_t n_columns) {
  return {values.data(), static_cast<std::int64_t>(n_columns)};
}

struct Shape {
  std::size_t m, n, depth;
};
constexpr Shape kShapes[] = {{1, 1, 1},    {2, 16, 32},   {16, 17, 33},   {31, 32, 96},
                             {33, 47, 70}, {64, 64, 256}, {65, 100, 576}, {5, 1, 1000}};

// The larger of the errors of a product, relative to the sizes of the terms of each sum.
double worst_error(const TileKernels& tiles, const Shape& shape, const std::vector<float>& a,
                   const std::vector<float>& b, std::size_t parts_a, std::size_t parts_b) {
  const auto [m, n, depth] = shape;
  Parts left(split_size(m, depth, parts_a)), right(split_size(n, depth, parts_b));
  tiles.split_left(rows_of(a, depth), m, depth, 1.0f, parts_a, left.data());
  tiles.split_right(rows_of(b, depth), n, depth, parts_b, right.data());
  const std::size_t stride = n + 3;
  std::vector<float> y(m * stride, 7.0f);
  tiles.multiply({left.data(), depth, parts_a}, {right.data(), depth, parts_b}, m, n, depth,
                 y.data(), stride);
  double worst = 0;
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < stride; ++j) {
      const float found = y[i * stride + j];
      if (j >= n) {
        EXPECT_EQ(found, 7.0f) << "written behind a row";
        continue;
      }
      double sum = 0, size = 1e-30;
      for (std::size_t k = 0; k < depth; ++k) {
        const double term =
            static_cast<double>(a[i * depth + k]) * static_cast<double>(b[j * depth + k]);
        sum += term;
        size += std::abs(term);
      }
      worst = std::max(worst, std::abs(static_cast<double>(found) - sum) / size);
    }
  }
  return worst;
}

// The bounds of the table in tiles.h, and the rounding of sums in f32.
TEST_F(Tiles, MultiplyWithTheStatedErrors) {
  for (const Shape& shape : kShapes) {
    const std::vector<float> a = test::GaussianSource(1).vector(shape.m * shape.depth);
    const std::vector<float> b = test::GaussianSource(2).vector(shape.n * shape.depth);
    std::vector<float> f16 = b, bf16 = b;
    for (float& value : f16) value = f16_to_f32(f32_to_f16(value));
    for (float& value : bf16) value = bf16_to_f32(f32_to_bf16(value));
    EXPECT_LT(worst_error(tiles(), shape, a, b, 3, 3), 1e-6) << shape.depth;
    EXPECT_LT(worst_error(tiles(), shape, a, f16, 3, 2), 1e-6) << shape.depth;
    EXPECT_LT(worst_error(tiles(), shape, a, bf16, 3, 1), 1e-6) << shape.depth;
    EXPECT_LT(worst_error(tiles(), shape, a, b, 2, 2), std::ldexp(1.0, -15)) << shape.depth;
  }
}

TEST_F(Tiles, MultiplyTheSameFromColumnsAndFromRows) {
  for (const auto& [m, n, depth] : kShapes) {
    const std::vector<float> b = test::GaussianSource(3).vector(n * depth);
    std::vector<float> columns(n * depth);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t k = 0; k < depth; ++k) columns[k * n + i] = b[i * depth + k];
    }
    for (const std::size_t parts : {1u, 2u, 3u}) {
      Parts of_rows(split_size(n, depth, parts), 1), of_columns(of_rows.size(), 2);
      tiles().split_right(rows_of(b, depth), n, depth, parts, of_rows.data());
      tiles().split_columns(rows_of(columns, n), n, depth, parts, of_columns.data());
      EXPECT_EQ(of_rows, of_columns) << n << ", " << depth << ", " << parts;
    }
  }
}

// A panel of quantized weights has the parts of the f32 numbers for which they stand.
TEST_F(Tiles, SplitPanelsAsTheirWeights) {
  test::SplitMix64 random(4);
  for (std::size_t type = 0; type < tensors::block_types().size(); ++type) {
    const tensors::BlockType& block = tensors::block_types()[type];
    const std::size_t depth = 3 * block.block_values, n = 2 * kTileRows;
    const std::size_t row_bytes = 3 * block.block_bytes;
    Bytes rows(n * row_bytes);
    test::fill_blocks(block, rows, random);
    std::vector<float> weights(n * depth);
    block.widen(rows.data(), weights);
    Parts expected(split_size(n, depth, 2)), parts(expected.size());
    tiles().split_right(rows_of(weights, depth), n, depth, 2, expected.data());

    const RunShape shape = run_shapes()[type];
    std::vector<std::int8_t> codes(kPanelRows * depth);
    std::vector<float> scales(codes.size() / shape.run), minima(scales.size());
    for (std::size_t panel = 0; panel < 2; ++panel) {
      best_kernels().chunks->pack[type](rows.data() + panel * kPanelRows * row_bytes, kPanelRows,
                                        depth / kGroup, codes.data(), scales.data(), minima.data());
      tiles().split_panel({codes.data(), scales.data(), shape.has_minimum ? minima.data() : nullptr,
                           shape.run, depth / kGroup, kPanelRows},
                          parts.data() + panel * parts.size() / 2);
    }
    EXPECT_EQ(parts, expected) << type;
  }
}

TEST_F(Tiles, MultiplyFromTheMiddleOfFactors) {
  constexpr std::size_t kM = 70, kN = 96, kDepth = 160;
  const std::vector<float> a = test::GaussianSource(5).vector(kM * kDepth);
  const std::vector<float> b = test::GaussianSource(6).vector(kN * kDepth);
  Parts left(split_size(kM, kDepth, 3)), right(split_size(kN, kDepth, 2));
  tiles().split_left(rows_of(a, kDepth), kM, kDepth, 0.5f, 3, left.data());
  tiles().split_right(rows_of(b, kDepth), kN, kDepth, 2, right.data());
  // Rows 32 to 70 of a, 64 to 96 of b, and values 96 to 160 of both.
  std::vector<float> y(38 * 32);
  tiles().multiply(split_from({left.data(), kDepth, 3}, 32, 96),
                   split_from({right.data(), kDepth, 2}, 64, 96), 38, 32, 64, y.data(), 32);
  for (std::size_t i = 0; i < 38; ++i) {
    for (std::size_t j = 0; j < 32; ++j) {
      double sum = 0;
      for (std::size_t k = 96; k < kDepth; ++k) {
        sum += 0.5 * static_cast<double>(a[(32 + i) * kDepth + k]) *
               static_cast<double>(b[(64 + j) * kDepth + k]);
      }
      EXPECT_NEAR(static_cast<double>(y[i * 32 + j]), sum, 1e-3);
    }
  }
}

TEST_F(Tiles, ShowValuesThatAreNotFinite) {
  for (const float value :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> a(3 * 40, 1.0f);
    const std::vector<float> b(2 * 40, 1.0f);
    a[40 + 7] = value;
    Parts left(split_size(3, 40, 3)), right(split_size(2, 40, 3));
    tiles().split_left(rows_of(a, 40), 3, 40, 1.0f, 3, left.data());
    tiles().split_right(rows_of(b, 40), 2, 40, 3, right.data());
    std::vector<float> y(3 * 2);
    tiles().multiply({left.data(), 40, 3}, {right.data(), 40, 3}, 3, 2, 40, y.data(), 2);
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isfinite(y[i]), i / 2 != 1) << i;
  }
}

// Processors by what they can do, whatever their model numbers.
TEST(TakesTiles, OnlyWithAmxAndAvx512AndUnlessKernelsAreNamed) {
  using codec::Isa;
  const InstructionSets amx = {.avx2 = true, .avx512 = true, .amx_bf16 = true};
  const InstructionSets avx512 = {.avx2 = true, .avx512 = true};
  EXPECT_TRUE(takes_tiles(amx, Isa::kAvx512, nullptr));
  EXPECT_TRUE(takes_tiles(amx, Isa::kAvx512, ""));
  EXPECT_FALSE(takes_tiles(amx, Isa::kAvx512, "avx512"));
  EXPECT_FALSE(takes_tiles(amx, Isa::kAvx2, "avx2"));
  EXPECT_FALSE(takes_tiles(amx, Isa::kAvx2, nullptr));
  EXPECT_FALSE(takes_tiles(avx512, Isa::kAvx512, nullptr));
  EXPECT_FALSE(takes_tiles({}, Isa::kScalar, nullptr));
  EXPECT_FALSE(takes_tiles({}, Isa::kNeon, nullptr));
}

}  // namespace tiles_test
}  // namespace tqcache::model
