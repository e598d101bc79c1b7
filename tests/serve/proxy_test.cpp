#include "tqcache/serve/proxy.h"

#include "serve/proxy_fixture.h"
#include "tqcache/serve/llama_server.h"
#include "tqcache/serve/slot_table.h"

namespace tqcache::test {
namespace {

using serve::Api;
using testing::HasSubstr;
using testing::Not;

TEST_F(ProxyTest, APromptSurvivesARestartOfBoth) {
  start_llama();
  start_proxy();
  std::vector<std::pair<std::string, std::string>> messages = {{"system", long_text(1, 1500)},
                                                               {"user", "first"}};
  std::int64_t n_cached = -1;
  messages.emplace_back("assistant", ask(messages, n_cached));
  EXPECT_EQ(n_cached, 0);
  ASSERT_TRUE(wait_for_saves(1)) << proxy_->logged();
  for (int turn = 0; turn < 3; ++turn) {
    start_llama();
    start_proxy();
    messages.emplace_back("user", "turn " + std::to_string(turn));
    messages.emplace_back("assistant", ask(messages, n_cached));
    EXPECT_GE(n_cached, 1280) << proxy_->logged();
    EXPECT_EQ(metric("tqcache_restores_total"), 1);
  }
  EXPECT_EQ(llama_->n_wrong_restores, 0);
  // Nothing is left but the lock.
  EXPECT_TRUE(wait_until([&] { return entry_names().size() == 1; }));
}

TEST_F(ProxyTest, AServerWithAStreamForEachSlot) {
  start_llama();
  llama_->n_streams = 2;
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1500)}, {"user", "first"}}, n_cached);
  ASSERT_TRUE(wait_for_saves(1));
  start_llama();
  llama_->n_streams = 2;
  start_proxy();
  ask({{"system", long_text(1, 1500)}, {"user", "second"}}, n_cached);
  EXPECT_GE(n_cached, 1280);
  EXPECT_EQ(llama_->n_wrong_restores, 0);
}

TEST_F(ProxyTest, AConversationGoesOnInItsSlotWithoutTheStore) {
  start_llama();
  start_proxy();
  std::vector<std::pair<std::string, std::string>> messages = {{"system", long_text(1, 1000)},
                                                               {"user", "first"}};
  std::int64_t n_cached = -1;
  messages.emplace_back("assistant", ask(messages, n_cached));
  const std::size_t before = FakeLlama::render(chat(messages).at("messages")).size();
  messages.emplace_back("user", "second");
  ask(messages, n_cached);
  EXPECT_GE(n_cached, static_cast<std::int64_t>(before) - 20);
  EXPECT_EQ(metric("tqcache_store_lookups_total"), 1);
  EXPECT_EQ(metric("tqcache_prompts_total", {{"outcome", "warm"}}), 1);
}

TEST_F(ProxyTest, TwoConversationsHaveTwoSlots) {
  start_llama();
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1000)}, {"user", "a"}}, n_cached);
  ask({{"system", long_text(2, 1000)}, {"user", "a"}}, n_cached);
  ASSERT_TRUE(wait_for_saves(2));
  ask({{"system", long_text(1, 1000)}, {"user", "b"}}, n_cached);
  EXPECT_GE(n_cached, 1000);
  ask({{"system", long_text(2, 1000)}, {"user", "b"}}, n_cached);
  EXPECT_GE(n_cached, 1000);
  EXPECT_EQ(metric("tqcache_restores_total"), 0);
}

TEST_F(ProxyTest, MoreConversationsThanSlots) {
  start_llama();
  start_proxy();
  std::int64_t n_cached = -1;
  for (int i = 0; i < 6; ++i) {
    ask({{"system", long_text(i, 1000)}, {"user", "a"}}, n_cached);
    EXPECT_LT(n_cached, 256);
    ASSERT_TRUE(wait_for_saves(static_cast<std::size_t>(i) + 1)) << proxy_->logged();
  }
  for (int i = 0; i < 6; ++i) {
    ask({{"system", long_text(i, 1000)}, {"user", "b"}}, n_cached);
    EXPECT_GE(n_cached, 768) << i;
  }
  EXPECT_EQ(llama_->n_wrong_restores, 0);
}

