#include "tqcache/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "model/tiny_model.h"
#include "support/cache_builder.h"
#include "support/matchers.h"
#include "tqcache/base/half.h"
#include "tqcache/cache.h"
#include "tqcache/quantize.h"

namespace tqcache::model {
namespace decoder_test {

using test::must;
using testing::HasSubstr;

constexpr std::int64_t kBorders[] = {255, 256, 257, 511, 512, 513};

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

class DecoderTest : public testing::Test {
 protected:
  Decoder decoder(unsigned n_threads = 1) const {
    return Decoder(model_.config, model_.weights, n_threads);
  }

  // Decodes step by step, greedily, and gives the logits of every step.
  std::vector<std::vector<float>> go_on(cache::Cache& cache, std::span<const float> logits,
                                        int n_steps) const {
    Decoder fresh = decoder();
    std::vector<std::vector<float>> all = {{logits.begin(), logits.end()}};
    for (int i = 0; i < n_steps; ++i) {
      const auto best = std::ranges::max_element(all.back()) - all.back().begin();
      const auto next = must(fresh.decode_step(cache, static_cast<std::int32_t>(best)));
      all.emplace_back(next.begin(), next.end());
    }
    return all;
  }

  // Logits [n, vocab_size] of every token of a prompt, one decode step at a time.
  std::vector<float> logits_by_step(std::span<const std::int32_t> ids) const {
    Decoder fresh = decoder();
    cache::Cache cache = model_.make_cache(Dtype::kF32);
    std::vector<float> all;
    for (const std::int32_t id : ids) {
      const auto logits = must(fresh.decode_step(cache, id));
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }

  test::TinyModel model_;
};

TEST_F(DecoderTest, GivesEveryTokenTheLogitsOfItsDecodeStep) {
  const std::vector<std::int32_t> ids = model_.prompt(300);
  const std::vector<float> expected = logits_by_step(ids);
  cache::Cache cache = model_.make_cache(Dtype::kF32);
  std::vector<float> all;
  must(decoder().prefill_all_logits(
      cache, ids, [&](std::int64_t first, std::int64_t n, std::span<const float> logits) {
        EXPECT_EQ(to_size(first) * 100, all.size());
        EXPECT_EQ(to_size(n) * 100, logits.size());
        all.insert(all.end(), logits.begin(), logits.end());
      }));
  ASSERT_EQ(all.size(), expected.size());
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_NEAR(all[i], expected[i], 1e-4f) << i;
}

TEST_F(DecoderTest, PrefillsTheSameCacheWithAndWithoutAllLogits) {
  const std::vector<std::int32_t> ids = model_.prompt(300);
  cache::Cache a = model_.make_cache();
  cache::Cache b = model_.make_cache();
  Decoder decoder_a = decoder();
  const auto logits = must(decoder_a.prefill(a, ids));
  std::vector<float> last;
  must(decoder().prefill_all_logits(b, ids,
                                    [&](std::int64_t, std::int64_t, std::span<const float> rows) {
                                      last.assign(rows.end() - 100, rows.end());
                                    }));
  EXPECT_EQ(test::difference(a, b), "");
  EXPECT_EQ(std::vector<float>(logits.begin(), logits.end()), last);
}

TEST_F(DecoderTest, GivesTheSameBitsForAnyNumberOfThreads) {
  const std::vector<std::int32_t> ids = model_.prompt(400);
  std::optional<cache::Cache> first_cache;
  std::vector<float> first_logits;
  for (const unsigned n_threads : {1u, 2u, 3u}) {
    Decoder with_threads = decoder(n_threads);
    cache::Cache cache = model_.make_cache();
    must(with_threads.prefill(cache, ids));
    const auto step = must(with_threads.decode_step(cache, 17));
    const std::vector<float> logits(step.begin(), step.end());
    if (!first_cache) {
      first_cache = cache;
      first_logits = logits;
    }
    EXPECT_EQ(test::difference(cache, *first_cache), "") << n_threads;
    EXPECT_EQ(logits, first_logits) << n_threads;
  }
}

TEST_F(DecoderTest, RepeatsTheLastLogitsBitForBit) {
  for (const std::int64_t n_tokens :
       {std::int64_t{1}, std::int64_t{2}, kBorders[0], kBorders[1], kBorders[2]}) {
    Decoder own = decoder();
    cache::Cache cache = model_.make_cache();
    const auto logits = must(own.prefill(cache, model_.prompt(n_tokens)));
    const std::vector<float> before(logits.begin(), logits.end());
    Decoder other = decoder(2);
    const auto again = must(other.last_logits(cache));
    EXPECT_EQ(std::vector<float>(again.begin(), again.end()), before) << n_tokens;
  }
}

TEST_F(DecoderTest, GoesOnFromACopyOfADenseCacheBitForBit) {
  for (const std::int64_t n_tokens : kBorders) {
    Decoder own = decoder();
    cache::Cache cache = model_.make_cache();
    const auto logits = must(own.prefill(cache, model_.prompt(n_tokens)));
    cache::Cache copy = cache;
    const auto uninterrupted = go_on(cache, logits, 6);
    Decoder other = decoder();
    EXPECT_EQ(go_on(copy, must(other.last_logits(copy)), 6), uninterrupted) << n_tokens;
    EXPECT_EQ(test::difference(copy, cache), "") << n_tokens;
  }
}

TEST_F(DecoderTest, GoesOnFromACopyOfATurboCacheBitForBit) {
  for (const std::int64_t n_tokens : kBorders) {
    Decoder own = decoder();
    cache::Cache dense = model_.make_cache();
    must(own.prefill(dense, model_.prompt(n_tokens)));
    cache::Cache cache = must(cache::convert(std::move(dense), {.n_threads = 1}));
    cache::Cache copy = cache;
    const auto uninterrupted = go_on(cache, must(own.last_logits(cache)), 6);
    EXPECT_EQ(go_on(copy, must(decoder().last_logits(copy)), 6), uninterrupted) << n_tokens;
    EXPECT_EQ(test::difference(copy, cache), "") << n_tokens;
    must(cache::validate(cache));
  }
}

TEST_F(DecoderTest, PacksATurboBlockOnlyWhenTheNextTokenComes) {
  Decoder own = decoder();
  cache::Cache cache = model_.make_cache();
  must(own.prefill(cache, model_.prompt(300)));
  cache = must(cache::convert(std::move(cache), {.n_threads = 1}));
  const auto& layer = std::get<cache::AttentionLayer>(cache.layers.front());
  const std::vector<std::int32_t> more = model_.prompt(212);
  must(own.prefill(cache, more));
  EXPECT_EQ(cache.n_tokens(), 512);
  EXPECT_EQ(cache::packed_block_count(layer.k), 1);
  must(own.decode_step(cache, 5));
  EXPECT_EQ(cache::packed_block_count(layer.k), 2);
  EXPECT_EQ(cache::packed_block_count(layer.v), 2);
  must(cache::validate(cache));
}

TEST_F(DecoderTest, PrefillsAPromptInPartsWithinRounding) {
  const std::vector<std::int32_t> ids = model_.prompt(500);
  cache::Cache whole = model_.make_cache(Dtype::kF32);
  cache::Cache parts = model_.make_cache(Dtype::kF32);
  Decoder a = decoder(), b = decoder();
  const auto expected = must(a.prefill(whole, ids));
  for (std::size_t begin = 0; begin < 400; begin += 100) {
    must(b.prefill(parts, std::span(ids).subspan(begin, 100)));
  }
  const auto logits = must(b.prefill(parts, std::span(ids).subspan(400)));
  for (std::size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], expected[i], 1e-4f);
}

TEST_F(DecoderTest, KeepsAndAttendsToWhatAFilterMakesOfKeysAndValues) {
  const std::vector<std::int32_t> ids = model_.prompt(300);
  cache::Cache cache = model_.make_cache(Dtype::kF32);
  std::vector<std::int64_t> firsts;
  const KvFilter filter = [&](std::int64_t layer, std::int64_t first, std::span<float> k,
                              std::span<float> v) -> Result<void> {
    if (layer == 0) firsts.push_back(first);
    std::ranges::fill(k, 0.0f);
    std::ranges::fill(v, 0.0f);
    return {};
  };
  std::vector<float> logits;
  const LogitsSink sink = [&](std::int64_t, std::int64_t, std::span<const float> rows) {
    logits.insert(logits.end(), rows.begin(), rows.end());
  };
  must(decoder().prefill_all_logits(cache, ids, sink, {}, filter));
  EXPECT_EQ(firsts, (std::vector<std::int64_t>{0, 256, 299}));
  const auto& layer = std::get<cache::AttentionLayer>(cache.layers.back());
  std::vector<float> head(256 * 32, 1.0f);
  cache::read_block(layer.v, layer.shape, 300, 0, 1, head);
  EXPECT_EQ(head, std::vector<float>(head.size(), 0.0f));

  // Attention of zeros is zero, so a token's logits do not depend on those before it.
  cache::Cache alone = model_.make_cache(Dtype::kF32);
  std::vector<float> all;
  std::swap(all, logits);
  must(decoder().prefill_all_logits(alone, std::span(ids).last(1), sink, {}, filter));
  for (std::size_t i = 0; i < logits.size(); ++i) {
    EXPECT_NEAR(logits[i], all[all.size() - logits.size() + i], 1e-5f);
  }
}

TEST_F(DecoderTest, ReservesNoMoreScratchForALaterChunk) {
  Decoder own = decoder();
  cache::Cache cache = model_.make_cache();
  EXPECT_EQ(own.scratch_bytes(), 0u);
  must(own.decode_step(cache, 1));
  const std::uint64_t for_a_step = own.scratch_bytes();
  EXPECT_GT(for_a_step, 0u);
  must(own.prefill(cache, model_.prompt(300)));
  const std::uint64_t for_a_chunk = own.scratch_bytes();
  EXPECT_GT(for_a_chunk, for_a_step);
  must(own.prefill(cache, model_.prompt(100)));
  EXPECT_EQ(own.scratch_bytes(), for_a_chunk);
}

// Errors leave the cache as it was.
class DecoderErrors : public DecoderTest {
 protected:
  void SetUp() override {
    cache_ = model_.make_cache();
    must(decoder_.prefill(cache_, model_.prompt(10)));
  }

