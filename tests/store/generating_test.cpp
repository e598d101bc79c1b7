// Sessions that begin from a store: the same bits as without one, whatever the store does.

#include "store/generating.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "store/faulty_backend.h"
#include "tqcache/cache.h"
#include "tqcache/quantize.h"
#include "tqcache/store/blobs/blob_keys.h"

namespace tqcache::store {
namespace generating_test {

using test::FaultyBackend;
using test::Ids;
using test::must;
using test::run_alone;
using test::run_from;
using test::StoreModel;
using test::StoreRun;
using testing::IsEmpty;
using testing::Not;

void expect_same(const StoreRun& run, const StoreRun& other) {
  EXPECT_EQ(run.ids, other.ids);
  EXPECT_TRUE(run.logits == other.logits);
  EXPECT_TRUE(run.file == other.file);
}

// As the first ids of a prompt, with others behind them.
Ids changed_from(Ids ids, std::size_t at, std::size_t n) {
  ids.resize(at);
  for (std::size_t i = 0; ids.size() < n; ++i) {
    ids.push_back(static_cast<std::int32_t>((11 * i + 5) % 61));
  }
  return ids;
}

cache::ConvertOptions settings(const std::string& text) {
  cache::ConvertOptions options = must(cache::parse_configuration(text)).options;
  options.n_threads = 1;
  return options;
}

class Generating : public testing::TestWithParam<std::string> {
 protected:
  bool keeps_state() const { return model_.empty().layers.size() != n_attention(); }
  std::size_t n_attention() const {
    const cache::Cache cache = model_.empty();
    return static_cast<std::size_t>(std::ranges::count_if(cache.layers, [](const auto& layer) {
      return std::holds_alternative<cache::AttentionLayer>(layer);
    }));
  }
  // What a prompt of n tokens finds of a prompt that begins with the same n - 1 and was read whole.
  std::int64_t reusable(std::int64_t n) const {
    const std::int64_t n_blocks = final_blocks(n);
    return keeps_state() && n_blocks < 2 ? 0 : n_blocks * cache::kTokenBlock;
  }