TEST_F(ProxyTest, ShortPromptsAreNotKept) {
  start_llama();
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"user", "short"}}, n_cached);
  ask({{"user", "another"}}, n_cached);
  EXPECT_EQ(metric("tqcache_store_lookups_total"), 0);
  EXPECT_EQ(llama_->n_saves, 2);  // of the probe
}

TEST_F(ProxyTest, EachAnswerIsSaved) {
  start_llama();
  start_proxy();
  std::vector<std::pair<std::string, std::string>> messages = {{"system", long_text(1, 700)},
                                                               {"user", "a"}};
  std::int64_t n_cached = -1;
  for (std::size_t turn = 1; turn < 4; ++turn) {
    messages.emplace_back("assistant", ask(messages, n_cached));
    ASSERT_TRUE(wait_for_saves(turn)) << proxy_->logged();
    messages.emplace_back("user", "more");
  }
  EXPECT_EQ(metric("tqcache_saves_total", {{"reason", "idle"}}), 3);
  start_llama();
  start_proxy();
  ask(messages, n_cached);
  // All but what the last request added.
  EXPECT_GE(n_cached, std::ssize(FakeLlama::render(chat(messages).at("messages"))) - 64);
}

TEST_F(ProxyTest, WhatHasNotRestedIsSavedAtTheEnd) {
  idle_save_ = std::chrono::hours(24 * 365);
  start_llama();
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1000)}, {"user", "a"}}, n_cached);
  proxy_->server->stop(std::chrono::seconds(280));
  proxy_->proxy->flush(std::chrono::seconds(280));
  EXPECT_EQ(metric("tqcache_saves_total", {{"reason", "shutdown"}}), 1);
  start_llama();
  start_proxy();
  ask({{"system", long_text(1, 1000)}, {"user", "b"}}, n_cached);
  EXPECT_GE(n_cached, 1000);
}

// llama-server without options clears idle slots when a task starts.
TEST_F(ProxyTest, ClearedSlotIsRestoredFromTheStore) {
  idle_save_ = std::chrono::hours(24 * 365);
  start_llama(4);
  llama_->clears_idle_slots = true;
  start_proxy();
  std::vector<std::pair<std::string, std::string>> a = {{"system", long_text(1, 1000)},
                                                        {"user", "a"}},
                                                   b = {{"system", long_text(2, 1000)},
                                                        {"user", "b"}};
  std::int64_t n_cached = -1;
  for (int turn = 0; turn < 4; ++turn) {
    for (auto* const each : {&a, &b}) {
      const auto n_before = std::ssize(FakeLlama::render(chat(*each).at("messages")));
      each->emplace_back("assistant", ask(*each, n_cached));
      // The one turn in which the server is found to have no RAM for prompts computes all.
      if (turn > 1) {
        EXPECT_GE(n_cached, n_before - 64) << turn << proxy_->logged();
      }
      each->emplace_back("user", "more");
    }
  }
  EXPECT_EQ(llama_->n_wrong_restores, 0);
}

// Two agents with one long system prompt have a slot each, if slots keep their content.
TEST_F(ProxyTest, CommonSystemPromptIsRestoredIntoAnEmptySlot) {
  start_llama(4);
  llama_->n_streams = 4;
  start_proxy();
  const std::string system = long_text(1, 1500);
  std::vector<std::vector<std::pair<std::string, std::string>>> chats;
  for (int i = 0; i < 2; ++i) {
    chats.push_back({{"system", system + long_text(i + 2, 300)}, {"user", "a"}});
  }
  std::int64_t n_cached = -1;
  for (int turn = 0; turn < 3; ++turn) {
    for (auto& messages : chats) {
      messages.emplace_back("assistant", ask(messages, n_cached));
      messages.emplace_back("user", "more");
      EXPECT_TRUE(turn == 0 || n_cached > 1800) << turn << proxy_->logged();
    }
    // The second one has begun with the tokens of the first.
    EXPECT_EQ(llama_->n_restores, 1 + 1) << proxy_->logged();  // and one of the probe
  }
  EXPECT_GE(metric("tqcache_reused_tokens_total", {{"from", "store"}}), 1508);
  EXPECT_EQ(llama_->n_wrong_restores, 0);
}

