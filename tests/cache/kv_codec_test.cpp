#include "tqcache/kv_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cache/random_cache.h"
#include "support/matchers.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {
namespace kv_codec_test {

using test::attention;
using test::must;
using testing::HasSubstr;

constexpr HeadShape kShape{2, 64};
const Rope kRope{RopeStyle::kHalfSplit, 64, 1e4};

Cache dense_cache(std::int64_t n_tokens, Dtype dtype = Dtype::kF16) {
  Cache cache = test::random_cache(5, n_tokens, dtype, kShape, 1);
  cache.identity.rope = kRope;
  return cache;
}

TensorPlan plan_of(codec::Mode mode) {
  TensorPlan plan;
  plan.codec = {.mode = mode, .bits = 3, .outlier_bits = 5, .step = 0.3f};
  plan.n_sinks = 7;
  plan.fit_transforms = mode == codec::Mode::kTrellis;
  return plan;
}

constexpr codec::Mode kModes[] = {codec::Mode::kMse, codec::Mode::kProd, codec::Mode::kMixed,
                                  codec::Mode::kAffine, codec::Mode::kTrellis};
constexpr codec::BlockOrder kOrders[] = {codec::BlockOrder::kKeys, codec::BlockOrder::kValues};

KvCodec fitted(codec::Mode mode, codec::BlockOrder order, const Cache& cache) {
  KvCodec codec = must(make_codec(plan_of(mode), order, kShape, Dtype::kF16, kRope));
  codec.fit(test::full_blocks(attention(cache, 0).k, kShape, 2), 1);
  return codec;
}

TEST(KvCodec, IsMadeAgainFromItsDescription) {
  const Cache cache = dense_cache(512);
  for (const codec::Mode mode : kModes) {
    for (const codec::BlockOrder order : kOrders) {
      SCOPED_TRACE(codec::mode_word(mode));
      const KvCodec codec = fitted(mode, order, cache);
      ASSERT_TRUE(codec.is_fixed());
      const KvCodec again = must(KvCodec::make(codec.describe(), kShape, order, kRope));
      EXPECT_TRUE(again.is_fixed());
      EXPECT_EQ(again.mode(), mode);
      EXPECT_EQ(again.n_sinks(), 7);
      EXPECT_EQ(again.centering(), codec.centering());
      EXPECT_EQ(again.must_keep_decoded(), codec.must_keep_decoded());
      EXPECT_EQ(again.bytes(), codec.bytes());
      for (const std::int64_t index : {0, 1}) {
        const FullBlock block = test::full_block(attention(cache, 0).k, kShape, index);
        const SharedBytes a = must(codec.encode(block, 1)), b = must(again.encode(block, 2));
        EXPECT_TRUE(std::ranges::equal(a.view(), b.view()));
        EXPECT_EQ(codec.decode_block(a.view(), index, 256),
                  again.decode_block(b.view(), index, 256));
      }
    }
  }
}

TEST(KvCodec, HasTheLayoutThatItsDescriptionGives) {
  const Cache cache = dense_cache(512);
  for (const codec::Mode mode : kModes) {
    for (const codec::BlockOrder order : kOrders) {
      const KvCodec codec = fitted(mode, order, cache);
      for (const std::int64_t index : {0, 1}) {
        SCOPED_TRACE(std::string(codec::mode_word(mode)) + " " + std::to_string(index));
        const codec::PackedLayout layout = packed_layout(codec.describe(), kShape, order, index);
        const std::size_t n_sinks = index == 0 ? 7 : 0;
        EXPECT_EQ(layout.n_sinks, n_sinks);
        EXPECT_EQ(layout.bytes(), codec.packed_bytes(index));
        EXPECT_EQ(layout.bytes() - layout.sinks_at(0), 2 * n_sinks * 64 * sizeof(std::uint16_t));
        EXPECT_EQ(layout.scales_at(0), 2 * layout.code_bytes);
        EXPECT_EQ(layout.sinks_at(0), layout.scales_at(2));
        EXPECT_EQ(layout.parts.size(), codec.parts().size());
        const FullBlock block = test::full_block(attention(cache, 0).k, kShape, index);
        EXPECT_EQ(must(codec.encode(block, 1)).size(), layout.bytes());
      }
    }
  }
}

TEST(KvCodec, DecodesTheFirstTokensOfABlockAsTheWholeOne) {
  const Cache cache = dense_cache(256);
  const FullBlock block = test::full_block(attention(cache, 0).k, kShape, 0);
  for (const codec::Mode mode : kModes) {
    SCOPED_TRACE(codec::mode_word(mode));
    const KvCodec codec = fitted(mode, codec::BlockOrder::kKeys, dense_cache(512));
    const SharedBytes packed = must(codec.encode(block, 1));
    const AlignedBytes whole = codec.decode_block(packed.view(), 0, 256);
    std::vector<float> values(256 * 64), of_whole(256 * 64);
    for (const std::int64_t n : {1, 6, 7, 8, 255}) {
      const AlignedBytes part = codec.decode_block(packed.view(), 0, n);
      const auto head_bytes = static_cast<std::size_t>(n) * 64 * 2;
      ASSERT_EQ(part.size(), 2 * head_bytes);
      for (const std::size_t head : {0u, 1u}) {
        EXPECT_TRUE(std::ranges::equal(ByteView(part).subspan(head * head_bytes, head_bytes),
                                       ByteView(whole).subspan(head * 256 * 64 * 2, head_bytes)));
      }
    }
    // One head in f32, rounded to f16, is the same; its sink tokens are those of the dense block.
    codec.decode(packed.view(), 0, 1, values);
    AlignedBytes rounded(256 * 64 * 2);
    store_f32(Dtype::kF16, values, rounded.data());
    EXPECT_TRUE(std::ranges::equal(rounded, ByteView(whole).subspan(256 * 64 * 2)));
    EXPECT_TRUE(std::ranges::equal(ByteView(whole).subspan(256 * 64 * 2, 7 * 64 * 2),
                                   block.head(1).first(7 * 64 * 2)));
  }
}

TEST(KvCodec, LeavesItsCopiesAloneWhenItIsFitted) {
  const Cache cache = dense_cache(512);
  KvCodec codec = must(make_codec(plan_of(codec::Mode::kMixed), codec::BlockOrder::kKeys, kShape,
                                  Dtype::kF16, kRope));
  const KvCodec before = codec;
  const std::vector<FullBlock> blocks = test::full_blocks(attention(cache, 0).k, kShape, 2);
  codec.fit(blocks, 1);
  EXPECT_TRUE(codec.is_fixed());
  EXPECT_FALSE(before.is_fixed());
  EXPECT_TRUE(before.describe().quant->mean.empty());
  EXPECT_TRUE(before.describe().quant->outliers.empty());
  EXPECT_EQ(before.parts().data(), codec.parts().data());
  const auto* const state = &codec.state();
  codec.fit(std::span(blocks).first(1), 1);
  EXPECT_EQ(&codec.state(), state);  // nothing is left to fit
}

// Rows of tokens 250 to 255 become what encode() and decode_block() make of them.
TEST(KvCodec, QuantizesRowsAsItDoesBlocks) {
  const Cache cache = dense_cache(512, Dtype::kF32);
  const Tensor& keys = attention(cache, 0).k;
  for (const codec::Mode mode : {codec::Mode::kMse, codec::Mode::kMixed, codec::Mode::kAffine}) {
    SCOPED_TRACE(codec::mode_word(mode));
    KvCodec codec =
        must(make_codec(plan_of(mode), codec::BlockOrder::kKeys, kShape, Dtype::kF32, kRope));
    codec.fit(test::full_blocks(keys, kShape, 2), 1);
    const SharedBytes packed = must(codec.encode(test::full_block(keys, kShape, 1), 1));
    constexpr std::size_t kRows = 6;
    std::vector<float> rows(kRows * 128), expected(kRows * 128), head_rows(256 * 64);
    for (const std::size_t head : {0u, 1u}) {
      const auto kv_head = static_cast<std::int64_t>(head);
      const auto put = [&](std::vector<float>& to) {
        for (std::size_t i = 0; i < kRows; ++i) {
          std::copy_n(head_rows.data() + (250 + i) * 64, 64, to.data() + i * 128 + head * 64);
        }
      };
      read_block(keys, kShape, 512, 1, kv_head, head_rows);
      put(rows);
      codec.decode(packed.view(), 1, kv_head, head_rows);
      put(expected);
    }
    must(codec.quantize_rows(256 + 250, rows));
    EXPECT_EQ(rows, expected);
  }
}

TEST(MakeCodecs, MakesOneForEachQuantizedTensor) {
  CacheDesc desc = describe(dense_cache(300));
  desc.layers.push_back(
      describe(must(convert(dense_cache(300), preset("kfv4").value()))).layers[0]);
  desc.layers.push_back(StateDesc{});
  desc.layers.push_back(
      describe(must(convert(dense_cache(300), preset("turbo4").value()))).layers[0]);
  const std::vector<LayerCodecs> codecs = must(make_codecs(desc.layers, kRope));
  ASSERT_EQ(codecs.size(), 4u);
  EXPECT_FALSE(codecs[0].k || codecs[0].v || codecs[1].k || codecs[2].k || codecs[2].v);
  ASSERT_TRUE(codecs[1].v && codecs[3].k && codecs[3].v);
  EXPECT_EQ(codecs[1].v->parts().data(), codecs[3].v->parts().data());  // one table for both
  EXPECT_EQ(codecs[3].k->order(), codec::BlockOrder::kKeys);

  std::get<AttentionDesc>(desc.layers[3]).k.quant->mean.pop_back();
  EXPECT_THAT(make_codecs(desc.layers, kRope),
              test::FailsWith(ErrorCode::kCorrupt, "layer 3 k: a mean of 127 values"));
}

}  // namespace kv_codec_test
}  // namespace tqcache::cache
