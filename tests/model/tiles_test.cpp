// What only AMX has; products_test.cpp tests its products with those of other instruction sets.

#include "tqcache/model/linear/tiles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/gaussian.h"
#include "support/random_blocks.h"
#include "tqcache/model/linear/product_kernels.h"
#include "tqcache/tensors/block_types.h"

namespace tqcache::model {
namespace tiles_test {

class Tiles : public testing::Test {
 protected:
  void SetUp() override {
    if (best_tiles() == nullptr) GTEST_SKIP() << "no AMX here, or TQCACHE_ISA is set";
  }
  const MatrixProducts& tiles() const { return *best_tiles(); }
};

ConstRows rows_of(const std::vector<float>& values, std::size_t n_columns) {
  return {values.data(), static_cast<std::int64_t>(n_columns)};
}

// A panel of quantized weights has the parts of the f32 numbers for which they stand.
TEST_F(Tiles, SplitPanelsAsTheirWeights) {
  test::SplitMix64 random(4);
  for (std::size_t type = 0; type < tensors::block_types().size(); ++type) {
    const tensors::BlockType& block = tensors::block_types()[type];
    const std::size_t depth = 3 * block.block_values, n = kProductRows;
    const std::size_t row_bytes = 3 * block.block_bytes;
    Bytes rows(n * row_bytes);
    test::fill_blocks(block, rows, random);
    std::vector<float> weights(n * depth);
    block.widen(rows.data(), weights);
    AlignedBytes expected(tiles().size(n, depth, 2)), parts(expected.size());
    tiles().pack_right(rows_of(weights, depth), n, depth, 2, expected.data());

    const RunShape shape = run_shapes()[type];
    std::vector<std::int8_t> codes(kPanelRows * depth);
    std::vector<float> scales(codes.size() / shape.run), minima(scales.size());
    for (std::size_t panel = 0; panel < 2; ++panel) {
      best_kernels().chunks->pack[type](rows.data() + panel * kPanelRows * row_bytes, kPanelRows,
                                        depth / kGroup, codes.data(), scales.data(), minima.data());
      tiles().pack_panel({codes.data(), scales.data(), shape.has_minimum ? minima.data() : nullptr,
                          shape.run, depth / kGroup, kPanelRows},
                         parts.data() + panel * parts.size() / 2);
    }
    EXPECT_EQ(parts, expected) << type;
  }
}

// Processors by what they can do, whatever their model numbers.
TEST(TakesTiles, OnlyWithAmxAndAvx512AndUnlessKernelsAreNamed) {
  using codec::Isa;
  const Processor amx = {.avx2 = true, .avx512 = true, .amx_bf16 = true};
  const Processor avx512 = {.avx2 = true, .avx512 = true};
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