TEST_F(ProxyTest, ShiftedContextIsNotStored) {
  start_llama(1);
  start_proxy();
  llama_->shifts_context = true;
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1500)}, {"user", "a"}}, n_cached);
  llama_->shifts_context = false;
  ask({{"system", long_text(2, 1500)}, {"user", "a"}}, n_cached);
  ASSERT_TRUE(wait_for_saves(1)) << proxy_->logged();
  ask({{"system", long_text(1, 1500)}, {"user", "a"}}, n_cached);
  EXPECT_LT(n_cached, 256);
}

TEST_F(ProxyTest, RequestWithAnAdapterIsNotStored) {
  start_llama(1);
  start_proxy();
  Json body = chat({{"system", long_text(1, 1500)}, {"user", "a"}});
  body["lora"] = {{{"id", 0}, {"scale", 5}}};
  ASSERT_EQ(status_of(send(body)), 200);
  std::int64_t n_cached = -1;
  ask({{"system", long_text(2, 1500)}, {"user", "a"}}, n_cached);
  ASSERT_TRUE(wait_for_saves(1)) << proxy_->logged();
  ask({{"system", long_text(1, 1500)}, {"user", "a"}}, n_cached);
  EXPECT_LT(n_cached, 256);
  EXPECT_EQ(metric("tqcache_prompts_total", {{"outcome", "adapter"}}), 1);
}

TEST_F(ProxyTest, RouterIsNamedAndItsRequestsPass) {
  start_llama();
  llama_->is_router = true;
  start_proxy();
  EXPECT_EQ(status_of(send(chat({{"user", "a"}}))), 200);
  EXPECT_TRUE(wait_until([&] { return proxy_->n_logged("is a router for several models") > 0; }));
  EXPECT_EQ(llama_->n_saves, 0);
}

TEST_F(ProxyTest, SleepingServerIsNotWoken) {
  start_llama();
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1500)}, {"user", "a"}}, n_cached);
  ASSERT_TRUE(wait_for_saves(1)) << proxy_->logged();
  llama_->is_sleeping = true;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(status_of(raw_exchange(proxy_->port(), get_text("/health"))), 200);
  proxy_->server->stop(std::chrono::seconds(280));
  proxy_->proxy->flush(std::chrono::seconds(280));
  EXPECT_EQ(llama_->n_wakes, 0);
  // Nor when a proxy begins.
  start_proxy();
  ASSERT_TRUE(wait_until([&] { return proxy_->n_logged("event=request") == 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(llama_->n_wakes, 0);
}

TEST_F(ProxyTest, HeadersTellWhatIsReused) {
  options_.shows_headers = true;
  start_llama(1);
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1500)}, {"user", "a"}}, n_cached);
  ASSERT_TRUE(wait_for_saves(1));
  const std::string answer = send(chat({{"system", long_text(1, 1500)}, {"user", "b"}}));
  EXPECT_THAT(answer, HasSubstr("X-Tqcache-From: "));
  EXPECT_THAT(answer, HasSubstr("X-Tqcache-Reused: "));
  EXPECT_THAT(answer, HasSubstr("X-Tqcache-Parts-At: 1514\r\n"));
}

TEST_F(ProxyTest, NothingIsSavedBeyondTheWriteBudget) {
  options_.max_write = serve::WriteLimit{.bytes = 1000, .period = std::chrono::hours(1)};
  start_llama(1);
  start_proxy();
  std::int64_t n_cached = -1;
  for (int i = 0; i < 3; ++i) ask({{"system", long_text(i, 1500)}, {"user", "a"}}, n_cached);
  ASSERT_TRUE(wait_until([&] {
    return metric("tqcache_saves_total", {{"reason", "over_budget"}}) > 0;
  })) << proxy_->logged();
  ASSERT_TRUE(wait_for_saves(1)) << proxy_->logged();     // the first, which was put meanwhile
  EXPECT_EQ(llama_->n_saves, 2 + 1) << proxy_->logged();  // and those of the probe
  EXPECT_EQ(proxy_->n_logged("event=max-write"), 1u) << proxy_->logged();
}

