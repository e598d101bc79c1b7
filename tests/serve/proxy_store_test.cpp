// What a proxy finds of stored prompts that part from the next one, what its store looks like to
// `tqcache store`, and what goes when the store is full.

#include "serve/proxy_fixture.h"
#include "tqcache/serve/hit_scores.h"
#include "tqcache/upkeep.h"

namespace tqcache::test {
namespace {

using Messages = std::vector<std::pair<std::string, std::string>>;

class ProxyStoreTest : public ProxyTest {
 protected:
  void restart() {
    start_llama();
    start_proxy();
  }
  // The number of tokens of a rendered conversation.
  static std::int64_t n_tokens(const Messages& messages) {
    return std::ssize(FakeLlama::render(chat(messages).at("messages")));
  }
  Json complete(const Json& body) {
    const std::string answer = raw_exchange(proxy_->port(), post_text("/completion", body.dump()));
    EXPECT_EQ(status_of(answer), 200) << answer;
    return Json::parse(body_of(answer), nullptr, false);
  }
};

// A template may leave out what a model has thought, so that the next prompt parts where the answer
// began. A warm server reuses everything before.
TEST_F(ProxyStoreTest, APromptThatPartsWhereTheAnswerBegan) {
  for (const char* const config : {"lossless", "turbo"}) {
    proxy_.reset();
    backend_ = std::move(*store::open_backend("memory:", {}));
    options_.keeper.config = config;
    restart();
    const Messages first = {{"system", long_text(1, 1500)}, {"user", "first"}};
    std::int64_t n_cached = -1;
    ask(first, n_cached);
    ASSERT_TRUE(wait_for_saves(1)) << proxy_->logged();
    const std::int64_t n_prompt = n_tokens(first);
    ASSERT_EQ(n_prompt / 256, 5);                      // the prompt ends in the sixth block,
    ASSERT_GT((n_prompt + 20) / 256, n_prompt / 256);  // and the answer in the seventh
    restart();
    Messages next = first;
    next.emplace_back("assistant", "something else");
    next.emplace_back("user", "second");
    ask(next, n_cached);
    EXPECT_EQ(n_cached, n_prompt) << config << proxy_->logged();
    if (std::string(config) == "lossless") {
      EXPECT_EQ(llama_->n_wrong_restores, 0);
    }
  }
}

// A model may write other tokens than those that its text is cut into later.
TEST_F(ProxyStoreTest, AnAnswerWhoseTextHasOtherTokens) {
  restart();
  llama_->n_repeats = 60;
  llama_->others_from = 700;
  const std::string prompt = long_text(1, 1500);
  const Json answer = complete({{"prompt", prompt}});
  ASSERT_TRUE(wait_for_saves(1)) << proxy_->logged();
  restart();
  const std::string text = prompt + answer.at("content").get<std::string>();
  ASSERT_GT(text.size(), 1500u + 700 + 512);
  const Json next = complete({{"prompt", text + " and more"}});
  EXPECT_EQ(next.at("timings").at("cache_n"), 1500 + 700) << proxy_->logged();
  EXPECT_EQ(llama_->n_wrong_restores, 0);
}

// The last words of a text may be joined with those that follow, across the end of a token block.
TEST_F(ProxyStoreTest, WordsThatAreJoinedAtTheEnd) {
  restart();
  const auto tokens = FakeLlama::tokens_of(long_text(1, 1283));
  complete({{"prompt", tokens}, {"n_predict", 0}});
  ASSERT_TRUE(wait_for_saves(1)) << proxy_->logged();
  for (const std::int64_t n_common : {1282, 1278, 1270, 1100}) {
    restart();
    std::vector<std::int32_t> next(tokens.begin(), tokens.begin() + n_common);
    next.resize(next.size() + 300, 7);
    const Json answer = complete({{"prompt", next}, {"n_predict", 0}});
    EXPECT_EQ(answer.at("timings").at("cache_n"), n_common) << proxy_->logged();
    EXPECT_EQ(llama_->n_wrong_restores, 0);
  }
}

// What serve stores is a store like any other.
TEST_F(ProxyStoreTest, TheStoreIsThatOfTheTool) {
  restart();
  std::int64_t n_cached = -1;
  const Messages messages = {{"system", long_text(1, 1500)}, {"user", "a"}};
  ask(messages, n_cached);
  ASSERT_TRUE(wait_for_saves(1));
  proxy_.reset();
  const store::StoreStats stats = *store::read_stats(*backend_);
  EXPECT_GE(stats.kinds[static_cast<std::size_t>(store::BlobKind::kBlock)].blobs, 5u);
  EXPECT_EQ(stats.others.blobs, 0u);
  const store::CheckReport checked = *store::check(*backend_, {.read_data = true});
  EXPECT_TRUE(checked.is_whole());
  EXPECT_EQ(checked.unfindable.blobs, 0u);
  // A copy of the store serves as well.
  auto copy = std::move(*store::open_backend("memory:", {}));
  EXPECT_TRUE(store::copy_store(*backend_, *copy, {})->is_whole());
  backend_ = std::move(copy);
  restart();
  ask(messages, n_cached);
  EXPECT_GE(n_cached, 1500);
  EXPECT_EQ(llama_->n_wrong_restores, 0);
  // What another program removes is computed again.
  proxy_.reset();
  const auto removed =
      store::collect(*backend_, {.max_bytes = 0, .grace = std::chrono::seconds(0)});
  EXPECT_EQ(removed->bytes_after, 0u);
  restart();
  ask(messages, n_cached);
  EXPECT_EQ(n_cached, 0);
}

// --- eviction by decayed hits

constexpr double kNow = 1'800'000'000;

std::int64_t idle_of(const serve::HitScores& scores, const std::string& name, double now = kNow) {
  return scores.idle(name, std::chrono::seconds(1'000'000), now).count();
}

TEST(HitScores, OldHitsCountLess) {
  serve::HitScores scores;
  const std::vector<std::string> a = {"b/000000/aa"}, b = {"b/000000/bb"}, c = {"b/000000/cc"};
  const double day = serve::HitScores::kHalfLife;
  EXPECT_EQ(idle_of(scores, a[0]), 1'000'000);  // never used: as the store says
  scores.hit(a, kNow - day);
  EXPECT_EQ(idle_of(scores, a[0]), static_cast<std::int64_t>(day));
  // Two uses of a day ago are one of now.
  scores.hit(a, kNow - day);
  EXPECT_EQ(idle_of(scores, a[0]), 0);
  // Eight of three days ago, too.
  for (int i = 0; i < 8; ++i) scores.hit(b, kNow - 3 * day);
  EXPECT_NEAR(static_cast<double>(idle_of(scores, b[0])), 0, 2);
  // A later one adds to them; many uses are worth more than a single new one.
  scores.hit(b, kNow);
  EXPECT_NEAR(static_cast<double>(idle_of(scores, b[0])), -day, 2);
  scores.hit(c, kNow);
  EXPECT_LT(idle_of(scores, b[0]), idle_of(scores, c[0]));
  // The order of two blobs stays the same while time passes.
  EXPECT_LT(idle_of(scores, b[0], kNow + 5 * day), idle_of(scores, c[0], kNow + 5 * day));
}

TEST(HitScores, SurviveInAFile) {
  const TempDir dir;
  const std::string path = (dir / "hits").string();
  serve::HitScores scores;
  ASSERT_TRUE(serve::load_scores(path, scores));  // there is none
  scores.hit(std::vector<std::string>{"b/000000/aa", "s/bb/0"}, kNow);
  EXPECT_TRUE(scores.has_changed());
  ASSERT_TRUE(serve::save_scores(path, scores));
  EXPECT_FALSE(scores.has_changed());
  serve::HitScores again;
  ASSERT_TRUE(serve::load_scores(path, again));
  EXPECT_EQ(again.size(), 2u);
  EXPECT_EQ(idle_of(again, "s/bb/0", kNow + 7), 7);
}

TEST(HitScores, IgnoreWhatIsNoScore) {
  serve::HitScores scores;
  scores.add_text(
      "b/1 5\nb/2 x\nb/3\n b/4 5\nb/5 -1\nb/6 99999999999999\nb/7 5 5\n../b 5\n\n\xff\xfe 5\nb/8 "
      "6");
  EXPECT_EQ(scores.size(), 2u);
  EXPECT_EQ(idle_of(scores, "b/8", 10), 4);
}

TEST(HitScores, AreLimited) {
  serve::HitScores scores;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < serve::HitScores::kMaxNames; ++i) {
    names.push_back("b/" + std::to_string(i));
  }
  scores.hit(names, kNow - 1000);
  scores.hit(std::vector<std::string>{"b/new"}, kNow);
  EXPECT_LE(scores.size(), serve::HitScores::kMaxNames);
  EXPECT_EQ(idle_of(scores, "b/new"), 0);
}

// Of two prompts that were used last at the same time, the one with more hits stays.
TEST_F(ProxyStoreTest, WhatWasHitOftenStaysLonger) {
  restart();
  std::int64_t n_cached = -1;
  const auto about = [](int i) { return Messages{{"system", long_text(i, 1500)}, {"user", "a"}}; };
  for (const int i : {1, 2}) {
    ask(about(i), n_cached);
    ASSERT_TRUE(wait_for_saves(static_cast<std::size_t>(i)));
  }
  proxy_.reset();
  const std::uint64_t all = store::read_stats(*backend_)->kinds[1].bytes;
  serve::HitScores scores;
  const auto keep_scores = [&](int i, int n_times) {
    options_.keeper.max_bytes = all * 100;
    for (int n = 0; n < n_times; ++n) {
      restart();
      ask(about(i), n_cached);
      EXPECT_GE(n_cached, 1500);
      proxy_->server->stop(std::chrono::seconds(280));
      proxy_->proxy->flush(std::chrono::seconds(280));
    }
  };
  keep_scores(1, 3);
  keep_scores(2, 1);
  ASSERT_TRUE(serve::load_scores((slot_dir_ / ".tqcache-serve.hits").string(), scores));
  EXPECT_GT(scores.size(), 10u);
  const double now = static_cast<double>(std::time(nullptr));
  store::CollectOptions options{.max_bytes = all * 3 / 4, .grace = std::chrono::seconds(0)};
  options.order_by = [&](std::string_view name, std::chrono::seconds idle) {
    return scores.idle(name, idle, now);
  };
  proxy_.reset();
  const auto report = store::collect(*backend_, options);
  ASSERT_TRUE(report);
  EXPECT_LT(report->bytes_after, all);
  options_.keeper.max_bytes.reset();
  restart();
  ask(about(1), n_cached);
  EXPECT_GE(n_cached, 1280);
  ask(about(2), n_cached);
  EXPECT_LT(n_cached, 1280);
}

// llama-server without options: a request that ends while another one's prompt is restored leaves a
// slot that the next task clears.
TEST_F(ProxyTest, WhatEndsDuringARestoreIsSaved) {
  idle_save_ = std::chrono::hours(24 * 365);
  start_llama(4);
  llama_->clears_idle_slots = true;
  start_proxy();
  std::int64_t n_cached = -1;
  const auto b = [](const char* question) {
    return std::vector<std::pair<std::string, std::string>>{{"system", long_text(2, 1000)},
                                                            {"user", question}};
  };
  ask(b("first"), n_cached);
  const Json a = chat({{"system", long_text(1, 1000)}, {"user", "a"}}, true);
  llama_->is_endless = true;
  RawSocket socket = RawSocket::connect(proxy_->port());
  socket.send(post_text("/v1/chat/completions", a.dump()));
  socket.receive_until("data: ");
  llama_->before_restore = [&] {
    llama_->is_endless = false;
    socket.receive_until("[DONE]");
  };
  ask(b("second"), n_cached);
  EXPECT_GE(n_cached, 1000) << proxy_->logged();
  llama_->before_restore = [] {};
  ASSERT_TRUE(wait_for_saves(2)) << proxy_->logged();

  start_llama(4);
  start_proxy();
  ask({{"system", long_text(1, 1000)}, {"user", "b"}}, n_cached);
  EXPECT_GE(n_cached, 1000) << proxy_->logged();
}

// After a restart of both nobody knows any more which prompts part where.
TEST_F(ProxyTest, CommonSystemPromptIsFoundToItsLastTokenAfterARestart) {
  const std::string system = long_text(1, 1100);  // 76 tokens behind a block boundary
  std::int64_t n_cached = -1;
  std::vector<std::pair<std::string, std::string>> first = {{"system", system},
                                                            {"user", long_text(2, 700)}};
  // Its last turns are in the store with their ends, and these go when others follow.
  for (int turn = 0; turn < 4; ++turn) {
    start_llama();
    start_proxy();
    first.emplace_back("assistant", ask(first, n_cached));
    ASSERT_TRUE(wait_for_saves(1)) << proxy_->logged();
    first.emplace_back("user", long_text(3 + turn, 300));
  }
  start_llama();
  start_proxy();
  ask({{"system", system}, {"user", "another question"}}, n_cached);
  EXPECT_GE(n_cached, std::ssize("<system>" + system + "<user>")) << proxy_->logged();
}

}  // namespace
}  // namespace tqcache::test
