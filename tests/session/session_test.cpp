// A session of the library does what `tqcache generate` does, without the program.

#include "tqcache/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "support/matchers.h"
#include "support/temp_dir.h"
#include "tqcache/cache.h"
#include "tqcache/store.h"
#include "tqcache/tqkv.h"

namespace tqcache::session {
namespace {

using test::TempDir;
using testing::HasSubstr;

const std::string kModel = TQCACHE_DEMO_MODEL "/tqcache-demo-17m.q8_0.gguf";
const std::string kOtherModel = TQCACHE_DEMO_MODEL "/hf";  // the same before quantization

// Throws where a test cannot go on.
template <class T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(result).value();
}
void must(const Result<void>& result) {
  if (!result) throw std::runtime_error(result.error().message);
}

std::vector<std::int32_t> encode(const Session& session, std::string_view text) {
  return must(session.model().tokenizer.encode(text, {}));
}

std::vector<std::int32_t> generated(Session& session, std::int64_t n) {
  return session.generate(n, true, [](std::int32_t) { return Result<bool>(true); }).ids;
}

constexpr std::string_view kPrompt = "Alice was beginning to get very tired of sitting by her";

TEST(Session, ResumesASavedCacheWithTheSameTokens) {
  const TempDir dir;
  const std::string path = (dir / "alice.tqkv").string();
  const auto whole = must(Session::open({.model = kModel}));
  must(whole->feed(encode(*whole, kPrompt)));
  const std::vector<std::int32_t> all = generated(*whole, 12);

  const auto first = must(Session::open({.model = kModel}));
  must(first->feed(encode(*first, kPrompt)));
  std::vector<std::int32_t> both = generated(*first, 5);
  must(format::write_cache_file(first->cache(), path, {}, {}));
  for (const bool map : {false, true}) {
    const auto second = must(Session::open({.model = kModel, .cache = path, .map = map}));
    must(second->resume());
    const std::vector<std::int32_t> rest = generated(*second, 7);
    std::vector<std::int32_t> joined = both;
    joined.insert(joined.end(), rest.begin(), rest.end());
    EXPECT_EQ(joined, all) << map;
  }
}

// So prompts that begin alike share their first block, whichever of both made it. (The next blocks
// of the session attend to quantized ones, so they have other values.)
TEST(Session, QuantizesItsFirstBlockAsAConversionDoes) {
  std::string text;
  for (int i = 0; i < 30; ++i) text.append(kPrompt).append(" ");
  const cache::ConvertOptions turbo =
      must(cache::parse_configuration(cache::kDefaultPreset)).options;
  const auto growing = must(Session::open({.model = kModel, .quantization = turbo}));
  const auto dense = must(Session::open({.model = kModel}));
  must(growing->feed(encode(*growing, text)));
  must(dense->feed(encode(*dense, text)));
  ASSERT_GT(dense->cache().n_tokens(), cache::kTokenBlock);
  const cache::Cache converted = must(cache::convert(dense->cache(), turbo));
  for (std::size_t i = 0; i < converted.layers.size(); ++i) {
    const auto* a = cache::attention_of(growing->cache().layers[i]);
    const auto* b = cache::attention_of(converted.layers[i]);
    for (const auto& [x, y] : {std::pair{&a->k, &b->k}, std::pair{&a->v, &b->v}}) {
      const ByteView first = std::get<cache::TurboTensor>(*x).packed.at(0).bytes.view();
      EXPECT_TRUE(
          std::ranges::equal(first, std::get<cache::TurboTensor>(*y).packed.at(0).bytes.view()))
          << i;
    }
  }
}

TEST(Session, CannotBeFittedToAPromptThatIsToCome) {
  EXPECT_THAT(Session::open(
                  {.model = kModel,
                   .quantization = must(cache::parse_configuration("turbo4,fit=prompt")).options}),
              test::FailsWith(ErrorCode::kInvalidArgument, testing::HasSubstr("fit=prompt")));
}

TEST(Session, StopsWhereItsSinkSays) {
  const auto session = must(Session::open({.model = kModel}));
  must(session->feed(encode(*session, kPrompt)));
  const std::int64_t n_prompt = session->cache().n_tokens();
  int n_seen = 0;
  const Generation stopped =
      session->generate(10, true, [&](std::int32_t) { return Result<bool>(++n_seen < 3); });
  EXPECT_EQ(stopped.stop, StopReason::kStopString);
  EXPECT_EQ(stopped.ids.size(), 3u);
  EXPECT_EQ(session->cache().n_tokens(), n_prompt + 3);
  const Generation failed =
      session->generate(10, true, [](std::int32_t) { return Result<bool>(interrupted_error()); });
  EXPECT_EQ(failed.stop, StopReason::kInterrupted);
  EXPECT_EQ(failed.failure->code, ErrorCode::kInterrupted);
  EXPECT_EQ(session->generate(1, false, [](std::int32_t) { return Result<bool>(true); }).stop,
            StopReason::kLength);
}

TEST(Session, KeepsTheCommonPrefixOfCacheAndPrompt) {
  const auto session = must(Session::open({.model = kModel}));
  const std::vector<std::int32_t> ids = encode(*session, kPrompt);
  must(session->feed(ids));
  std::vector<std::int32_t> other(ids.begin(), ids.begin() + 6);
  other.push_back(ids[6] + 1);
  const PrefixReuse reused = must(session->keep_common_prefix(other));
  EXPECT_EQ(reused.n_before, std::ssize(ids));
  EXPECT_EQ(reused.n_common, 6);
  EXPECT_EQ(reused.n_kept, 6);
  EXPECT_EQ(reused.obstacle, "");
  EXPECT_EQ(session->cache().n_tokens(), 6);
}

// As a cache with recurrent state does, from its last context checkpoint before the prompt differs.
TEST(Session, GoesBackToAnEarlierState) {
  const auto session = must(Session::open({.model = kModel}));
  const std::vector<std::int32_t> ids = encode(*session, kPrompt);
  ASSERT_GT(ids.size(), 8u);
  must(session->feed(ids));
  const cache::Cache whole = session->cache();
  std::vector<std::int64_t> asked;
  const auto earlier = [&](std::int64_t n_tokens) -> Result<std::optional<cache::Cache>> {
    asked.push_back(n_tokens);
    if (n_tokens < 4) return std::optional<cache::Cache>();
    return std::optional(must(cache::truncate(whole, 4)));
  };
  const auto reuse = [&](const std::vector<std::int32_t>& prompt) {
    session->cache() = whole;
    session->cache().layers.emplace_back(cache::StateLayer{});  // cannot go back
    return must(session->keep_common_prefix(prompt, earlier));
  };
  std::vector<std::int32_t> other(ids.begin(), ids.begin() + 6);
  other.push_back(ids[6] + 1);
  PrefixReuse reused = reuse(other);
  EXPECT_EQ(reused.n_common, 6);
  EXPECT_EQ(reused.n_kept, 4);
  EXPECT_THAT(reused.obstacle, HasSubstr("its state belongs to all of the tokens"));
  EXPECT_EQ(session->cache().tokens, std::vector(ids.begin(), ids.begin() + 4));

  // A token of the prompt remains to be computed.
  EXPECT_EQ(reuse(std::vector(ids.begin(), ids.begin() + 5)).n_kept, 4);
  EXPECT_EQ(reuse(ids).n_kept, 4);
  // Nothing is asked for if the prompt continues the cache.
  std::vector<std::int32_t> longer = ids;
  longer.push_back(7);
  EXPECT_EQ(reuse(longer).n_kept, std::ssize(ids));
  EXPECT_THAT(asked, testing::ElementsAre(6, 4, std::ssize(ids) - 1));

  other.resize(3);
  other.push_back(ids[3] + 1);
  reused = reuse(other);
  EXPECT_EQ(reused.n_common, 3);
  EXPECT_EQ(reused.n_kept, 0);

  // A state of other tokens is not taken.
  const auto wrong = [&](std::int64_t) -> Result<std::optional<cache::Cache>> {
    cache::Cache cache = must(cache::truncate(whole, 2));
    cache.tokens[1] += 1;
    return std::optional(std::move(cache));
  };
  session->cache() = whole;
  session->cache().layers.emplace_back(cache::StateLayer{});
  EXPECT_EQ(must(session->keep_common_prefix(other, wrong)).n_kept, 0);
}

TEST(Session, NamesTheFileThatIsToBlame) {
  const TempDir dir;
  const std::string path = (dir / "alice.tqkv").string();
  const auto session = must(Session::open({.model = kModel}));
  must(session->feed(encode(*session, kPrompt)));
  must(format::write_cache_file(session->cache(), path, {}, {}));

  const auto no_model = Session::open({.model = "/nonexistent"});
  ASSERT_FALSE(no_model);
  EXPECT_EQ(no_model.error().file, "/nonexistent");
  const auto no_cache = Session::open({.model = kModel, .cache = "/nonexistent"});
  ASSERT_FALSE(no_cache);
  EXPECT_EQ(no_cache.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(no_cache.error().file, "/nonexistent");
  const auto other = Session::open({.model = kOtherModel, .cache = path});
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ErrorCode::kMismatch);
  EXPECT_EQ(other.error().file, path);
  const auto bias = Session::open({.model = kModel, .sampling = {.logit_bias = {{1 << 30, 1}}}});
  ASSERT_FALSE(bias);
  EXPECT_EQ(bias.error().code, ErrorCode::kInvalidArgument);
}

// As a small file of zeros may have them, which take gigabytes in memory.
TEST(Session, RefusesOtherLayersBeforeTheirValuesAreRead) {
  const TempDir dir;
  const std::string path = (dir / "other.tqkv").string();
  const auto session = must(Session::open({.model = kModel}));
  must(session->feed(encode(*session, kPrompt)));
  cache::Cache other = session->cache();
  other.layers.pop_back();
  must(format::write_cache_file(other, path, {}, {}));
  for (const bool map : {false, true}) {
    int n_read = 0;
    const auto count = [&](std::uint64_t, std::uint64_t) { return ++n_read > 0; };
    const auto refused = Session::open({.model = kModel, .cache = path, .map = map}, count);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kMismatch);
    EXPECT_EQ(refused.error().file, path);
    EXPECT_THAT(refused.error().message, HasSubstr("layers; the model has"));
    EXPECT_EQ(n_read, 0);
  }
}

