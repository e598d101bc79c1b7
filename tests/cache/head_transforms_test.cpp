// Maps of kv heads (docs/reference/codec.md §10).

#include "tqcache/cache/head_transforms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/cache_builder.h"
#include "support/matchers.h"
#include "tqcache/base/half.h"
#include "tqcache/cache/kv_codec_state.h"

namespace tqcache::test {
namespace head_maps_test {

using cache::Centering;
using cache::HeadTransforms;

constexpr cache::HeadShape kShape = {2, 32};
constexpr std::size_t kDim = 32;

// Vectors that fill a few directions before RoPE, and then get it: [n_kv_heads, 256, head_dim] f16.
AlignedBytes narrow_block(const cache::Rope& rope, std::int64_t block) {
  Random random(static_cast<std::uint64_t>(77 + block));
  AlignedBytes bytes(2 * 256 * kDim * sizeof(std::uint16_t));
  std::vector<float> x(kDim);
  for (std::size_t row = 0; row < 512; ++row) {
    for (float& value : x) value = 0.02f * random.bell();
    for (std::size_t k = 0; k < 3; ++k) {
      const float share = random.bell();
      for (std::size_t i = 0; i < kDim; ++i) {
        x[i] += share * std::sin(static_cast<float>((k + 1) * (i + 2 * (row / 256) + 3)));
      }
    }
    cache::rotate(rope, block * 256 + static_cast<std::int64_t>(row % 256), x);
    store_f32(Dtype::kF16, x, bytes.data() + row * kDim * sizeof(std::uint16_t));
  }
  return bytes;
}

const cache::Rope kRope = {cache::RopeStyle::kHalfSplit, 32, 1e4};

cache::KvCodec mapped_codec(Centering kind, float step = 0.3f) {
  cache::TensorPlan plan;
  plan.codec = {.mode = codec::Mode::kTrellis, .step = step};
  plan.center = kind;
  plan.fit_transforms = true;
  return must(cache::make_codec(plan, codec::BlockOrder::kKeys, kShape, Dtype::kF16, kRope));
}

TEST(HeadTransforms, AreOrthogonal) {
  cache::KvCodec codec = mapped_codec(Centering::kPreRope);
  const AlignedBytes values = narrow_block(kRope, 0);
  const cache::FullBlock block{kShape, Dtype::kF16, 0, values};
  codec.fit(std::span(&block, 1), 2);
  const HeadTransforms& transforms = codec.state().transforms;
  ASSERT_TRUE(transforms.is_there());
  const auto rows = transforms.rows_of(kShape, 1);
  for (std::size_t i = 0; i < kDim; ++i) {
    for (std::size_t j = 0; j < kDim; ++j) {
      double product = 0;
      for (std::size_t k = 0; k < kDim; ++k) {
        product +=
            static_cast<double>(rows[i * kDim + k]) * static_cast<double>(rows[j * kDim + k]);
      }
      EXPECT_NEAR(product, i == j ? 1 : 0, 1e-6);
      EXPECT_EQ(transforms.columns_of(kShape, 1)[j * kDim + i], rows[i * kDim + j]);
    }
  }
}

TEST(HeadTransforms, AreTheSameForAnyNumberOfThreads) {
  const AlignedBytes values = narrow_block(kRope, 0);
  const cache::FullBlock block{kShape, Dtype::kF16, 0, values};
  const cache::Mean none;
  EXPECT_EQ(cache::fit_head_transforms(std::span(&block, 1), 0, none, 1),
            cache::fit_head_transforms(std::span(&block, 1), 0, none, 3));
}

// |x - x^|^2 / |x|^2 of a block, after its mean.
double error_of(const cache::KvCodec& codec, const AlignedBytes& values, std::int64_t index) {
  const cache::FullBlock block{kShape, Dtype::kF16, index, values};
  const SharedBytes packed = must(codec.encode(block, 1));
  double error = 0;
  double energy = 0;
  std::vector<float> x(256 * kDim), decoded(256 * kDim);
  for (std::int64_t head = 0; head < 2; ++head) {
    load_f32(Dtype::kF16, block.head(head).data(), x);
    codec.decode(packed.view(), index, head, decoded);
    for (std::size_t i = 0; i < x.size(); ++i) {
      error += std::pow(static_cast<double>(x[i] - decoded[i]), 2);
      energy += std::pow(static_cast<double>(x[i]), 2);
    }
  }
  return error / energy;
}

TEST(HeadTransforms, AreUndoneWhenDecoded) {
  for (const Centering kind : {Centering::kPreRope, Centering::kPostRope, Centering::kNone}) {
    cache::KvCodec codec = mapped_codec(kind, 0.2f);
    const AlignedBytes first = narrow_block(kRope, 0);
    const cache::FullBlock block{kShape, Dtype::kF16, 0, first};
    codec.fit(std::span(&block, 1), 2);
    EXPECT_LT(error_of(codec, first, 0), 0.0130);
    EXPECT_LT(error_of(codec, narrow_block(kRope, 5), 5), 0.0130);
  }
}

// Bits of the symbols of a block, each component with a table of its own.
double entropy_of(const cache::KvCodec& codec, const AlignedBytes& values) {
  const cache::FullBlock block{kShape, Dtype::kF16, 0, values};
  const SharedBytes packed = must(codec.encode(block, 1));
  std::vector<std::uint8_t> codes(256 * kDim);
  codec::unpack_block({kDim, 8, codec::BlockOrder::kKeys},
                      packed.view().first(codec.layout(0).code_bytes), codes);
  double bits = 0;
  for (std::size_t i = 0; i < kDim; ++i) {
    std::vector<int> counts(128);
    for (std::size_t t = 0; t < 256; ++t) ++counts[codes[t * kDim + i] / 2];
    for (const int n : counts) {
      if (n > 0) bits -= n * std::log2(n / 256.0);
    }
  }
  return bits / (256 * kDim);
}

TEST(HeadTransforms, SaveBitsBeforeRope) {
  const AlignedBytes values = narrow_block(kRope, 0);
  const cache::FullBlock block{kShape, Dtype::kF16, 0, values};
  const auto bits_of = [&](bool is_mapped) {
    cache::TensorPlan plan;
    plan.codec = {.mode = codec::Mode::kTrellis, .step = 0.3f};
    plan.fit_transforms = is_mapped;
    cache::KvCodec codec =
        must(cache::make_codec(plan, codec::BlockOrder::kKeys, kShape, Dtype::kF16, kRope));
    codec.fit(std::span(&block, 1), 1);
    return entropy_of(codec, values);
  };
  EXPECT_LT(bits_of(true), bits_of(false) - 1);
}

TEST(HeadTransforms, LeaveKeysDecodedThatCannotBeScored) {
  cache::TensorPlan plan;
  plan.codec = {.mode = codec::Mode::kTrellis, .step = 0.3f};
  plan.fit_transforms = true;
  plan.n_sinks = 3;
  const cache::Cache cache =
      CacheBuilder(520).tensors({2, 64}, Dtype::kF16, plan, Dtype::kBF16, plan).build();
  const auto& layer = std::get<0>(cache.layers[0]);
  const auto& k = std::get<cache::TurboTensor>(layer.k);
  const auto& v = std::get<cache::TurboTensor>(layer.v);
  EXPECT_TRUE(k.codec.must_keep_decoded());
  EXPECT_FALSE(v.codec.must_keep_decoded());
  ASSERT_EQ(k.packed.size(), 2u);
  for (const cache::TurboBlock& block : k.packed) {
    EXPECT_EQ(block.decoded.size(), 2u * 256 * 64 * 2);
  }
  for (const cache::TurboBlock& block : v.packed) EXPECT_TRUE(block.decoded.empty());
  const ByteView sinks = k.codec.sink_rows(k.packed[0].bytes.view(), 1);
  EXPECT_TRUE(
      std::ranges::equal(sinks, ByteView(k.packed[0].decoded).subspan(256 * 64 * 2, sinks.size())));
}

TEST(HeadTransforms, RefuseRowsThatDependOnEachOther) {
  std::vector<std::int8_t> entries(2 * kDim * kDim);
  for (std::size_t head = 0; head < 2; ++head) {
    for (std::size_t i = 0; i < kDim; ++i) entries[head * kDim * kDim + i * kDim + i] = 64;
  }
  EXPECT_TRUE(cache::make_head_transforms(kShape, entries).ok());
  std::fill_n(entries.begin() + kDim * kDim + 5 * kDim, kDim, std::int8_t{0});
  entries[kDim * kDim + 5 * kDim + 4] = 64;
  EXPECT_THAT(cache::make_head_transforms(kShape, entries),
              test::FailsWith(ErrorCode::kCorrupt, "map of head 1: its rows depend on each other"));
}

TEST(HeadTransforms, RefuseAnotherNumberOfEntries) {
  EXPECT_THAT(cache::make_head_transforms(kShape, std::vector<std::int8_t>(7)),
              test::FailsWith(ErrorCode::kCorrupt, "maps of 7 entries where 2048 belong"));
}

}  // namespace head_maps_test
}  // namespace tqcache::test
