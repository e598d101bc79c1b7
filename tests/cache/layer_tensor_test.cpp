#include <gtest/gtest.h>

#include <limits>

#include "cache/random_cache.h"
#include "support/matchers.h"
#include "tqcache/base/half.h"
#include "tqcache/cache.h"

namespace tqcache::cache {
namespace tensor_test {

constexpr HeadShape kShape{2, 64};

TurboTensor tensor_of(const TensorPlan& plan, Dtype dtype) {
  return {
      make_codec(plan, codec::BlockOrder::kKeys, kShape, dtype, Rope()).value(), {}, {dtype, {}}};
}

// Keys of `bits` without centering.
TurboTensor turbo_tensor(int bits, Dtype dtype = Dtype::kF16) {
  const TensorPlan plan = test::plan_of_bits(bits, Centering::kNone);
  return tensor_of(plan, dtype);
}

// Appends `n` tokens of rows one by one, packing as a decoder does.
void append_one_by_one(Tensor& tensor, std::int64_t held, std::span<const float> rows) {
  const std::size_t row = static_cast<std::size_t>(kShape.n_kv_heads * kShape.head_dim);
  for (std::size_t i = 0; i * row < rows.size(); ++i) {
    const std::int64_t at = held + static_cast<std::int64_t>(i);
    ASSERT_TRUE(pack_full_tail(tensor, at, 1));
    append(tensor, kShape, at, rows.subspan(i * row, row));
  }
}

TEST(Tensor, KeepsDenseValuesByHeadTokenAndComponent) {
  std::mt19937 random(1);
  const std::vector<float> rows = test::random_rows(random, 300, kShape);
  Tensor tensor = DenseTensor{Dtype::kF32, {}};
  append_one_by_one(tensor, 0, rows);
  const std::vector<float> values = test::values_of(tensor, kShape, 300);
  for (std::size_t head = 0; head < 2; ++head) {
    for (std::size_t token = 0; token < 300; ++token) {
      for (std::size_t i = 0; i < 64; ++i) {
        ASSERT_EQ(values[(head * 300 + token) * 64 + i], rows[(token * 2 + head) * 64 + i]);
      }
    }
  }
}

TEST(Tensor, RoundsToItsDtype) {
  std::mt19937 random(2);
  const std::vector<float> rows = test::random_rows(random, 1, kShape);
  Tensor tensor = DenseTensor{Dtype::kF16, {}};
  append(tensor, kShape, 0, rows);
  const std::vector<float> values = test::values_of(tensor, kShape, 1);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(values[i], f16_to_f32(f32_to_f16(rows[i])));
  }
}

TEST(Tensor, AppendingInPiecesEqualsAppendingOneByOne) {
  std::mt19937 random(3);
  const std::vector<float> rows = test::random_rows(random, 256, kShape);
  Tensor whole = DenseTensor{Dtype::kF16, {}};
  append(whole, kShape, 0, rows);
  Tensor single = DenseTensor{Dtype::kF16, {}};
  append_one_by_one(single, 0, rows);
  EXPECT_EQ(test::values_of(whole, kShape, 256), test::values_of(single, kShape, 256));
}

TEST(Tensor, FullTailStaysDenseUntilTheNextToken) {
  std::mt19937 random(4);
  const std::vector<float> rows = test::random_rows(random, 256, kShape);
  Tensor tensor = turbo_tensor(4);
  append(tensor, kShape, 0, rows);
  EXPECT_EQ(packed_block_count(tensor), 0);
  ASSERT_TRUE(pack_full_tail(tensor, 256, 1));
  EXPECT_EQ(packed_block_count(tensor), 1);
  EXPECT_TRUE(std::get<TurboTensor>(tensor).tail.blocks.empty());
}

TEST(Tensor, PackFullTailLeavesAPartTailAndDenseTensorsAlone) {
  std::mt19937 random(5);
  Tensor turbo = turbo_tensor(4);
  append(turbo, kShape, 0, test::random_rows(random, 255, kShape));
  ASSERT_TRUE(pack_full_tail(turbo, 255, 1));
  EXPECT_EQ(packed_block_count(turbo), 0);
  Tensor dense = DenseTensor{Dtype::kF16, {}};
  append(dense, kShape, 0, test::random_rows(random, 256, kShape));
  ASSERT_TRUE(pack_full_tail(dense, 256, 1));
  EXPECT_EQ(std::get<DenseTensor>(dense).blocks.size(), 1u);
}

TEST(Tensor, PackedValuesAreNearTheDenseOnes) {
  std::mt19937 random(6);
  const std::vector<float> rows = test::random_rows(random, 256, kShape);
  Tensor tensor = turbo_tensor(4, Dtype::kF32);
  append(tensor, kShape, 0, rows);
  const std::vector<float> before = test::values_of(tensor, kShape, 256);
  ASSERT_TRUE(pack_full_tail(tensor, 256, 1));
  const std::vector<float> after = test::values_of(tensor, kShape, 256);
  double error = 0, energy = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    error += (before[i] - after[i]) * (before[i] - after[i]);
    energy += before[i] * before[i];
  }
  EXPECT_GT(error / energy, 0.007);  // 4 bits at d=64 cost .0091 (docs/reference/codec.md)
  EXPECT_LT(error / energy, 0.011);
}

