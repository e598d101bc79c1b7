#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "cache/random_cache.h"
#include "support/matchers.h"
#include "tqcache/cache.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {
namespace convert_test {

using test::attention;
using test::centered;
using test::options_of_bits;
using test::packed_bytes;
using test::random_cache;
using test::values_of;
using testing::HasSubstr;

constexpr HeadShape kShape{2, 64};

TEST(Convert, PacksFullBlocksAndLeavesTheRestDense) {
  const Cache dense = random_cache(1, 600);
  const Cache turbo = convert(dense, {}).value();
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& tensor = std::get<TurboTensor>(attention(turbo, i).k);
    EXPECT_EQ(tensor.packed.size(), 2u);
    ASSERT_EQ(tensor.tail.blocks.size(), 1u);
    EXPECT_EQ(tensor.tail.blocks[0], dense_block(attention(dense, i).k, 2));
  }
  EXPECT_EQ(turbo.tokens, dense.tokens);
}

TEST(Convert, PacksAFullLastBlockAtOnce) {
  const Cache turbo = convert(random_cache(1, 512), {}).value();
  EXPECT_EQ(packed_block_count(attention(turbo, 0).k), 2);
  EXPECT_TRUE(std::get<TurboTensor>(attention(turbo, 0).k).tail.blocks.empty());
}

// What was packed while decoding and what is packed afterwards must be the same bytes. (But for the
// mean: what is converted as a whole has that of all its tokens.)
TEST(Convert, EqualsPackingWhileAppending) {
  const ConvertOptions options = options_of_bits(3, 2, Centering::kNone);
  const Cache late = convert(random_cache(5, 513), options).value();
  Cache early = convert(random_cache(5, 0), options).value();
  std::mt19937 random(5);
  test::append_tokens(early, random, 513);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& a = std::get<TurboTensor>(attention(late, i).k);
    const auto& b = std::get<TurboTensor>(attention(early, i).k);
    ASSERT_EQ(a.packed.size(), 2u);
    ASSERT_EQ(b.packed.size(), 2u);
    EXPECT_EQ(packed_bytes(a, 1), packed_bytes(b, 1));
    EXPECT_EQ(a.tail.blocks, b.tail.blocks);
  }
}

TEST(Convert, KeepsATensorDenseThatIsPlannedSo) {
  const Cache cache = convert(random_cache(1, 300), options_of_bits(16, 4)).value();
  EXPECT_TRUE(std::holds_alternative<DenseTensor>(attention(cache, 0).k));
  EXPECT_TRUE(std::holds_alternative<TurboTensor>(attention(cache, 0).v));
}

TEST(Convert, ErrorFallsWithBits) {
  const Cache dense = random_cache(2, 256, Dtype::kF32);
  double last = 1;
  for (int bits = 1; bits <= 8; ++bits) {
    const Cache turbo = convert(dense, options_of_bits(bits, 16)).value();
    const auto a = values_of(attention(dense, 0).k, kShape, 256);
    const auto b = values_of(attention(turbo, 0).k, kShape, 256);
    double error = 0, energy = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      error += (a[i] - b[i]) * (a[i] - b[i]);
      energy += a[i] * a[i];
    }
    // The unbiased scale turns the codebook's error D into D / (1 - D), 0.57 at one bit.
    EXPECT_LT(error / energy, bits == 1 ? 0.6 : last / 2.2) << bits;
    last = error / energy;
  }
  EXPECT_LT(last, 1e-4);
}

TEST(Convert, RefusesBitsOutOfRange) {
  for (const int bits : {-1, 0, 9, 15, 17}) {
    for (const ConvertOptions& options : {options_of_bits(bits, 4), options_of_bits(4, bits)}) {
      const auto converted = convert(random_cache(1, 10), options);
      ASSERT_FALSE(converted);
      EXPECT_EQ(converted.error().code, ErrorCode::kInvalidArgument);
    }
  }
}

TEST(Convert, RefusesToPackAgainInAnotherForm) {
  const Cache turbo = convert(random_cache(1, 300), {}).value();
  ConvertOptions with_sinks, prod, other_seed;
  with_sinks.keys.n_sinks = 4;
  prod.keys.codec.mode = codec::Mode::kProd;
  other_seed.keys.codec.seed = 1;
  for (const ConvertOptions& options :
       {options_of_bits(3, 4), options_of_bits(16, 4), with_sinks, prod, other_seed}) {
    EXPECT_THAT(convert(turbo, options),
                test::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("layer 0 k")));
  }
}

TEST(Convert, RefusesToPackAgainWithOtherCentering) {
  const Cache turbo = convert(random_cache(1, 300), centered(Centering::kNone)).value();
  EXPECT_THAT(
      convert(turbo, {}),
      test::FailsWith(
          ErrorCode::kInvalidArgument,
          HasSubstr("layer 0 k: is packed already, in mode mse with 4 bits, no centering")));
}

