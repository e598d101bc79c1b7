// Routes of llama-server whose requests or answers are of another form.

#include "serve/proxy_fixture.h"

namespace tqcache::test {
namespace {

using testing::HasSubstr;

// A request of Anthropic's interface, after earlier turns.
std::string messages_request(const nlohmann::json& turns, bool stream) {
  const nlohmann::json body = {{"system", std::string(1000, 's')},
                               {"messages", turns},
                               {"max_tokens", 10},
                               {"stream", stream}};
  return post_text("/v1/messages", body.dump());
}

// The first event of a stream says what was reused, and the last one how long the answer is.
TEST_F(ProxyTest, StreamedMessagesTellWhatWasReused) {
  start_llama();
  start_proxy();
  Json turns = {{{"role", "user"}, {"content", "a"}}};
  const std::string answer = raw_exchange(proxy_->port(), messages_request(turns, true));
  EXPECT_THAT(answer, HasSubstr("message_stop"));
  const auto n_prompt = std::to_string(std::string("<system><user>a<assistant>").size() + 1000);
  ASSERT_TRUE(wait_until([&] { return proxy_->n_logged("event=prompt ") == 1; }));
  EXPECT_THAT(proxy_->logged(), HasSubstr("event=prompt tokens=" + n_prompt + " reused=0 "));
  EXPECT_EQ(metric("tqcache_computed_tokens_total"), std::stod(n_prompt));
  // With that the next turn is known to go on in its slot, without a look into the store.
  ASSERT_TRUE(wait_for_saves(1));
  const double n_lookups = metric("tqcache_store_lookups_total");
  const std::string text =
      FakeLlama::text_of(llama_->slot(0).tokens) + FakeLlama::text_of(llama_->slot(1).tokens);
  turns.push_back({{"role", "assistant"}, {"content", text.substr(std::stoul(n_prompt))}});
  turns.push_back({{"role", "user"}, {"content", "b"}});
  raw_exchange(proxy_->port(), messages_request(turns, true));
  ASSERT_TRUE(wait_until([&] { return proxy_->n_logged("event=prompt ") == 2; }));
  EXPECT_THAT(proxy_->logged(), HasSubstr(" from=slot"));
  EXPECT_EQ(metric("tqcache_store_lookups_total"), n_lookups) << proxy_->logged();
}

// The beginning of the stream has left the end that is remembered.
TEST_F(ProxyTest, LongStreamOfMessagesTellsWhatWasReused) {
  start_llama();
  llama_->n_repeats = 300;
  start_proxy();
  const Json turns = {{{"role", "user"}, {"content", "a"}}};
  const std::string answer = raw_exchange(proxy_->port(), messages_request(turns, true));
  EXPECT_GT(answer.size(), std::size_t{40} << 10);
  ASSERT_TRUE(wait_until([&] { return proxy_->n_logged("event=prompt ") == 1; }));
  EXPECT_THAT(proxy_->logged(), HasSubstr("event=prompt tokens=1026 reused=0 "));
}

// llama-server --api-prefix /llama.
TEST_F(ProxyTest, RoutesMayHaveAPrefix) {
  start_llama();
  llama_->prefix = "/llama";
  start_proxy("/llama");
  const std::string request = post_text(
      "/llama/v1/chat/completions", chat({{"system", long_text(1, 1000)}, {"user", "a"}}).dump());
  EXPECT_EQ(status_of(raw_exchange(proxy_->port(), request)), 200);
  ASSERT_TRUE(wait_for_saves(1)) << proxy_->logged();
  EXPECT_EQ(status_of(raw_exchange(proxy_->port(), get_text("/llama/props"))), 200);
  EXPECT_EQ(status_of(raw_exchange(proxy_->port(), get_text("/health"))), 200);
  // Without the prefix it is what llama-server says it is.
  EXPECT_EQ(status_of(raw_exchange(proxy_->port(), get_text("/props"))), 404);

  start_llama();
  llama_->prefix = "/llama";
  start_proxy("/llama/");
  const Json answer = Json::parse(body_of(raw_exchange(proxy_->port(), request)));
  EXPECT_GE(answer.at("timings").at("cache_n"), 1000);
}

TEST_F(ProxyTest, PrefixesThatTheServerWouldReadOtherwiseAreRefused) {
  for (const char* const path : {"/a//b", "/../a", "/a?b", "/a%41", "/a b", "/a#b"}) {
    serve::UpstreamOptions options;
    options.url = std::string("http://127.0.0.1:8080") + path;
    EXPECT_FALSE(serve::Upstream::open(options)) << path;
  }
  for (const char* const path : {"", "/", "/a", "/a/b/", "/a-b_c.d"}) {
    serve::UpstreamOptions options;
    options.url = std::string("http://127.0.0.1:8080") + path;
    EXPECT_TRUE(serve::Upstream::open(options)) << path;
  }
}

}  // namespace
}  // namespace tqcache::test
