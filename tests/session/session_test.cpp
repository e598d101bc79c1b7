// A session of the library does what `tqcache generate` does, without the program.

#include "tqcache/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/temp_dir.h"
#include "tqcache/cache.h"
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