TEST_F(ProxyTest, SlotThatHoldsAnotherPromptIsNotStored) {
  idle_save_ = std::chrono::hours(24 * 365);
  start_llama(1);
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1000)}, {"user", "a"}}, n_cached);
  ASSERT_TRUE(wait_until([&] { return proxy_->n_logged("event=prompt ") == 1; }));
  // The task stays the same: nothing but the tokens shows it.
  llama_->put_into_slot(0, FakeLlama::tokens_of(long_text(7, 1400)));
  proxy_->server->stop(std::chrono::seconds(280));
  proxy_->proxy->flush(std::chrono::seconds(280));
  EXPECT_EQ(proxy_->n_logged("event=keep slot="), 0u) << proxy_->logged();
  EXPECT_EQ(proxy_->n_logged("event=drop"), 1u) << proxy_->logged();
}

TEST_F(ProxyTest, QuantizedFormsAreStored) {
  for (const std::string config : {"turbo", "k8v4", "archive"}) {
    proxy_.reset();  // it uses the backend until then
    backend_ = std::move(*store::open_backend("memory:", {}));
    options_.keeper.config = config;
    start_llama();
    start_proxy();
    std::int64_t n_cached = -1;
    ask({{"system", long_text(1, 1500)}, {"user", "a"}}, n_cached);
    ASSERT_TRUE(wait_for_saves(1)) << config << proxy_->logged();
    const double first = metric("tqcache_store_bytes_written_total");
    // A longer one shares the blocks of the shorter one.
    ask({{"system", long_text(1, 2200)}, {"user", "a"}}, n_cached);
    ASSERT_TRUE(wait_for_saves(2)) << config << proxy_->logged();
    EXPECT_LT(metric("tqcache_store_bytes_written_total"), 1.9 * first) << config;
    start_llama();
    start_proxy();
    ask({{"system", long_text(1, 1500)}, {"user", "b"}}, n_cached);
    EXPECT_GE(n_cached, 1280) << config << proxy_->logged();
  }
}

TEST_F(ProxyTest, AServerWithQuantizedKeys) {
  start_llama();
  llama_->k_type = "q8_0";
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1500)}, {"user", "a"}}, n_cached);
  ASSERT_TRUE(wait_for_saves(1)) << proxy_->logged();
  start_llama();
  llama_->k_type = "q8_0";
  start_proxy();
  ask({{"system", long_text(1, 1500)}, {"user", "b"}}, n_cached);
  EXPECT_GE(n_cached, 1280);
  // A server with other types does not get values that were rounded before.
  start_llama();
  start_proxy();
  ask({{"system", long_text(1, 1500)}, {"user", "c"}}, n_cached);
  EXPECT_EQ(n_cached, 0);
}

// What storing changes is measured with the first prompt, and told.
TEST_F(ProxyTest, RoundingIsMeasuredOnce) {
  const auto error_of = [&](const char* config, const char* type, const char* tensor) {
    proxy_.reset();
    backend_ = std::move(*store::open_backend("memory:", {}));
    options_.keeper.config = config;
    start_llama();
    llama_->k_type = type;
    start_proxy();
    std::int64_t n_cached = -1;
    for (int i = 0; i < 2; ++i) {
      ask({{"system", long_text(i, 1500)}, {"user", "a"}}, n_cached);
      EXPECT_TRUE(wait_for_saves(static_cast<std::size_t>(i) + 1)) << proxy_->logged();
    }
    EXPECT_LE(proxy_->n_logged("event=rounding stored="), 1u) << proxy_->logged();
    EXPECT_EQ(proxy_->n_logged("level=warning"), 0u) << proxy_->logged();
    return metric("tqcache_rounding_error", {{"tensor", tensor}});
  };
  EXPECT_EQ(error_of("lossless", "f16", "keys"), 0);
  EXPECT_EQ(proxy_->n_logged("event=rounding"), 0u);
  EXPECT_LT(error_of("lossless", "q8_0", "keys"), 0.002);
  EXPECT_EQ(proxy_->n_logged("event=rounding"), 1u);
  for (const char* const tensor : {"keys", "values"}) {
    const double fine = error_of("k=mse:8,v=mse:8", "f16", tensor),
                 coarse = error_of("turbo", "f16", tensor);
    EXPECT_GT(fine, 1e-4) << tensor;
    EXPECT_LT(fine, 0.02) << tensor;
    EXPECT_GT(coarse, 2 * fine) << tensor;
    EXPECT_LT(coarse, 0.3) << tensor;
  }
  EXPECT_EQ(proxy_->n_logged("event=rounding"), 1u);
  EXPECT_TRUE(wait_until([&] { return entry_names().size() == 1; }));
}