// What a store has under the model's name need not be of the model.
TEST(PromptStore, LeavesOtherLayersInTheStore) {
  const TempDir dir;
  const std::string url = "dir:" + (dir / "store").string();
  std::string text;
  for (int i = 0; i < 30; ++i) text += kPrompt;
  const auto session = must(Session::open({.model = kModel}));
  const std::vector<std::int32_t> ids = encode(*session, text);
  ASSERT_GT(ids.size(), 256u);
  must(session->feed(ids));
  cache::Cache other = session->cache();
  other.layers.pop_back();
  const auto backend = must(store::open_backend(url, {}));
  must(store::Library(*backend, {}).put_cache(other, "other"));

  int n_read = 0;
  const auto count = [&](std::uint64_t, std::uint64_t) { return ++n_read > 0; };
  const auto reading = must(PromptStore::open({.url = url, .read_only = true}));
  const auto next = must(Session::open({.model = kModel}));
  must(next->begin_from(*reading, ids, count));
  EXPECT_EQ(next->cache().n_tokens(), 0);
  EXPECT_EQ(n_read, 0);
  EXPECT_THAT(reading->warning(), HasSubstr("layers; the model has"));
  EXPECT_THAT(reading->warning(), HasSubstr("continuing without it"));
}

// Values of a store that overflow do not end the run: its text is that of a run without a store.
TEST(PromptStore, ContinuesWithoutPoisonedBlocks) {
  const TempDir dir;
  const std::string url = "dir:" + (dir / "store").string();
  std::string text;
  for (int i = 0; i < 30; ++i) text += kPrompt;
  const auto plain = must(Session::open({.model = kModel}));
  const std::vector<std::int32_t> ids = encode(*plain, text);
  ASSERT_GT(ids.size(), 256u);
  must(plain->feed(ids));
  cache::Cache poisoned = plain->cache();
  const std::vector<std::int32_t> expected = generated(*plain, 5);
  auto& keys = std::get<cache::DenseTensor>(cache::attention_of(poisoned.layers[3])->k);
  const float infinity = std::numeric_limits<float>::infinity();
  store_f32(keys.dtype, {&infinity, 1}, keys.blocks[0].data());
  const auto backend = must(store::open_backend(url, {}));
  must(store::Library(*backend, {}).put_cache(poisoned, "poisoned"));

  const auto reading = must(PromptStore::open({.url = url}));
  const auto next = must(Session::open({.model = kModel}));
  must(next->begin_from(*reading, ids));
  EXPECT_GE(next->cache().n_tokens(), 256);
  must(next->feed(std::span(ids).subspan(static_cast<std::size_t>(next->cache().n_tokens()))));
  EXPECT_EQ(generated(*next, 5), expected);
  EXPECT_THAT(reading->warning(), HasSubstr("layer 3: token"));
  EXPECT_THAT(reading->warning(), HasSubstr("continuing without it"));
  EXPECT_EQ(reading->reused_tokens(), 0);
  must(reading->finish(next->cache()));
}