TEST(Convert, AgainWithTheSameBitsChangesNothingButAFullTail) {
  Cache turbo = convert(random_cache(1, 0), {}).value();
  std::mt19937 random(1);
  test::append_tokens(turbo, random, 512);
  EXPECT_EQ(packed_block_count(attention(turbo, 0).k), 1);
  const auto first = packed_bytes(std::get<TurboTensor>(attention(turbo, 0).k), 0);
  const Cache again = convert(std::move(turbo), {}).value();
  EXPECT_EQ(packed_block_count(attention(again, 0).k), 2);
  EXPECT_EQ(packed_bytes(std::get<TurboTensor>(attention(again, 0).k), 0), first);
  EXPECT_TRUE(validate(again));
}

TEST(Convert, NamesThePlaceOfAValueThatIsNotFinite) {
  Cache cache = random_cache(1, 520, Dtype::kF32);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  auto& block = std::get<DenseTensor>(attention(cache, 1).v).blocks[1];
  std::memcpy(block.data() + (256 + 7) * 64 * sizeof nan, &nan, sizeof nan);
  EXPECT_THAT(
      convert(std::move(cache), {.n_threads = 2}),
      test::FailsWith(ErrorCode::kCorrupt, HasSubstr("layer 1 v: token block 1: head 1 token 7")));
}

TEST(Convert, NamesThePlaceOfASinkTokenThatIsNotFinite) {
  Cache cache = random_cache(1, 300, Dtype::kF32);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  auto& block = std::get<DenseTensor>(attention(cache, 1).k).blocks[0];
  std::memcpy(block.data() + ((256 + 2) * 64 + 5) * sizeof nan, &nan, sizeof nan);
  ConvertOptions options;
  options.keys.n_sinks = 3;
  EXPECT_THAT(convert(std::move(cache), options),
              test::FailsWith(
                  ErrorCode::kCorrupt,
                  HasSubstr("layer 1 k: token block 0: head 1 token 2: component 5: not finite")));
}

TEST(Convert, RefusesAHeadDimBeyondTheCodec) {
  EXPECT_THAT(convert(random_cache(1, 256, Dtype::kF16, {1, 24}), {}),
              test::FailsWith(ErrorCode::kUnsupported, HasSubstr("layer 0 k")));
}

TEST(Convert, LeavesStateLayersAlone) {
  Cache cache = random_cache(1, 256);
  cache.layers.emplace_back(
      StateLayer{{NamedArray{"state", Dtype::kF32, {6}, AlignedBytes(24, std::byte{7})}}});
  const Cache converted = convert(cache, {}).value();
  EXPECT_EQ(std::get<StateLayer>(converted.layers[2]).arrays[0].data,
            std::get<StateLayer>(cache.layers[2]).arrays[0].data);
}

TEST(Convert, LeavesRotatingLayersAndHiddenTokensAlone) {
  Cache cache = random_cache(1, 300);
  cache.layers.emplace_back(test::rotating_layer({{2, 64}, 300, 4}, 300));
  hide_tokens(cache);
  const Cache converted = convert(cache, {}).value();
  ASSERT_TRUE(validate(converted));
  const auto& before = std::get<WindowLayer>(cache.layers[2]);
  const auto& after = std::get<WindowLayer>(converted.layers[2]);
  EXPECT_EQ(after.window, before.window);
  EXPECT_EQ(gather_window(after, after.attention.k, 300),
            gather_window(before, before.attention.k, 300));
  EXPECT_EQ(gather_window(after, after.attention.v, 300),
            gather_window(before, before.attention.v, 300));
  EXPECT_EQ(converted.hidden_tokens, cache.hidden_tokens);
}

TEST(Convert, ReportsProgressUpToTheTotal) {
  std::uint64_t last = 0, total = 0;
  const Cache cache = random_cache(1, 600);
  ASSERT_TRUE(convert(cache, {}, [&](std::uint64_t done, std::uint64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
    return true;
  }));
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, total_raw_bytes(reader_of(cache)->blocks()));
}

TEST(Convert, ReportsProgressForEveryBlock) {
  std::vector<std::uint64_t> reports;
  const auto note = [&](std::uint64_t done, std::uint64_t) {
    reports.push_back(done);
    return true;
  };
  ASSERT_TRUE(convert(random_cache(1, 20 * 256, Dtype::kF16, {1, 32}, 1), {}, note));
  std::vector<std::uint64_t> expected;
  for (std::uint64_t i = 1; i <= 2 * 20; ++i) expected.push_back(i * 256 * 32 * 2);
  EXPECT_EQ(reports, expected);
}

TEST(Convert, StopsWhenAsked) {
  const auto converted = convert(random_cache(1, 600), {}, [](auto, auto) { return false; });
  ASSERT_FALSE(converted);
  EXPECT_EQ(converted.error().code, ErrorCode::kInterrupted);
}

}  // namespace convert_test
}  // namespace tqcache::cache