TEST_F(ProxyTest, TenantsShareNothing) {
  start_llama(1);
  start_proxy();
  const std::string alice = "Authorization: Bearer alice\r\n", bob = "x-api-key: bob\r\n";
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1500)}, {"user", "a"}}, n_cached, alice);
  ASSERT_TRUE(wait_for_saves(1));
  ask({{"system", long_text(1, 1500)}, {"user", "a"}}, n_cached, bob);
  EXPECT_EQ(n_cached, 0);
  ASSERT_TRUE(wait_for_saves(2)) << proxy_->logged();
  EXPECT_GE(llama_->n_erased, 1);
  ask({{"system", long_text(1, 1500)}, {"user", "b"}}, n_cached, alice);
  EXPECT_GE(n_cached, 1280);
  EXPECT_THAT(proxy_->logged(), Not(HasSubstr("alice")));
  EXPECT_THAT(proxy_->logged(), Not(HasSubstr("sentence")));
  // Told to share, they do.
  options_.keeper.share_tenants = true;
  start_proxy();
  ask({{"system", long_text(1, 1500)}, {"user", "a"}}, n_cached, alice);
  ask({{"system", long_text(1, 1500)}, {"user", "b"}}, n_cached, bob);
  EXPECT_GE(n_cached, 1280);
}

// A client could save the slot of another one, or see by guessing what it holds.
TEST_F(ProxyTest, TenantsDoNotReachEachOthersSlots) {
  start_llama(1);
  start_proxy();
  const std::string alice = "Authorization: Bearer alice\r\n", bob = "x-api-key: bob\r\n";
  const auto status = [&](const std::string& request) {
    return status_of(raw_exchange(proxy_->port(), request));
  };
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1500)}, {"user", "a"}}, n_cached, alice);
  EXPECT_EQ(status(get_text("/slots", alice)), 200);
  EXPECT_EQ(status(get_text("/slots", bob)), 403);
  const std::string save = R"({"filename":"mine"})";
  EXPECT_EQ(status(post_text("/slots/0?action=save", save, bob)), 403);
  EXPECT_EQ(status(post_text("/%73lots/0?action=restore", save, bob)), 403);
  EXPECT_EQ(status(post_text("/prefix/slots/0?action=restore", save, bob)), 403);
  EXPECT_FALSE(std::filesystem::exists(slot_dir_ / "mine"));

  // Bob chooses the slot himself, or makes the proxy not understand him.
  Json body = chat({{"system", long_text(1, 1500)}, {"user", "a"}});
  body["id_slot"] = 0;
  body["cache_prompt"] = true;
  for (const char* path : {"/v1/chat/completions", "/%761/chat/completions", "/api/chat"}) {
    const std::string answer = raw_exchange(proxy_->port(), post_text(path, body.dump(), bob));
    const Json json = Json::parse(body_of(answer), nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << path << answer;
    EXPECT_EQ(json.value("/timings/cache_n"_json_pointer, -1), 0) << path;
  }
  const std::string deep =
      R"({"prompt":"x","x":)" + std::string(300, '[') + std::string(300, ']') + "}";
  EXPECT_EQ(status(post_text("/completion", deep, bob)), 400);
  EXPECT_EQ(status(get_text("/slots", alice)), 403);

  // What Bob's request has left in the slot is not known to be Alice's.
  body = chat({{"system", long_text(2, 1500)}, {"user", "b"}});
  body["id_slot"] = 0;
  ASSERT_EQ(status(post_text("/v1/chat/completions", body.dump(), bob)), 200);
  ask({{"system", long_text(2, 1500)}, {"user", "b"}}, n_cached, alice);
  EXPECT_EQ(n_cached, 0);

  llama_->erases_fail_with = 500;
  ask({{"system", long_text(2, 1500)}, {"user", "b"}}, n_cached, bob);
  EXPECT_EQ(n_cached, 0);
}