TEST(PromptStore, GivesTheNextSessionWhatTheLastOnePut) {
  const TempDir dir;
  const std::string url = "dir:" + (dir / "store").string();
  std::string text;
  for (int i = 0; i < 60; ++i) text += kPrompt;  // more than two token blocks

  const auto first = must(Session::open({.model = kModel}));
  const std::vector<std::int32_t> ids = encode(*first, text);
  ASSERT_GT(ids.size(), 512u);
  const auto putting = must(PromptStore::open({.url = url, .name = "alice"}));
  must(first->begin_from(*putting, ids));
  EXPECT_EQ(first->cache().n_tokens(), 0);
  must(first->feed(ids));
  must(putting->finish(first->cache()));
  EXPECT_EQ(putting->named()->n_tokens, std::ssize(ids));
  EXPECT_EQ(putting->warning(), "");

  const auto second = must(Session::open({.model = kModel}));
  const auto store = must(PromptStore::open({.url = url, .read_only = true}));
  must(second->begin_from(*store, ids));
  EXPECT_GE(second->cache().n_tokens(), 512);
  EXPECT_EQ(store->reused_tokens(), second->cache().n_tokens());
  EXPECT_FALSE(store->found_layers().empty());
  must(second->feed(std::span(ids).subspan(static_cast<std::size_t>(store->reused_tokens()))));
  EXPECT_EQ(generated(*second, 8), generated(*first, 8));

  const auto taken = must(PromptStore::open({.url = url, .name = "alice"}));
  const auto third = must(Session::open({.model = kModel}));
  const Result<void> refused = third->begin_from(*taken, ids);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
}

TEST(PromptStore, WarnsAndGivesNoneWhenItCannotBeReached) {
  std::string warning;
  PromptStoreOptions options;
  options.url = "dir:/nonexistent/store";
  options.read_only = true;
  options.on_warning = [&](const std::string& where, const std::string& message) {
    warning = where + ": " + message;
  };
  EXPECT_EQ(must(PromptStore::open(options)), nullptr);
  EXPECT_THAT(warning, HasSubstr("store: "));
  options.name = "alice";
  EXPECT_FALSE(PromptStore::open(options));
  options.url = "nothing";
  const auto bad = PromptStore::open(options);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace tqcache::session
