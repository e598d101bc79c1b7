// The end of a proxy whose upstream server does not answer. All waiting times are so long that a
// test which waits for one of them does not end.

#include <thread>

#include "serve/proxy_fixture.h"

namespace tqcache::test {
namespace {

constexpr std::chrono::hours kYear(24 * 365);

TEST_F(ProxyTest, EndsAlthoughTheServerHangs) {
  idle_save_ = kYear;
  options_.upstream.idle_timeout = kYear;
  start_llama();
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1000)}, {"user", "a"}}, n_cached);  // is not saved yet
  llama_->hangs = true;
  std::thread client([&] { send(chat({{"system", long_text(2, 1000)}, {"user", "b"}})); });
  // Its slots are looked at before, for which nobody waits who could leave.
  std::thread other(
      [&] { raw_exchange(proxy_->port(), post_text("/v1/embeddings", R"({"input":"c"})")); });
  EXPECT_TRUE(wait_until([&] { return llama_->n_hanging >= 2; }));
  proxy_->proxy->end_calls_within(std::chrono::milliseconds(0));
  proxy_->server->stop(std::chrono::milliseconds(0));
  proxy_->proxy->flush(kYear);
  client.join();
  other.join();
  EXPECT_EQ(metric("tqcache_saves_total", {{"reason", "shutdown"}}), 0);
}

// As where its port is taken: it was opened, and nothing is served.
TEST_F(ProxyTest, WithoutAFlushEndsAlthoughTheServerHangs) {
  options_.upstream.idle_timeout = kYear;
  start_llama();
  llama_->hangs = true;
  start_proxy();
  EXPECT_TRUE(wait_until([&] { return llama_->n_hanging >= 1; }));
  proxy_.reset();
  EXPECT_TRUE(wait_until([&] { return llama_->n_hanging == 0; }));
}

TEST_F(ProxyTest, SaveThatWasBrokenOffAtTheEndIsMadeOnceMore) {
  options_.upstream.idle_timeout = kYear;
  start_llama();
  start_proxy();
  std::int64_t n_cached = -1;
  std::vector<std::pair<std::string, std::string>> messages = {{"system", long_text(1, 1000)},
                                                               {"user", "a"}};
  messages.emplace_back("assistant", ask(messages, n_cached));
  ASSERT_TRUE(wait_for_saves(1)) << proxy_->logged();
  llama_->n_saves_that_hang = 1;
  messages.emplace_back("user", long_text(2, 500));
  messages.emplace_back("assistant", ask(messages, n_cached));
  EXPECT_TRUE(wait_until([&] { return llama_->n_hanging == 1; }));
  proxy_->server->stop(std::chrono::milliseconds(0));
  proxy_->proxy->flush(kYear);
  EXPECT_EQ(metric("tqcache_saves_total", {{"reason", "shutdown"}}), 1) << proxy_->logged();

  start_llama();
  start_proxy();
  messages.emplace_back("user", "b");
  ask(messages, n_cached);
  EXPECT_GE(n_cached, 1500);
}

}  // namespace
}  // namespace tqcache::test
