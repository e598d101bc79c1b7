// Sliding windows that are packed, in memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "cache/random_cache.h"
#include "support/cache_builder.h"
#include "support/matchers.h"
#include "tqcache/cache.h"
#include "tqcache/cache/window.h"

namespace tqcache::cache {
namespace turbo_windows_test {

using test::CacheBuilder;
using test::must;
using test::turbo_window;
using testing::HasSubstr;

constexpr HeadShape kShape = {2, 32};

ConvertOptions packing(WindowMode windows, int bits = 4) {
  ConvertOptions options = test::options_of_bits(bits, bits);
  options.windows = windows;
  return options;
}

// A dense window of finite values, and full attention.
Cache dense_cache(std::int64_t n_tokens, std::int64_t size, std::int64_t keep = 0) {
  Cache cache = CacheBuilder(n_tokens).rotating({kShape, size, keep}).dense(kShape).build();
  test::Random random(5);
  test::make_finite(std::get<WindowLayer>(cache.layers[0]), n_tokens,
                    [&] { return random.bell(); });
  return cache;
}

const TurboTensor& keys_of(const Cache& cache) {
  return std::get<TurboTensor>(attention_of(cache.layers[0])->k);
}

TEST(TurboWindows, AreMadeOnDemandOnly) {
  const Cache kept = must(convert(dense_cache(600, 300), packing(WindowMode::kAsTheyAre)));
  EXPECT_FALSE(is_quantized(*attention_of(kept.layers[0])));
  const Cache turbo = must(convert(dense_cache(600, 300), packing(WindowMode::kTurbo)));
  EXPECT_TRUE(is_quantized(*attention_of(turbo.layers[0])));
  must(validate(turbo));
}

TEST(TurboWindows, ThatKeepFirstTokensStayDense) {
  const Cache cache = must(convert(dense_cache(600, 300, 4), packing(WindowMode::kTurbo)));
  EXPECT_FALSE(is_quantized(*attention_of(cache.layers[0])));
}

TEST(TurboWindows, StayTurboWhenTheOthersArePacked) {
  Cache cache = must(convert(dense_cache(600, 300), packing(WindowMode::kTurbo)));
  for (const WindowMode windows : {WindowMode::kAsTheyAre, WindowMode::kTurbo}) {
    const Cache again = must(convert(cache, packing(windows)));
    EXPECT_EQ(test::difference(again, cache), "");
  }
  EXPECT_THAT(
      convert(cache, packing(WindowMode::kTurboCentered)),
      test::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("layer 0 k: is packed already")));
}

TEST(TurboWindows, HaveKeysCenteredOnDemandAndValuesAlways) {
  const Cache plain = must(convert(dense_cache(600, 300), packing(WindowMode::kTurbo)));
  EXPECT_EQ(keys_of(plain).codec.centering(), Centering::kNone);
  EXPECT_EQ(std::get<TurboTensor>(attention_of(plain.layers[0])->v).codec.centering(),
            Centering::kPostRope);
  const Cache centered = must(convert(dense_cache(600, 300), packing(WindowMode::kTurboCentered)));
  EXPECT_EQ(keys_of(centered).codec.centering(),
            Centering::kPostRope);  // RoPE over 64 components does not fit 32
}

TEST(TurboWindows, HaveNeitherSinkTokensNorMaps) {
  ConvertOptions options = packing(WindowMode::kTurbo);
  options.keys.n_sinks = 4;
  options.keys.codec = {.mode = codec::Mode::kTrellis, .step = 0.3f};
  options.keys.fit_transforms = true;
  const Cache cache = must(convert(dense_cache(600, 300), options));
  EXPECT_EQ(keys_of(cache).codec.n_sinks(), 0);
  EXPECT_FALSE(keys_of(cache).codec.state().transforms.is_there());
  const auto& full = std::get<TurboTensor>(std::get<AttentionLayer>(cache.layers[1]).k);
  EXPECT_EQ(full.codec.n_sinks(), 4);
  EXPECT_TRUE(full.codec.state().transforms.is_there());
}

TEST(TurboWindows, CountAsBoundaryLayersWhenTheyArePacked) {
  ConvertOptions options = packing(WindowMode::kTurbo, 2);
  options.boundary = {1, 6};
  const auto bits_of = [](const Tensor& tensor) {
    return std::get<TurboTensor>(tensor).codec.parts()[0].bits;
  };
  Cache cache = dense_cache(300, 300);
  cache.layers.push_back(cache.layers[1]);
  cache.layers.push_back(cache.layers[1]);
  Cache turbo = must(convert(cache, options));
  EXPECT_EQ(bits_of(attention_of(turbo.layers[0])->k), 6);
  EXPECT_EQ(bits_of(attention_of(turbo.layers[1])->k), 2);
  EXPECT_EQ(bits_of(attention_of(turbo.layers[3])->k), 6);
  options.windows = WindowMode::kAsTheyAre;
  turbo = must(convert(cache, options));
  EXPECT_EQ(bits_of(attention_of(turbo.layers[1])->k), 6);
}

// Whatever of its first block the window has left counts for nothing, so that the state does not
// tell where it came from.
TEST(TurboWindows, DoNotLookAtWhatTheWindowHasLeft) {
  for (const std::int64_t n_tokens : {300, 520, 600, 768}) {
    for (const std::int64_t size : {40, 100, 300, 2000}) {
      Cache cache = dense_cache(n_tokens, size);
      const Cache expected = must(convert(cache, packing(WindowMode::kTurbo)));
      auto& layer = std::get<WindowLayer>(cache.layers[0]);
      const std::int64_t begin = window_begin(layer.window, n_tokens);
      const std::int64_t block = begin / kTokenBlock;
      for (Tensor* tensor : {&layer.attention.k, &layer.attention.v}) {
        AlignedBytes& first =
            std::get<DenseTensor>(*tensor).blocks[static_cast<std::size_t>(block)];
        const auto row = static_cast<std::size_t>(kShape.head_dim) * 2;
        for (std::size_t head = 0; head < 2; ++head) {
          const auto left = static_cast<std::size_t>(begin % kTokenBlock) * row;
          std::ranges::fill(std::span(first).subspan(head * kTokenBlock * row, left),
                            std::byte{0x55});
        }
      }
      const Cache other = must(convert(std::move(cache), packing(WindowMode::kTurbo)));
      const auto& a = keys_of(expected);
      const auto& b = keys_of(other);
      EXPECT_TRUE(a.codec.state().mean == b.codec.state().mean);
      ASSERT_EQ(a.packed.size(), b.packed.size());
      for (std::size_t i = 0; i < a.packed.size(); ++i) {
        EXPECT_EQ(test::packed_bytes(a, i), test::packed_bytes(b, i)) << n_tokens << " " << size;
      }
    }
  }
}

TEST(TurboWindows, TakeTheMeanFromWholeBlocksIfThereAreAny) {
  EXPECT_EQ(fit_blocks(Fit::kPrompt, 1000, 100), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(fit_blocks(Fit::kFirstBlock, 1000, 100), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(fit_blocks(Fit::kPrompt, 1000, 256), (std::vector<std::int64_t>{1, 2}));
  for (const Fit fit : {Fit::kFirstBlock, Fit::kPrompt}) {
    EXPECT_EQ(fit_blocks(fit, 700, 300), (std::vector<std::int64_t>{1}));  // none is whole
    EXPECT_TRUE(fit_blocks(fit, 700, 600).empty());
    EXPECT_EQ(fit_blocks(fit, 256 * 101, 256 + 7).front(), 2);
  }
  EXPECT_EQ(fit_blocks(Fit::kPrompt, 256 * 101, 256 + 7).size(), 32u);
}

// Growing token by token, and going back to arrays.
TEST(TurboWindows, HoldTheNewestTokens) {
  std::mt19937 random(3);
  Cache cache = must(convert(CacheBuilder(0)
                                 .rotating({kShape, 300, 0}, Dtype::kF32, Dtype::kF32)
                                 .dense(kShape, Dtype::kF32)
                                 .build(),
                             packing(WindowMode::kTurbo, 8)));
  WindowLayer& layer = *turbo_window(cache.layers[0]);
  for (const std::int64_t n_tokens : {1, 255, 256, 257, 300, 301, 556, 557, 812, 900}) {
    test::append_tokens(cache, random, n_tokens - cache.n_tokens());
    must(validate(cache));
    const auto& keys = std::get<TurboTensor>(layer.attention.k);
    const auto first = static_cast<std::size_t>(first_window_block(layer.window, n_tokens));
    for (std::size_t i = 0; i < keys.packed.size(); ++i) {
      EXPECT_EQ(keys.packed[i].bytes.size() == 0, i < first) << n_tokens << " block " << i;
    }
    EXPECT_EQ(gather_window(layer, layer.attention.k, n_tokens).size(),
              static_cast<std::size_t>(window_tokens(layer.window, n_tokens)) * 2 * 32 * 4);
  }
  EXPECT_EQ(check_truncate(describe(cache), 800).error().code, ErrorCode::kUnsupported);
}

TEST(TurboWindows, DecodeToWhatTheyWerePackedFrom) {
  const Cache dense = dense_cache(600, 300);
  Cache turbo = must(convert(dense, packing(WindowMode::kTurbo, 8)));
  const CacheDifference packed = must(diff(dense, turbo, 1));
  ASSERT_EQ(packed.layers.size(), 2u);  // the window is compared value by value
  EXPECT_TRUE(packed.arrays_equal);
  EXPECT_EQ(packed.layers[0].k.n_values, 2u * 300 * 32);
  EXPECT_GT(packed.layers[0].k.relative_mse, 0);
  EXPECT_LT(packed.layers[0].k.relative_mse, 1e-4);
  EXPECT_LT(packed.layers[0].v.relative_mse, 1e-4);
  test::make_dense(std::get<WindowLayer>(turbo.layers[0]), 600);
  must(validate(turbo));
  const CacheDifference closed = must(diff(dense, turbo, 1));
  EXPECT_EQ(closed.layers.size(), 1u);
  EXPECT_FALSE(closed.arrays_equal);
}

TEST(TurboWindows, OfOtherTokensHaveNothingToCompare) {
  const Cache longer = must(convert(dense_cache(600, 300), packing(WindowMode::kTurbo)));
  Cache shorter = must(convert(dense_cache(500, 300), packing(WindowMode::kTurbo)));
  shorter.tokens = {longer.tokens.begin(), longer.tokens.begin() + 500};
  const CacheDifference difference = must(diff(longer, shorter, 1));
  EXPECT_EQ(difference.layers.size(), 1u);
  EXPECT_FALSE(difference.arrays_equal);
}

TEST(TurboWindows, CountTheirBytes) {
  const Cache cache = must(convert(CacheBuilder(600).rotating({kShape, 2000, 0}).build(),
                                   packing(WindowMode::kAsTheyAre)));
  EXPECT_EQ(byte_count(cache).used, 2u * 600 * 2 * 32 * 2);
  Cache finite = dense_cache(600, 300);
  finite.layers.pop_back();
  const Cache turbo = must(convert(std::move(finite), packing(WindowMode::kTurbo)));
  const TurboTensor& keys = keys_of(turbo);
  const std::size_t block = keys.codec.packed_bytes(1);
  const std::size_t mean = 2 * 32 * sizeof(float);  // of values
  EXPECT_EQ(byte_count(turbo).used, 2 * (block + 88 * 2 * 32 * 2) + mean);
  EXPECT_EQ(byte_count(turbo).allocated, 2 * (block + 256 * 2 * 32 * 2) + mean);
}

TEST(TurboWindows, AreValidated) {
  const auto error_of = [](const std::function<void(WindowLayer&)>& change) {
    Cache cache = must(convert(dense_cache(600, 300), packing(WindowMode::kTurbo)));
    change(std::get<WindowLayer>(cache.layers[0]));
    const auto checked = validate(cache);
    EXPECT_FALSE(checked.ok());
    EXPECT_EQ(checked.error().code, ErrorCode::kCorrupt);
    return checked.ok() ? std::string() : checked.error().message;
  };
  const auto keys = [](WindowLayer& layer) -> TurboTensor& {
    return std::get<TurboTensor>(layer.attention.k);
  };
  EXPECT_THAT(error_of([&](auto& layer) {
                test::edit_codec(keys(layer).codec, [](auto& state) { state.n_sinks = 1; });
              }),
              HasSubstr("layer 0: k: sink tokens in a window"));
  EXPECT_THAT(error_of([&](auto& layer) { keys(layer).packed[1] = {}; }),
              HasSubstr("k: a packed token block of the wrong size"));
  EXPECT_THAT(error_of([&](auto& layer) { keys(layer).packed.pop_back(); }),
              HasSubstr("k: a token block before the last is not packed"));
  EXPECT_THAT(error_of([&](auto& layer) { keys(layer).tail.blocks.clear(); }),
              HasSubstr("0 dense token blocks where 1 belong"));
  EXPECT_THAT(error_of([&](auto& layer) {
                test::edit_codec(std::get<TurboTensor>(layer.attention.v).codec,
                                 [](auto& state) { state.mean.values.clear(); });
              }),
              HasSubstr("v: packed, but without its mean"));
  EXPECT_THAT(error_of([&](auto& layer) { layer.window.keep = 1; }),
              HasSubstr("quantized, in a window that keeps first tokens"));
}

// A mean that nothing is packed with any more, and one that was never fixed.
TEST(TurboWindows, NeedNoMeanForBlocksThatTheyHaveLeft) {
  Cache cache = must(convert(dense_cache(600, 50), packing(WindowMode::kTurbo)));
  const auto& values = std::get<TurboTensor>(attention_of(cache.layers[0])->v);
  EXPECT_EQ(values.packed.size(), 2u);
  EXPECT_FALSE(values.codec.is_fixed());
  must(validate(cache));
  std::mt19937 random(3);
  test::append_tokens(cache, random, 200);
  must(validate(cache));
  EXPECT_TRUE(values.codec.is_fixed());
}

}  // namespace turbo_windows_test
}  // namespace tqcache::cache