  void expect_refused(const std::vector<std::int32_t>& ids, ErrorCode code,
                      const std::string& message) {
    const cache::Cache before = cache_;
    EXPECT_THAT(decoder_.prefill(cache_, ids), test::FailsWith(code, HasSubstr(message)));
    EXPECT_EQ(test::difference(cache_, before), "");
  }

  Decoder decoder_ = decoder();
  cache::Cache cache_;
};

TEST_F(DecoderErrors, RefusesIdsOutsideTheVocabulary) {
  expect_refused({1, 100}, ErrorCode::kInvalidArgument, "token id 100");
  expect_refused({-1}, ErrorCode::kInvalidArgument, "token id -1");
  cache_.tokens.back() = 100;  // as a file of another model might have it
  EXPECT_EQ(decoder_.last_logits(cache_).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(DecoderErrors, RefusesMoreTokensThanTheContextHolds) {
  expect_refused(model_.prompt(591), ErrorCode::kInvalidArgument,
                 "591 tokens to append, room for 590 of 600");
  must(decoder_.prefill(cache_, model_.prompt(590)));
  expect_refused({1}, ErrorCode::kInvalidArgument, "1 tokens to append, room for 0 of 600");
}

TEST_F(DecoderErrors, RefusesAnotherNumberOfLayers) {
  cache_.layers.pop_back();
  expect_refused({1}, ErrorCode::kMismatch, "cache of 1 layers; the model has 2");
  EXPECT_EQ(decoder_.last_logits(cache_).error().code, ErrorCode::kMismatch);
}

TEST_F(DecoderErrors, RefusesAnotherHeadShape) {
  cache_ = test::CacheBuilder(10).dense({2, 32}).dense({4, 32}).build();
  expect_refused({1}, ErrorCode::kMismatch,
                 "layer 1: 4 kv heads of 32 components; the model has 2 of 32");
}

TEST_F(DecoderErrors, RefusesAnArraysLayer) {
  cache_ = test::CacheBuilder(10).dense({2, 32}).arrays().build();
  expect_refused({1}, ErrorCode::kInvalidArgument, "layer 1: an arrays layer");
}

TEST_F(DecoderErrors, RefusesARotatingLayer) {
  cache_ = test::CacheBuilder(10).dense({2, 32}).rotating({{2, 32}, 8, 0}).build();
  expect_refused({1}, ErrorCode::kInvalidArgument, "layer 1: a rotating layer");
}

TEST_F(DecoderErrors, RefusesHiddenTokensUntilTheyAreRevealed) {
  const std::vector<std::int32_t> ids = cache_.tokens;
  cache::hide_tokens(cache_);
  expect_refused({1}, ErrorCode::kUnsupported, "the tokens are hidden: ");
  EXPECT_EQ(decoder_.decode_step(cache_, 1).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(decoder_.last_logits(cache_).error().code, ErrorCode::kUnsupported);
  must(cache::reveal_tokens(cache_, ids));
  must(decoder_.last_logits(cache_));
}

TEST_F(DecoderErrors, LeavesTheCacheAloneWhenAFilterFails) {
  const cache::Cache before = cache_;
  const KvFilter refuse = [](std::int64_t layer, std::int64_t, std::span<float>,
                             std::span<float>) -> Result<void> {
    if (layer == 0) return {};
    return Error{ErrorCode::kCorrupt, "layer 1: refused"};
  };
  const auto result = decoder_.prefill_all_logits(cache_, model_.prompt(5), {}, {}, refuse);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message, "layer 1: refused");
  EXPECT_EQ(test::difference(cache_, before), "");
}

TEST_F(DecoderErrors, StopsBetweenLayersAndKeepsTheFinishedChunks) {
  const std::vector<std::int32_t> ids = model_.prompt(500);
  std::uint64_t seen = 0;
  int calls_in_second_chunk = 0;
  const auto stop_in_second_chunk = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_EQ(total, 500u);
    seen = done;
    return done == 0 || ++calls_in_second_chunk < 2;
  };
  const auto result = decoder_.prefill(cache_, ids, stop_in_second_chunk);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kInterrupted);
  EXPECT_EQ(seen, 246u);  // 10 and 246 fill the first token block
  EXPECT_EQ(cache_.n_tokens(), 256);
  must(cache::validate(cache_));

  // Going on gives what an uninterrupted run gives.
  const auto logits = must(decoder_.prefill(cache_, std::span(ids).subspan(246)));
  const std::vector<float> resumed(logits.begin(), logits.end());
  cache::Cache whole = model_.make_cache();
  must(decoder_.prefill(whole, model_.prompt(10)));
  const auto expected = must(decoder_.prefill(whole, ids));
  EXPECT_EQ(resumed, std::vector<float>(expected.begin(), expected.end()));
  EXPECT_EQ(test::difference(cache_, whole), "");
}

TEST_F(DecoderErrors, ReportsTheWholeWorkAtTheEnd) {
  std::uint64_t last_done = 0;
  must(decoder_.prefill(cache_, model_.prompt(300), [&](std::uint64_t done, std::uint64_t) {
    EXPECT_GE(done, last_done);
    last_done = done;
    return true;
  }));
  EXPECT_EQ(last_done, 300u);
}

TEST_F(DecoderErrors, KeepsAValidCacheWhenABlockCannotBePacked) {
  cache::Cache dense = model_.make_cache();
  must(decoder_.prefill(dense, model_.prompt(511)));
  cache_ = must(cache::convert(std::move(dense), {.n_threads = 1}));
  must(decoder_.decode_step(cache_, 1));  // the block is full now, and packed with the next token
  auto& layer = std::get<cache::AttentionLayer>(cache_.layers[1]);
  const std::uint16_t infinity = f32_to_f16(std::numeric_limits<float>::infinity());
  std::memcpy(std::get<cache::TurboTensor>(layer.v).tail.blocks.front().data(), &infinity,
              sizeof(infinity));

  EXPECT_THAT(decoder_.decode_step(cache_, 2),
              test::FailsWith(ErrorCode::kCorrupt, HasSubstr("layer 1 v: token block 1")));
  EXPECT_EQ(cache_.n_tokens(), 512);
  must(cache::validate(cache_));
}

}  // namespace decoder_test
}  // namespace tqcache::model
