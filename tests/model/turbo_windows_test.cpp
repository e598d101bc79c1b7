// Sliding windows that are packed: the same in memory and behind a file, at the window's edge and
// at the borders of token blocks, and as near to dense ones as the codec is.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/fixture_model.h"
#include "model/tiny_model.h"
#include "tqcache/cache/window.h"
#include "tqcache/quantize.h"
#include "tqcache/tqkv.h"

namespace tqcache::model {
namespace turbo_windows_test {

using cache::WindowMode;
using test::FixtureModel;
using test::must;
using test::TinyModel;
using Floats = std::vector<float>;
using Ids = std::vector<std::int32_t>;

void prefill(Decoder& decoder, cache::Cache& cache, std::span<const std::int32_t> ids) {
  if (!ids.empty()) must(decoder.prefill(cache, ids));
}

Floats take_steps(Decoder& decoder, cache::Cache& cache, std::span<const std::int32_t> ids) {
  Floats all;
  for (const std::int32_t id : ids) {
    const auto logits = must(decoder.decode_step(cache, id));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

Bytes bytes_of(const cache::Cache& cache) { return must(format::write_cache_bytes(cache, {})); }

cache::Cache through_a_file(const cache::Cache& cache) {
  return must(format::read_cache(*memory_source(bytes_of(cache))));
}

cache::Cache as_turbo(cache::Cache cache, WindowMode windows = WindowMode::kTurboCentered,
                      int bits = 4) {
  cache::ConvertOptions options{.n_threads = 1, .windows = windows};
  options.keys.codec.bits = bits;
  options.values.codec.bits = bits;
  return must(cache::convert(std::move(cache), options));
}

class TurboWindows : public testing::TestWithParam<std::string> {
 protected:
  FixtureModel model_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Families, TurboWindows, testing::Values("mistral", "gemma2", "gemma3"));

TEST_P(TurboWindows, GoOnFromAFileBitForBit) {
  const Ids ids = model_.many_ids(512);
  for (const std::size_t n : {0u, 1u, 8u, 30u, 255u, 256u, 257u, 263u, 264u, 300u, 505u, 509u}) {
    SCOPED_TRACE(n);
    Decoder decoder = model_.decoder();
    cache::Cache cache = as_turbo(model_.make_cache(Dtype::kF16));
    prefill(decoder, cache, std::span(ids).first(n));
    must(cache::validate(cache));
    cache::Cache loaded = through_a_file(cache);
    EXPECT_EQ(test::difference(loaded, cache), "");
    const auto next = std::span(ids).subspan(n, 3);
    Decoder other = model_.decoder(3);
    EXPECT_EQ(take_steps(other, loaded, next), take_steps(decoder, cache, next));
    EXPECT_EQ(bytes_of(loaded), bytes_of(cache));
  }
}

TEST_P(TurboWindows, GoOnFromAConvertedCacheBitForBit) {
  const Ids ids = model_.many_ids(512);
  for (const std::size_t n : {3u, 256u, 260u, 300u, 500u}) {
    SCOPED_TRACE(n);
    Decoder decoder = model_.decoder();
    cache::Cache dense = model_.make_cache(Dtype::kF16);
    prefill(decoder, dense, std::span(ids).first(n));
    cache::Cache open = as_turbo(dense);  // from token blocks, and from arrays
    cache::Cache closed = as_turbo(through_a_file(dense));
    cache::Cache loaded = through_a_file(closed);
    const auto next = std::span(ids).subspan(n, 12);
    const Floats logits = take_steps(decoder, closed, next);
    Decoder other = model_.decoder(2);
    EXPECT_EQ(take_steps(other, loaded, next), logits);
    EXPECT_EQ(take_steps(other, open, next), logits);
    EXPECT_LT(test::relative_error(logits, take_steps(other, dense, next), 64), 0.5);
  }
}

TEST_P(TurboWindows, RepeatTheLastLogits) {
  Decoder decoder = model_.decoder();
  cache::Cache cache = as_turbo(model_.make_cache());
  const auto last = must(decoder.prefill(cache, model_.many_ids(300)));
  const Floats expected(last.begin(), last.end());
  const cache::Cache loaded = through_a_file(cache);
  for (const cache::Cache* each : {&std::as_const(cache), &loaded}) {
    const auto again = must(decoder.last_logits(*each));
    EXPECT_EQ(Floats(again.begin(), again.end()), expected);
  }
}

TEST_P(TurboWindows, AreAsTheyWereAfterAnInterruption) {
  const Ids ids = model_.many_ids(400);
  Decoder decoder = model_.decoder();
  cache::Cache cache = as_turbo(model_.make_cache(Dtype::kF16));
  prefill(decoder, cache, std::span(ids).first(300));
  const Bytes before = bytes_of(cache);
  int n_asked = 0;
  const auto stopped = decoder.prefill(cache, std::span(ids).subspan(300),
                                       [&](std::uint64_t, std::uint64_t) { return ++n_asked < 2; });
  ASSERT_FALSE(stopped.ok());
  must(cache::validate(cache));
  EXPECT_EQ(bytes_of(cache), before);
}

TEST_P(TurboWindows, GiveTheirPackedBlocksBack) {
  Decoder decoder = model_.decoder();
  cache::Cache cache = as_turbo(model_.make_cache());
  prefill(decoder, cache, model_.many_ids(511));
  const cache::AttentionLayer& layer = std::get<cache::WindowLayer>(cache.layers.front()).attention;
  ASSERT_TRUE(cache::is_quantized(layer));
  const auto& packed = std::get<cache::TurboTensor>(layer.k).packed;
  ASSERT_EQ(packed.size(), 1u);
  EXPECT_EQ(packed[0].bytes.size(), 0u);
}

// --- a model whose window holds several token blocks

TinyModel windowed(std::int64_t window) {
  TinyModel model;
  model.config.context_length = 1400;
  model.config.layers = {{LayerKind::kAttention, window, model.config.rope},
                         {LayerKind::kAttention, 0, model.config.rope}};
  return model;
}

cache::Cache empty_cache(const TinyModel& model, Dtype dtype = Dtype::kF32) {
  cache::Identity identity;
  identity.rope = model.config.rope;
  return must(make_cache(model.config, std::move(identity), dtype));
}

TEST(TurboWindow, AsWideAsThePromptIsFullAttention) {
  const TinyModel narrow = windowed(0), wide = windowed(1300);
  const Ids ids = narrow.prompt(900);
  Decoder of_narrow(narrow.config, narrow.weights, 1), of_wide(wide.config, wide.weights, 2);
  cache::Cache full = as_turbo(empty_cache(narrow)), window = as_turbo(empty_cache(wide));
  prefill(of_narrow, full, std::span(ids).first(890));
  prefill(of_wide, window, std::span(ids).first(890));
  const auto next = std::span(ids).subspan(890);
  EXPECT_EQ(take_steps(of_wide, window, next), take_steps(of_narrow, full, next));
}

// What a query before and behind the window's edge sees is what the codes stand for, and no more.
TEST(TurboWindow, IsAttendedAsWhatItDecodesTo) {
  const TinyModel model = windowed(300);
  const Ids ids = model.prompt(1000);
  for (const std::size_t n : {400u, 555u, 556u, 557u, 812u, 990u}) {
    SCOPED_TRACE(n);
    Decoder decoder(model.config, model.weights, 1, Scorer::kExact);
    cache::Cache turbo = as_turbo(empty_cache(model));
    prefill(decoder, turbo, std::span(ids).first(n));
    cache::Cache decoded = turbo;
    auto& layer = std::get<cache::WindowLayer>(decoded.layers[0]);
    test::make_dense(layer, decoded.n_tokens());
    EXPECT_FALSE(cache::is_quantized(layer.attention));
    must(cache::validate(decoded));
    cache::Cache of_chunk = turbo, decoded_of_chunk = decoded;
    const auto next = std::span(ids).subspan(n, 5);
    const auto n_words = static_cast<std::size_t>(model.config.vocab_size);
    EXPECT_LT(test::relative_error(take_steps(decoder, turbo, next),
                                   take_steps(decoder, decoded, next), n_words),
              1e-4);
    const auto all = [&](cache::Cache& cache) {
      Floats rows;
      must(decoder.prefill_all_logits(cache, next, [&](auto, auto, std::span<const float> logits) {
        rows.insert(rows.end(), logits.begin(), logits.end());
      }));
      return rows;
    };
    EXPECT_LT(test::relative_error(all(of_chunk), all(decoded_of_chunk), n_words), 1e-4);
  }
}

TEST(TurboWindow, ErrsLessWithMoreBits) {
  const TinyModel model = windowed(300);
  const Ids ids = model.prompt(820);
  Decoder decoder(model.config, model.weights, 1);
  cache::Cache dense = empty_cache(model);
  prefill(decoder, dense, std::span(ids).first(800));
  const auto next = std::span(ids).subspan(800);
  const auto n_words = static_cast<std::size_t>(model.config.vocab_size);
  cache::Cache reference = dense;
  const Floats expected = take_steps(decoder, reference, next);
  for (const WindowMode windows : {WindowMode::kTurbo, WindowMode::kTurboCentered}) {
    double last = 2;
    for (const int bits : {1, 2, 4, 8}) {
      cache::Cache turbo = as_turbo(dense, windows, bits);
      const double error =
          test::relative_error(take_steps(decoder, turbo, next), expected, n_words);
      EXPECT_LT(error, last) << bits;
      last = error;
    }
    EXPECT_LT(last, 0.02);
  }
}

TEST(TurboWindow, MayBeATokenShorter) {
  const TinyModel model = windowed(300);
  const Ids ids = model.prompt(700);
  Decoder decoder(model.config, model.weights, 1);
  cache::Cache whole = empty_cache(model);
  prefill(decoder, whole, std::span(ids).first(600));
  cache::Cache shorter = whole;
  std::get<cache::WindowLayer>(shorter.layers[0]).window.size -= 1;
  whole = as_turbo(std::move(whole));
  shorter = as_turbo(std::move(shorter));
  const auto next = std::span(ids).subspan(600);
  take_steps(decoder, shorter, next);
  take_steps(decoder, whole, next);
  EXPECT_EQ(std::get<cache::WindowLayer>(shorter.layers[0]).window.size, 300);
  EXPECT_EQ(test::difference(through_a_file(shorter), shorter), "");
}

}  // namespace turbo_windows_test
}  // namespace tqcache::model
