#include <gtest/gtest.h>

#include <limits>

#include "cache/random_cache.h"
#include "support/matchers.h"
#include "tqcache/base/half.h"
#include "tqcache/cache.h"

namespace tqcache::cache {
namespace side_test {

constexpr HeadShape kShape{2, 64};

TurboSide side_of(const SidePlan& plan, Dtype dtype) {
  return {
      make_codec(plan, codec::BlockOrder::kKeys, kShape, dtype, Rope()).value(), {}, {dtype, {}}};
}

// Keys of `bits` without centering.
TurboSide turbo_side(int bits, Dtype dtype = Dtype::kF16) {
  const SidePlan plan = test::plan_of_bits(bits, Centering::kNone);
  return side_of(plan, dtype);
}

// Appends `n` tokens of rows one by one, packing as a decoder does.
void append_one_by_one(Side& side, std::int64_t held, std::span<const float> rows) {
  const std::size_t row = static_cast<std::size_t>(kShape.n_kv_heads * kShape.head_dim);
  for (std::size_t i = 0; i * row < rows.size(); ++i) {
    const std::int64_t at = held + static_cast<std::int64_t>(i);
    ASSERT_TRUE(pack_full_tail(side, at, 1));
    append(side, kShape, at, rows.subspan(i * row, row));
  }
}

TEST(Side, KeepsDenseValuesByHeadTokenAndComponent) {
  std::mt19937 random(1);
  const std::vector<float> rows = test::random_rows(random, 300, kShape);
  Side side = DenseSide{Dtype::kF32, {}};
  append_one_by_one(side, 0, rows);
  const std::vector<float> values = test::values_of(side, kShape, 300);
  for (std::size_t head = 0; head < 2; ++head) {
    for (std::size_t token = 0; token < 300; ++token) {
      for (std::size_t i = 0; i < 64; ++i) {
        ASSERT_EQ(values[(head * 300 + token) * 64 + i], rows[(token * 2 + head) * 64 + i]);
      }
    }
  }
}

TEST(Side, RoundsToItsDtype) {
  std::mt19937 random(2);
  const std::vector<float> rows = test::random_rows(random, 1, kShape);
  Side side = DenseSide{Dtype::kF16, {}};
  append(side, kShape, 0, rows);
  const std::vector<float> values = test::values_of(side, kShape, 1);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(values[i], f16_to_f32(f32_to_f16(rows[i])));
  }
}

TEST(Side, AppendingInPiecesEqualsAppendingOneByOne) {
  std::mt19937 random(3);
  const std::vector<float> rows = test::random_rows(random, 256, kShape);
  Side whole = DenseSide{Dtype::kF16, {}};
  append(whole, kShape, 0, rows);
  Side single = DenseSide{Dtype::kF16, {}};
  append_one_by_one(single, 0, rows);
  EXPECT_EQ(test::values_of(whole, kShape, 256), test::values_of(single, kShape, 256));
}

TEST(Side, FullTailStaysDenseUntilTheNextToken) {
  std::mt19937 random(4);
  const std::vector<float> rows = test::random_rows(random, 256, kShape);
  Side side = turbo_side(4);
  append(side, kShape, 0, rows);
  EXPECT_EQ(packed_block_count(side), 0);
  ASSERT_TRUE(pack_full_tail(side, 256, 1));
  EXPECT_EQ(packed_block_count(side), 1);
  EXPECT_TRUE(std::get<TurboSide>(side).tail.blocks.empty());
}

TEST(Side, PackFullTailLeavesAPartTailAndDenseSidesAlone) {
  std::mt19937 random(5);
  Side turbo = turbo_side(4);
  append(turbo, kShape, 0, test::random_rows(random, 255, kShape));
  ASSERT_TRUE(pack_full_tail(turbo, 255, 1));
  EXPECT_EQ(packed_block_count(turbo), 0);
  Side dense = DenseSide{Dtype::kF16, {}};
  append(dense, kShape, 0, test::random_rows(random, 256, kShape));
  ASSERT_TRUE(pack_full_tail(dense, 256, 1));
  EXPECT_EQ(std::get<DenseSide>(dense).blocks.size(), 1u);
}

TEST(Side, PackedValuesAreNearTheDenseOnes) {
  std::mt19937 random(6);
  const std::vector<float> rows = test::random_rows(random, 256, kShape);
  Side side = turbo_side(4, Dtype::kF32);
  append(side, kShape, 0, rows);
  const std::vector<float> before = test::values_of(side, kShape, 256);
  ASSERT_TRUE(pack_full_tail(side, 256, 1));
  const std::vector<float> after = test::values_of(side, kShape, 256);
  double error = 0, energy = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    error += (before[i] - after[i]) * (before[i] - after[i]);
    energy += before[i] * before[i];
  }
  EXPECT_GT(error / energy, 0.007);  // 4 bits at d=64 cost .0091 (docs/reference/codec.md)
  EXPECT_LT(error / energy, 0.011);
}