  StoreModel model_{GetParam()};
  FaultyBackend backend_;
};

INSTANTIATE_TEST_SUITE_P(Families, Generating,
                         testing::Values("llama", "mistral", "gemma3", "qwen3_next", "qwen3_5"),
                         [](const auto& name) { return name.param; });

TEST_P(Generating, GivesTheSameBitsAtEveryBorder) {
  for (const std::int64_t n : {255, 256, 257, 511, 512, 513, 769}) {
    FaultyBackend backend;
    const Ids prompt = model_.many_ids(static_cast<std::size_t>(n));
    const StoreRun alone = run_alone(model_, prompt);
    const StoreRun first = run_from(backend, model_, prompt);
    const StoreRun second = run_from(backend, model_, prompt);
    EXPECT_EQ(first.reused, 0);
    EXPECT_FALSE(first.put.error);
    EXPECT_EQ(second.reused, reusable(n)) << n;
    expect_same(first, alone);
    expect_same(second, alone);
  }
}

TEST_P(Generating, SharesPrefixes) {
  const Ids prompt = model_.many_ids(700);
  run_from(backend_, model_, prompt);
  const Ids other = changed_from(prompt, 600, 900);
  const StoreRun run = run_from(backend_, model_, other);
  EXPECT_EQ(run.reused, 512);
  expect_same(run, run_alone(model_, other));
  const StoreRun again = run_from(backend_, model_, other);
  EXPECT_EQ(again.reused, 768);
  expect_same(again, run);
}

TEST_P(Generating, KeepsItsQuantizationSettings) {
  const cache::ConvertOptions turbo = settings("turbo4");
  const Ids prompt = model_.many_ids(700);
  const test::StoreRunOptions options{.settings = &turbo};
  const StoreRun alone = run_alone(model_, prompt, options);
  if (n_attention() == 0) return;  // every form is the same
  EXPECT_EQ(run_from(backend_, model_, prompt).reused, 0);
  EXPECT_EQ(run_from(backend_, model_, prompt, options).reused, 0);
  const StoreRun second = run_from(backend_, model_, prompt, options);
  EXPECT_EQ(second.reused, 512);
  expect_same(second, alone);
  EXPECT_EQ(must(format::read_cache(*memory_source(second.file))).n_tokens(), 704);
}

TEST_P(Generating, ResumesFromAnyQuantizationSettings) {
  const cache::ConvertOptions turbo = settings("turbo4,sink=4");
  const Ids prompt = model_.many_ids(700);
  const StoreRun first = run_from(backend_, model_, prompt, {.settings = &turbo});
  const StoreRun second = run_from(backend_, model_, prompt, {.any_form = true});
  EXPECT_EQ(second.reused, 512);
  expect_same(second, first);
}

TEST_P(Generating, PutsWhatItWrites) {
  const Ids prompt = model_.many_ids(200);
  const StoreRun first = run_from(backend_, model_, prompt, {.n_new = 600});
  EXPECT_EQ(first.put.new_blocks, 3);
  EXPECT_EQ(first.put.left_blocks, 0);
  Ids all = prompt;
  all.insert(all.end(), first.ids.begin(), first.ids.end());
  all.push_back(3);
  const StoreRun second = run_from(backend_, model_, all);
  EXPECT_EQ(second.reused, 768);
}

TEST_P(Generating, FindsNothingOfAnotherTenant) {
  const Ids prompt = model_.many_ids(700);
  run_from(backend_, model_, prompt, {.salt = "one"});
  const StoreRun other = run_from(backend_, model_, prompt, {.salt = "two"});
  EXPECT_EQ(other.reused, 0);
  expect_same(other, run_alone(model_, prompt));
  EXPECT_EQ(run_from(backend_, model_, prompt, {.salt = "one"}).reused, 512);
}

TEST_P(Generating, DoesWithoutALostBlock) {
  const Ids prompt = model_.many_ids(1100);
  run_from(backend_, model_, prompt);
  for (const std::string& key : backend_.keys("b/000002/")) backend_.lose(key);
  const StoreRun run = run_from(backend_, model_, prompt);
  EXPECT_EQ(run.reused, keeps_state() ? 0 : 512);
  const StoreRun alone = run_alone(model_, prompt);
  expect_same(run, alone);
  const StoreRun mended = run_from(backend_, model_, prompt);
  EXPECT_EQ(mended.reused, 1024);
  expect_same(mended, alone);
}

TEST_P(Generating, DoesWithoutABlockOfWrongBytes) {
  const Ids prompt = model_.many_ids(1100);
  run_from(backend_, model_, prompt);
  backend_.spoil("b/000002/");
  const StoreRun run = run_from(backend_, model_, prompt);
  EXPECT_EQ(run.reused, keeps_state() ? 0 : 512);
  EXPECT_THAT(run.warnings, Not(IsEmpty()));
  expect_same(run, run_alone(model_, prompt));
}

TEST_P(Generating, DoesWithoutAnyParameters) {
  const Ids prompt = model_.many_ids(600);
  run_from(backend_, model_, prompt);
  backend_.spoil("p/");
  const StoreRun run = run_from(backend_, model_, prompt);
  EXPECT_EQ(run.reused, 0);
  expect_same(run, run_alone(model_, prompt));
}

TEST_P(Generating, WorksWithoutAStore) {
  const Ids prompt = model_.many_ids(600);
  backend_.fail(Error{ErrorCode::kIo, "gone"});
  const StoreRun run = run_from(backend_, model_, prompt);
  EXPECT_FALSE(run.looked_up);
  ASSERT_TRUE(run.put.error);
  EXPECT_EQ(run.put.error->message, "gone");
  EXPECT_EQ(run.put.new_blocks, 0);
  expect_same(run, run_alone(model_, prompt));
}

// The state at a prompt's last border, and at those that are far apart.
TEST_P(Generating, PutsStatesWhereTheyCanBeUsed) {
  const Ids prompt = model_.many_ids(1400);
  const StoreRun first = run_from(backend_, model_, prompt, {.checkpoint_tokens = 512});
  EXPECT_EQ(first.put.states, keeps_state() ? 3 : 0);  // 512, 1024, 1280
  EXPECT_EQ(first.put.new_blocks, 5);
  for (const std::size_t n : {1100u, 1300u}) {
    const Ids other = changed_from(prompt, n, n + 50);
    const StoreRun run = run_from(backend_, model_, other, {.checkpoint_tokens = 512});
    EXPECT_EQ(run.reused, n == 1100u ? 1024 : 1280);
    expect_same(run, run_alone(model_, other));
  }
}

TEST(BackgroundPut, LeavesBlocksInTheCacheWhileTheStoreIsSlow) {
  const StoreModel model("qwen3_5");
  FaultyBackend backend;
  backend.close_gate();
  const Ids prompt = model.many_ids(1400);
  const auto open = [&] {
    backend.open_gate();
    return true;
  };
  const StoreRun run = run_from(backend, model, prompt, {.queue_bytes = 1, .goes_on = open});
  EXPECT_EQ(run.put.left_blocks, 0);
  EXPECT_EQ(run.put.new_blocks, 5);
  EXPECT_EQ(run.put.states, 1);
  expect_same(run, run_alone(model, prompt));
  EXPECT_EQ(run_from(backend, model, prompt).reused, 1280);
}

TEST(BackgroundPut, EndsAtOnceWithoutWaiting) {
  const StoreModel model("llama");
  FaultyBackend backend;
  backend.close_gate();
  const Ids prompt = model.many_ids(1400);
  const auto leave = [&] {
    backend.open_gate();  // what is on its way comes to an end
    return false;
  };
  const StoreRun run = run_from(backend, model, prompt, {.queue_bytes = 1, .goes_on = leave});
  EXPECT_GT(run.put.left_blocks, 0);
  EXPECT_FALSE(run.put.error);
  expect_same(run, run_alone(model, prompt));
  expect_same(run_from(backend, model, prompt), run);
}

TEST(BackgroundPut, GivesUpAfterTheFirstError) {
  const StoreModel model("llama");
  FaultyBackend backend;
  backend.fail_puts_after(2, Error{ErrorCode::kTooLarge, "the store is full"});
  const Ids prompt = model.many_ids(1400);
  const StoreRun run = run_from(backend, model, prompt, {.queue_bytes = 1});
  ASSERT_TRUE(run.put.error);
  EXPECT_EQ(run.put.error->code, ErrorCode::kTooLarge);
  EXPECT_GT(run.put.left_blocks, 0);
  expect_same(run, run_alone(model, prompt));
  // What is there in part is no harm to who comes next.
  backend.fail_puts_after(1000, Error{ErrorCode::kTooLarge, "the store is full"});
  expect_same(run_from(backend, model, prompt), run);
  EXPECT_EQ(run_from(backend, model, prompt).reused, 1280);
}

TEST(BackgroundPut, ARunThatHasNoMemoryForTheStoreGoesOn) {
  const StoreModel model("llama");
  FaultyBackend backend;
  backend.run_out_of_memory();
  const Ids prompt = model.many_ids(800);
  const StoreRun run = run_from(backend, model, prompt, {.queue_bytes = 1});
  ASSERT_TRUE(run.put.error);
  EXPECT_EQ(run.put.error->code, ErrorCode::kTooLarge);
  EXPECT_EQ(run.put.error->message, "out of memory");
  expect_same(run, run_alone(model, prompt));
}

TEST(BackgroundPut, PutsBlocksWithoutAName) {
  const StoreModel model("llama");
  FaultyBackend backend;
  backend.close_gate();
  model::Decoder decoder = model.decoder();
  cache::Cache cache = model.empty();
  const Ids prompt = model.many_ids(800);
  must(decoder.prefill(cache, prompt));
  const Bytes before = must(format::write_cache_bytes(cache, {}));
  BackgroundPut put(backend, {});
  put.watch(cache);
  cache = must(cache::truncate(std::move(cache), 100));
  backend.open_gate();
  const BackgroundPutReport report =
      put.finish(cache, std::chrono::minutes(1), [] { return true; });
  EXPECT_EQ(report.new_blocks, 3);
  EXPECT_EQ(run_from(backend, model, prompt).reused, 768);
}

// --- windows in turbo form

// Windows of the model's few tokens, or of several token blocks.
class TurboWindows : public testing::TestWithParam<std::tuple<std::string, std::int64_t>> {
 protected:
  TurboWindows() {
    for (model::LayerConfig& layer : model_.config.layers) {
      if (layer.window != 0 && wide() != 0) layer.window = wide();
    }
  }
  static std::int64_t wide() { return std::get<1>(GetParam()); }