// A browser asks for an icon, and a monitor for the slots, without the key of the user's program.
TEST_F(ProxyTest, LookingDoesNotSetClientsApart) {
  start_llama(1);
  start_proxy();
  for (const char* path : {"/favicon.ico", "/slots", "/props"}) {
    raw_exchange(proxy_->port(), get_text(path));
  }
  std::int64_t n_cached = -1;
  const std::string key = "Authorization: Bearer mine\r\n";
  ask({{"system", long_text(1, 1500)}, {"user", "a"}}, n_cached, key);
  EXPECT_EQ(status_of(raw_exchange(proxy_->port(), get_text("/slots", key))), 200);
  raw_exchange(proxy_->port(), get_text("/favicon.ico"));
  EXPECT_EQ(status_of(raw_exchange(proxy_->port(), get_text("/slots", key))), 200);
}

TEST_F(ProxyTest, ClientsThatShareMayReachTheSlots) {
  options_.keeper.share_tenants = options_.has_tenants = true;
  start_llama(1);
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"user", "a"}}, n_cached, "x-api-key: alice\r\n");
  ask({{"user", "b"}}, n_cached, "x-api-key: bob\r\n");
  EXPECT_EQ(status_of(raw_exchange(proxy_->port(), get_text("/slots", "x-api-key: bob\r\n"))), 200);
}

TEST_F(ProxyTest, TheStoreIsKeptBelowItsLimit) {
  options_.keeper.max_bytes = 1;  // everything that is older than the grace time may go
  start_llama();
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1000)}, {"user", "a"}}, n_cached);
  ASSERT_TRUE(wait_for_saves(1));
  EXPECT_THAT(proxy_->logged(), HasSubstr("event=evict"));
}

TEST_F(ProxyTest, RequestsThatChooseTheirSlotAreLeftAlone) {
  start_llama();
  start_proxy();
  const std::string body = R"({ "id_slot":1, "prompt":"x" })";
  const std::string answer = raw_exchange(proxy_->port(), post_text("/completion", body));
  EXPECT_EQ(status_of(answer), 200);
  EXPECT_EQ(metric("tqcache_prompts_total", {{"outcome", "steered"}}), 1);
}

TEST_F(ProxyTest, PromptsOfTokens) {
  start_llama();
  start_proxy();
  const Json body = {{"prompt", FakeLlama::tokens_of(long_text(3, 1300))}};
  ASSERT_EQ(status_of(raw_exchange(proxy_->port(), post_text("/completion", body.dump()))), 200);
  ASSERT_TRUE(wait_for_saves(1));
  start_llama();
  start_proxy();
  const std::string answer = raw_exchange(proxy_->port(), post_text("/completion", body.dump()));
  EXPECT_GE(Json::parse(body_of(answer)).at("timings").at("cache_n"), 1280);
}

TEST(LlamaServer, OtherInterfacesBecomeChats) {
  EXPECT_EQ(serve::as_chat(Api::kMessages,
                           R"({"system":[{"type":"text","text":"S"}],"messages":[
        {"role":"user","content":"U"},
        {"role":"assistant","content":[{"type":"text","text":"T"},
          {"type":"tool_use","id":"1","name":"f","input":{"x":1}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"R"}]},
        {"role":"user","content":[{"type":"image"}]},
        {"role":"user","content":"behind what is not known"}]})"),
            R"({"messages":[{"role":"system","content":"S"},{"role":"user","content":"U"},)"
            R"({"role":"assistant","content":"T","tool_calls":[{"id":"1","type":"function",)"
            R"("function":{"name":"f","arguments":"{\"x\":1}"}}]},)"
            R"({"role":"tool","tool_call_id":"1","content":"R"}]})");
  EXPECT_EQ(serve::as_chat(Api::kResponses, R"({"instructions":"I","input":"U"})"),
            R"({"messages":[{"role":"system","content":"I"},{"role":"user","content":"U"}]})");
}

}  // namespace
}  // namespace tqcache::test