TEST(Side, PackingGivesTheSameBytesOnAnyNumberOfThreads) {
  std::mt19937 random(7);
  Side side = DenseSide{Dtype::kF16, {}};
  append(side, kShape, 0, test::random_rows(random, 256, kShape));
  const FullBlock block{kShape, Dtype::kF16, 0, dense_block(side, 0)};
  const KvCodec codec = turbo_side(3).codec;
  const SharedBytes one = codec.encode(block, 1).value(), four = codec.encode(block, 4).value();
  EXPECT_TRUE(std::ranges::equal(one.view(), four.view()));
}

TEST(Side, RefusesToPackNanAndKeepsTheTail) {
  std::mt19937 random(8);
  std::vector<float> rows = test::random_rows(random, 256, kShape);
  rows[(17 * 2 + 1) * 64 + 5] = std::numeric_limits<float>::quiet_NaN();
  Side side = turbo_side(4, Dtype::kF32);
  append(side, kShape, 0, rows);
  EXPECT_THAT(pack_full_tail(side, 256, 2),
              test::FailsWith(ErrorCode::kCorrupt, testing::HasSubstr("head 1 token 17")));
  EXPECT_EQ(packed_block_count(side), 0);
  EXPECT_EQ(std::get<TurboSide>(side).tail.blocks.size(), 1u);
}

TEST(Side, RemoveTailLeavesTheFirstTokens) {
  std::mt19937 random(9);
  const std::vector<float> rows = test::random_rows(random, 256, kShape);
  Side side = DenseSide{Dtype::kF32, {}};
  append(side, kShape, 0, rows);
  append(side, kShape, 256, test::random_rows(random, 10, kShape));
  remove_tail(side, 200);
  EXPECT_EQ(std::get<DenseSide>(side).blocks.size(), 1u);
  const std::vector<float> values = test::values_of(side, kShape, 200);
  EXPECT_EQ(values[0], rows[0]);
  remove_tail(side, 0);
  EXPECT_TRUE(std::get<DenseSide>(side).blocks.empty());
}

TEST(Side, CountsBytesUsedAndAllocated) {
  std::mt19937 random(10);
  Side side = DenseSide{Dtype::kF16, {}};
  append(side, kShape, 0, test::random_rows(random, 10, kShape));
  const ByteCount dense = byte_count(side, kShape, 10);
  EXPECT_EQ(dense.used, 10u * 2 * 64 * 2);
  EXPECT_EQ(dense.allocated, 256u * 2 * 64 * 2);
  Side turbo = turbo_side(4);
  append(turbo, kShape, 0, test::random_rows(random, 256, kShape));
  ASSERT_TRUE(pack_full_tail(turbo, 256, 1));
  const ByteCount packed = byte_count(turbo, kShape, 256);
  EXPECT_EQ(packed.used, 2u * 256 * (32 + 2));
  EXPECT_EQ(packed.allocated, packed.used);
}