  StoreModel model_{std::get<0>(GetParam())};
  cache::ConvertOptions turbo_ = settings("turbo4,windows=turbo");
  test::StoreRunOptions options_{.settings = &turbo_, .checkpoint_tokens = 512};
  FaultyBackend backend_;
};

INSTANTIATE_TEST_SUITE_P(Families, TurboWindows,
                         testing::Combine(testing::Values("mistral", "gemma3"),
                                          testing::Values(0, 300)),
                         [](const auto& test) {
                           return std::get<0>(test.param) +
                                  (std::get<1>(test.param) == 0 ? "_narrow" : "_wide");
                         });

TEST_P(TurboWindows, GoOnWithTheSameBits) {
  for (const std::size_t n : {257u, 513u, 769u, 1000u}) {
    FaultyBackend backend;
    const Ids prompt = model_.many_ids(n);
    const StoreRun alone = run_alone(model_, prompt, options_);
    const StoreRun first = run_from(backend, model_, prompt, options_);
    EXPECT_FALSE(first.put.error);
    expect_same(first, alone);
    const StoreRun second = run_from(backend, model_, prompt, options_);
    EXPECT_EQ(second.reused, n < 513 ? 0 : n == 513 ? 512 : 768) << n;
    EXPECT_THAT(second.warnings, IsEmpty());
    expect_same(second, alone);
  }
}

TEST_P(TurboWindows, HaveTheirOwnQuantizationSettings) {
  const Ids prompt = model_.many_ids(700);
  run_from(backend_, model_, prompt);
  EXPECT_EQ(run_from(backend_, model_, prompt, options_).reused, 0);
  EXPECT_EQ(run_from(backend_, model_, prompt, options_).reused, 512);
}

// One of the two states that the prompt leaves.
TEST_P(TurboWindows, AreNotUsedWithoutAllTheirData) {
  const Ids prompt = model_.many_ids(900);
  const StoreRun alone = run_alone(model_, prompt, options_);
  run_from(backend_, model_, prompt, options_);
  std::vector<std::int64_t> reused;
  for (const std::string& key : backend_.keys("d/")) {
    FaultyBackend backend;
    run_from(backend, model_, prompt, options_);
    backend.lose(key);
    const StoreRun run = run_from(backend, model_, prompt, options_);
    reused.push_back(run.reused);
    expect_same(run, alone);
  }
  EXPECT_THAT(reused, testing::UnorderedElementsAre(0, 768));
}

TEST_P(TurboWindows, AreNotUsedWhenTheyAreDamaged) {
  const Ids prompt = model_.many_ids(700);
  run_from(backend_, model_, prompt, options_);
  backend_.spoil("d/");
  const StoreRun run = run_from(backend_, model_, prompt, options_);
  EXPECT_EQ(run.reused, 0);
  EXPECT_THAT(run.warnings, Not(IsEmpty()));
  expect_same(run, run_alone(model_, prompt, options_));
}

// A window in the tail alone has nothing packed, and no mean: it gets one behind the blocks that
// the store has, which then is none of their parameters.
TEST_P(TurboWindows, OfALaterMeanPutNoStates) {
  const Ids prompt = model_.many_ids(700);
  model::Decoder decoder = model_.decoder();
  cache::Cache dense = model_.empty();
  must(decoder.prefill(dense, std::span(prompt).first(600)));
  const cache::Cache turbo = must(cache::convert(std::move(dense), turbo_));
  Library library(backend_, {});
  must(library.put_cache(turbo, ""));
  const StoreRun first = run_from(backend_, model_, prompt, {.n_new = 400, .any_form = true});
  EXPECT_EQ(first.reused, 600);
  EXPECT_FALSE(first.put.error);
  EXPECT_EQ(first.put.states == 0, wide() == 0);
  Ids all = prompt;
  all.insert(all.end(), first.ids.begin(), first.ids.end());
  const StoreRun second = run_from(backend_, model_, all, {.any_form = true});
  EXPECT_EQ(second.reused, wide() == 0 ? 600 : 1024);
  EXPECT_THAT(second.warnings, IsEmpty());
}

TEST(BackgroundPut, PutsNothingOfAShortPrompt) {
  const StoreModel model("llama");
  FaultyBackend backend;
  run_from(backend, model, model.many_ids(200));
  EXPECT_THAT(backend.keys(""), IsEmpty());
}

}  // namespace generating_test
}  // namespace tqcache::store