TEST(Tensor, PackingGivesTheSameBytesOnAnyNumberOfThreads) {
  std::mt19937 random(7);
  Tensor tensor = DenseTensor{Dtype::kF16, {}};
  append(tensor, kShape, 0, test::random_rows(random, 256, kShape));
  const FullBlock block{kShape, Dtype::kF16, 0, dense_block(tensor, 0)};
  const KvCodec codec = turbo_tensor(3).codec;
  const SharedBytes one = codec.encode(block, 1).value(), four = codec.encode(block, 4).value();
  EXPECT_TRUE(std::ranges::equal(one.view(), four.view()));
}

TEST(Tensor, RefusesToPackNanAndKeepsTheTail) {
  std::mt19937 random(8);
  std::vector<float> rows = test::random_rows(random, 256, kShape);
  rows[(17 * 2 + 1) * 64 + 5] = std::numeric_limits<float>::quiet_NaN();
  Tensor tensor = turbo_tensor(4, Dtype::kF32);
  append(tensor, kShape, 0, rows);
  EXPECT_THAT(pack_full_tail(tensor, 256, 2),
              test::FailsWith(ErrorCode::kCorrupt, testing::HasSubstr("head 1 token 17")));
  EXPECT_EQ(packed_block_count(tensor), 0);
  EXPECT_EQ(std::get<TurboTensor>(tensor).tail.blocks.size(), 1u);
}

TEST(Tensor, RemoveTailLeavesTheFirstTokens) {
  std::mt19937 random(9);
  const std::vector<float> rows = test::random_rows(random, 256, kShape);
  Tensor tensor = DenseTensor{Dtype::kF32, {}};
  append(tensor, kShape, 0, rows);
  append(tensor, kShape, 256, test::random_rows(random, 10, kShape));
  remove_tail(tensor, 200);
  EXPECT_EQ(std::get<DenseTensor>(tensor).blocks.size(), 1u);
  const std::vector<float> values = test::values_of(tensor, kShape, 200);
  EXPECT_EQ(values[0], rows[0]);
  remove_tail(tensor, 0);
  EXPECT_TRUE(std::get<DenseTensor>(tensor).blocks.empty());
}

TEST(Tensor, CountsBytesUsedAndAllocated) {
  std::mt19937 random(10);
  Tensor tensor = DenseTensor{Dtype::kF16, {}};
  append(tensor, kShape, 0, test::random_rows(random, 10, kShape));
  const ByteCount dense = byte_count(tensor, kShape, 10);
  EXPECT_EQ(dense.used, 10u * 2 * 64 * 2);
  EXPECT_EQ(dense.allocated, 256u * 2 * 64 * 2);
  Tensor turbo = turbo_tensor(4);
  append(turbo, kShape, 0, test::random_rows(random, 256, kShape));
  ASSERT_TRUE(pack_full_tail(turbo, 256, 1));
  const ByteCount packed = byte_count(turbo, kShape, 256);
  EXPECT_EQ(packed.used, 2u * 256 * (32 + 2));
  EXPECT_EQ(packed.allocated, packed.used);
}

// Codes of all heads, scales of all heads, sink tokens of all heads: what a file has too.
TEST(Tensor, PacksCodesThenScalesThenSinkTokens) {
  std::mt19937 random(11);
  TensorPlan plan = test::plan_of_bits(4, Centering::kNone);
  plan.n_sinks = 3;
  Tensor tensor = tensor_of(plan, Dtype::kF16);
  append(tensor, kShape, 0, test::random_rows(random, 256, kShape));
  const AlignedBytes dense = dense_block(tensor, 0);
  ASSERT_TRUE(pack_full_tail(tensor, 256, 1));
  const auto& packed = std::get<TurboTensor>(tensor);
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

TEST(Tensor, TakesTheMeanAndOutlierChannelsOnce) {
  std::mt19937 random(12);
  TensorPlan plan;
  plan.codec.mode = codec::Mode::kMixed;
  plan.codec.outlier_bits = 5;
  TurboTensor tensor = tensor_of(plan, Dtype::kF16);
  EXPECT_FALSE(tensor.codec.state().mean.is_fixed());
  EXPECT_FALSE(tensor.codec.state().outliers.is_fixed());
  Tensor first = DenseTensor{Dtype::kF16, {}}, second = DenseTensor{Dtype::kF16, {}};
  append(first, kShape, 0, test::random_rows(random, 256, kShape));
  append(second, kShape, 0, test::random_rows(random, 256, kShape));
  tensor.codec.fit(test::full_blocks(first, kShape, 1), 1);
  const Mean mean = tensor.codec.state().mean;
  const Outliers outliers = tensor.codec.state().outliers;
  EXPECT_TRUE(mean.is_fixed() && outliers.is_fixed());
  tensor.codec.fit(test::full_blocks(second, kShape, 1), 1);
  EXPECT_TRUE(tensor.codec.state().mean == mean);
  EXPECT_EQ(tensor.codec.state().outliers, outliers);
}

// A block that is refused leaves the tensor as it was, so that it can be tried again.
TEST(Tensor, IsNotFixedByABlockThatIsRefused) {
  std::mt19937 random(13);
  TensorPlan plan;
  plan.codec.mode = codec::Mode::kMixed;
  plan.codec.outlier_bits = 5;
  Tensor tensor = tensor_of(plan, Dtype::kF32);
  std::vector<float> rows = test::random_rows(random, 256, kShape);
  rows[100] = std::numeric_limits<float>::infinity();
  append(tensor, kShape, 0, rows);
  ASSERT_FALSE(pack_full_tail(tensor, 256, 1));
  EXPECT_FALSE(std::get<TurboTensor>(tensor).codec.state().mean.is_fixed());
  EXPECT_FALSE(std::get<TurboTensor>(tensor).codec.state().outliers.is_fixed());
}

}  // namespace tensor_test
}  // namespace tqcache::cache