// Codes of all heads, scales of all heads, sink tokens of all heads: what a file has too.
TEST(Side, PacksCodesThenScalesThenSinkTokens) {
  std::mt19937 random(11);
  SidePlan plan = test::plan_of_bits(4, Centering::kNone);
  plan.n_sinks = 3;
  Side side = side_of(plan, Dtype::kF16);
  append(side, kShape, 0, test::random_rows(random, 256, kShape));
  const AlignedBytes dense = dense_block(side, 0);
  ASSERT_TRUE(pack_full_tail(side, 256, 1));
  const auto& packed = std::get<TurboSide>(side);
  const ByteView bytes = packed.packed[0].bytes.view();
  const std::size_t codes = 256 * 32, scales = 512, sinks = 3 * 64 * 2;
  ASSERT_EQ(bytes.size(), 2 * (codes + scales + sinks));
  EXPECT_EQ(packed.codec.packed_bytes(0), bytes.size());
  EXPECT_EQ(packed.codec.packed_bytes(1), 2 * (codes + scales));
  for (std::int64_t head = 0; head < 2; ++head) {
    const auto h = static_cast<std::size_t>(head);
    const codec::PackedHead at = test::packed_head(packed, 0, head);
    EXPECT_EQ(at.codes.data(), bytes.data() + h * codes);
    EXPECT_EQ(std::as_bytes(at.scales).data(), bytes.data() + 2 * codes + h * scales);
    const ByteView rows = packed.codec.sink_rows(bytes, head);
    EXPECT_EQ(rows.data(), bytes.data() + 2 * (codes + scales) + h * sinks);
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), dense.data() + h * 256 * 64 * 2));
    EXPECT_EQ(rows.size(), sinks);
    for (std::size_t token = 0; token < 4; ++token) EXPECT_EQ(at.scales[token] == 0, token < 3);
  }
}

TEST(Side, TakesTheMeanAndOutlierChannelsOnce) {
  std::mt19937 random(12);
  SidePlan plan;
  plan.codec.mode = codec::Mode::kMixed;
  plan.codec.outlier_bits = 5;
  TurboSide side = side_of(plan, Dtype::kF16);
  EXPECT_FALSE(side.codec.state().mean.is_fixed());
  EXPECT_FALSE(side.codec.state().outliers.is_fixed());
  Side first = DenseSide{Dtype::kF16, {}}, second = DenseSide{Dtype::kF16, {}};
  append(first, kShape, 0, test::random_rows(random, 256, kShape));
  append(second, kShape, 0, test::random_rows(random, 256, kShape));
  side.codec.fit(test::full_blocks(first, kShape, 1), 1);
  const Mean mean = side.codec.state().mean;
  const Outliers outliers = side.codec.state().outliers;
  EXPECT_TRUE(mean.is_fixed() && outliers.is_fixed());
  side.codec.fit(test::full_blocks(second, kShape, 1), 1);
  EXPECT_TRUE(side.codec.state().mean == mean);
  EXPECT_EQ(side.codec.state().outliers, outliers);
}

// A block that is refused leaves the side as it was, so that it can be tried again.
TEST(Side, IsNotFixedByABlockThatIsRefused) {
  std::mt19937 random(13);
  SidePlan plan;
  plan.codec.mode = codec::Mode::kMixed;
  plan.codec.outlier_bits = 5;
  Side side = side_of(plan, Dtype::kF32);
  std::vector<float> rows = test::random_rows(random, 256, kShape);
  rows[100] = std::numeric_limits<float>::infinity();
  append(side, kShape, 0, rows);
  ASSERT_FALSE(pack_full_tail(side, 256, 1));
  EXPECT_FALSE(std::get<TurboSide>(side).codec.state().mean.is_fixed());
  EXPECT_FALSE(std::get<TurboSide>(side).codec.state().outliers.is_fixed());
}

}  // namespace side_test
}  // namespace tqcache::cache
