#include <atomic>
#include <random>

#include "serve/proxy_fixture.h"
#include "store/faulty_backend.h"
#include "tqcache/serve/llama_server.h"

namespace tqcache::test {
namespace {

using testing::AnyOf;
using testing::Eq;
using testing::HasSubstr;
using testing::Not;

TEST_F(ProxyTest, StreamsByteForByte) {
  start_llama();
  start_proxy();
  const Json body = chat({{"user", "hello"}}, true);
  const std::string own =
      raw_exchange(llama_->port(), post_text("/v1/chat/completions", body.dump()));
  const std::string through = send(body);
  const auto without_chunks = [](const std::string& answer) {
    std::string all, rest = body_of(answer);
    while (!rest.empty()) {
      const std::size_t end = rest.find("\r\n");
      const std::size_t size = std::stoul(rest.substr(0, end), nullptr, 16);
      all += rest.substr(end + 2, size);
      rest.erase(0, end + 2 + size + 2);
      if (size == 0) break;
    }
    return all;
  };
  // The second request finds the prompt in a slot.
  const std::string events = without_chunks(through);
  EXPECT_EQ(events.substr(0, events.find("timings")),
            without_chunks(own).substr(0, without_chunks(own).find("timings")));
  EXPECT_THAT(events, HasSubstr("data: [DONE]\n\n"));
  EXPECT_THAT(through, HasSubstr("X-Fake: yes"));
}

TEST_F(ProxyTest, ErrorsOfTheUpstreamServerArePassedOn) {
  start_llama();
  start_proxy();
  const std::string none = raw_exchange(proxy_->port(), get_text("/nothing"));
  EXPECT_EQ(status_of(none), 404);
  EXPECT_THAT(none, HasSubstr("no such path"));
  const std::string bad =
      raw_exchange(proxy_->port(), post_text("/v1/chat/completions", "{not json"));
  EXPECT_EQ(status_of(bad), 400);
  EXPECT_THAT(bad, HasSubstr("not one JSON object"));
}

TEST_F(ProxyTest, AnUpstreamServerThatIsGoneAndComesBack) {
  start_llama();
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1000)}, {"user", "a"}}, n_cached);
  ASSERT_TRUE(wait_for_saves(1));
  llama_.reset();
  EXPECT_EQ(status_of(send(chat({{"user", "x"}}))), 502);
  EXPECT_EQ(status_of(raw_exchange(proxy_->port(), get_text("/health"))), 503);
  start_llama();
  EXPECT_EQ(status_of(raw_exchange(proxy_->port(), get_text("/health"))), 200);
  ask({{"system", long_text(1, 1000)}, {"user", "b"}}, n_cached);
  EXPECT_GE(n_cached, 768) << proxy_->logged();
}

// Both programs were started at once: the first prompt is kept, too.
TEST_F(ProxyTest, AnUpstreamServerThatHasJustLoadedItsModel) {
  start_llama();
  llama_->is_loading = true;
  start_proxy();
  EXPECT_EQ(status_of(send(chat({{"user", "x"}}))), 503);
  llama_->is_loading = false;
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1000)}, {"user", "a"}}, n_cached);
  EXPECT_TRUE(wait_for_saves(1)) << proxy_->logged();
}

TEST_F(ProxyTest, AnUpstreamServerThatBreaksOff) {
  start_llama();
  start_proxy();
  llama_->breaks_off = true;
  const std::string answer = send(chat({{"user", "x"}}, true));
  EXPECT_EQ(status_of(answer), 200);
  // Without the last chunk, so that the client sees that the answer is not complete.
  EXPECT_THAT(answer, Not(HasSubstr("\r\n0\r\n\r\n")));
  llama_->breaks_off = false;
  std::int64_t n_cached = -1;
  ask({{"user", "y"}}, n_cached);
}

TEST_F(ProxyTest, AnUpstreamServerThatAnswersGarbage) {
  start_llama();
  start_proxy();
  llama_->answers_garbage = true;
  const std::string answer = send(chat({{"user", "x"}}));
  EXPECT_EQ(status_of(answer), 200);
  EXPECT_THAT(answer, HasSubstr("]] not JSON [["));
  EXPECT_EQ(proxy_->n_logged("event=bind"), 1u);
}

TEST(ProxyFaults, WhatIsNotHttpIsABadGateway) {
  RawServer garbage([](RawSocket& socket) {
    socket.receive();
    socket.send("SSH-2.0-OpenSSH\r\n\r\n\x01\x02\x03");
  });
  serve::ProxyOptions options;
  options.upstream.url = "http://127.0.0.1:" + std::to_string(garbage.port());
  RunningProxy proxy(options);
  EXPECT_EQ(status_of(raw_exchange(proxy.port(), get_text("/x"))), 502);
}

TEST(ProxyFaults, AnAnswerThatIsTooShortIsNotPassedOnAsComplete) {
  RawServer server([](RawSocket& socket) {
    socket.receive();
    socket.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this");
  });
  serve::ProxyOptions options;
  options.upstream.url = "http://127.0.0.1:" + std::to_string(server.port());
  RunningProxy proxy(options);
  const std::string answer = raw_exchange(proxy.port(), get_text("/x"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 100\r\n"));
  EXPECT_EQ(body_of(answer), "only this");
}

// A client that keeps its connection would take the rest for another answer.
TEST(ProxyFaults, AnAnswerWithTwoLengthsIsABadGateway) {
  for (const char* head : {"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
                           "Content-Length: 2\r\nContent-Length: 40\r\n"}) {
    RawServer server([&](RawSocket& socket) {
      socket.receive();
      socket.send(std::string("HTTP/1.1 200 OK\r\n") + head +
                  "\r\n13\r\nHTTP/1.1 200 OK\r\n\r\n\r\n0\r\n\r\n");
    });
    serve::ProxyOptions options;
    options.upstream.url = "http://127.0.0.1:" + std::to_string(server.port());
    RunningProxy proxy(options);
    EXPECT_EQ(status_of(raw_exchange(proxy.port(), get_text("/x"))), 502) << head;
  }
}

TEST(ProxyFaults, AHeaderWithAControlCharacterIsNotPassedOn) {
  RawServer server([](RawSocket& socket) {
    socket.receive();
    socket.send(
        "HTTP/1.1 200 OK\r\nX-Bad: a\x01\rb\r\nX Bad: c\r\nX-Good: d\r\n"
        "Content-Length: 2\r\n\r\nOK");
  });
  serve::ProxyOptions options;
  options.upstream.url = "http://127.0.0.1:" + std::to_string(server.port());
  RunningProxy proxy(options);
  const std::string answer = raw_exchange(proxy.port(), get_text("/x"));
  EXPECT_EQ(body_of(answer), "OK");
  EXPECT_THAT(answer, HasSubstr("X-Good: d\r\n"));
  EXPECT_THAT(answer, Not(HasSubstr("Bad")));
}

// Writing and copying such a text takes a call for each level.
TEST(ProxyFaults, DeeplyNestedJsonIsNotRead) {
  constexpr std::size_t kDepth = 200'000;
  const std::string deep = std::string(kDepth, '[') + std::string(kDepth, ']');
  const std::string tools = R"({"tools":[{"name":"f","parameters":)" + deep + "}]}";
  EXPECT_EQ(serve::as_chat(serve::Api::kResponses, tools), "");
  EXPECT_EQ(serve::as_chat(serve::Api::kMessages, tools), "");
  EXPECT_NE(serve::as_chat(serve::Api::kResponses, R"({"tools":[{"parameters":[[[1]]]}]})"), "");
}

TEST(ProxyFaults, AnUpstreamServerThatIsTooSlow) {
  std::atomic<bool> may_end = false;
  RawServer silent([&](RawSocket& socket) {
    socket.receive();
    while (!may_end) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  serve::ProxyOptions options;
  options.upstream.url = "http://127.0.0.1:" + std::to_string(silent.port());
  options.upstream.idle_timeout = std::chrono::milliseconds(200);
  {
    RunningProxy proxy(options);
    EXPECT_EQ(status_of(raw_exchange(proxy.port(), get_text("/x"))), 504);
  }
  may_end = true;
}

// A head that does not end, and a small answer that comes byte by byte.
TEST(ProxyFaults, AnUpstreamServerThatTrickles) {
  for (const bool in_head : {true, false}) {
    RawServer trickle([&](RawSocket& socket) {
      socket.receive();
      socket.send("HTTP/1.1 200 OK\r\n");
      if (!in_head) socket.send("Content-Length: 100000\r\n\r\n");
      while (socket.send(in_head ? "X: y\r\n" : "x")) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
    serve::ProxyOptions options;
    options.upstream.url = "http://127.0.0.1:" + std::to_string(trickle.port());
    options.upstream.idle_timeout = std::chrono::milliseconds(200);
    RunningProxy proxy(options);
    // The proxy itself asks for /health, and passes the rest on.
    const std::string answer = raw_exchange(proxy.port(), get_text(in_head ? "/x" : "/health"));
    EXPECT_EQ(status_of(answer), in_head ? 504 : 503);
  }
}

TEST_F(ProxyTest, NumbersThatMakeNoSense) {
  start_llama(1);
  start_proxy();
  llama_->cache_n_says = 1e300;
  const std::string answer = send(chat({{"user", "a"}}));
  EXPECT_EQ(status_of(answer), 200);
  ASSERT_TRUE(wait_until([&] { return metric("tqcache_computed_tokens_total") > 0; }));
  EXPECT_EQ(metric("tqcache_reused_tokens_total"), 0);
}

TEST(ProxyFaults, HeadersOfOneConnectionStayThere) {
  std::string seen;
  RawServer server([&](RawSocket& socket) {
    seen = socket.receive_until("\r\n\r\n");
    socket.send(
        "HTTP/1.1 200 OK\r\nConnection: X-Hop\r\nX-Hop: 1\r\nX-End: 2\r\nX-End: 3\r\n"
        "Content-Length: 2\r\n\r\nok");
  });
  serve::ProxyOptions options;
  options.upstream.url = "http://127.0.0.1:" + std::to_string(server.port());
  options.upstream_key = "inner";
  RunningProxy proxy(options);
  const std::string answer = raw_exchange(
      proxy.port(),
      "GET /c?d=e HTTP/1.1\r\nHost: 10.9.8.7\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\n"
      "X-Kept: 2\r\nX-Empty:\r\nAuthorization: Bearer outer\r\nAccept-Encoding: gzip\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("X-End: 2\r\nX-End: 3\r\n"));
  EXPECT_THAT(answer, Not(HasSubstr("X-Hop")));
  EXPECT_THAT(seen, HasSubstr("GET /c?d=e HTTP/1.1\r\n"));
  EXPECT_THAT(seen, HasSubstr("X-Kept: 2\r\n"));
  EXPECT_THAT(seen, HasSubstr("X-Empty:"));
  EXPECT_THAT(seen, HasSubstr("Accept-Encoding: gzip\r\n"));
  EXPECT_THAT(seen, HasSubstr("Authorization: Bearer inner\r\n"));
  EXPECT_THAT(seen, Not(HasSubstr("X-Mine")));
  EXPECT_THAT(seen, Not(HasSubstr("outer")));
  EXPECT_THAT(seen, Not(HasSubstr("10.9.8.7")));
}

TEST_F(ProxyTest, AClientThatLeavesEndsTheWork) {
  start_llama();
  start_proxy();
  llama_->piece_delay_ms = 5;
  llama_->is_endless = true;
  RawSocket socket = RawSocket::connect(proxy_->port());
  socket.send(post_text("/v1/chat/completions", chat({{"user", "x"}}, true).dump()));
  EXPECT_THAT(socket.receive_until("data: "), HasSubstr("200 OK"));
  socket.close();
  EXPECT_TRUE(wait_until([&] { return llama_->n_cancelled > 0; }));
  std::int64_t n_cached = -1;
  ask({{"user", "y"}}, n_cached);  // its slot is free again
}

TEST_F(ProxyTest, ASlotFolderThatIsFull) {
  start_llama();
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"user", "first"}}, n_cached);
  llama_->saves_fail_with = 500;
  for (int i = 0; i < 4; ++i) ask({{"system", long_text(i, 1000)}, {"user", "a"}}, n_cached);
  EXPECT_TRUE(wait_until([&] { return proxy_->n_logged("event=save") > 0; }));
  EXPECT_EQ(proxy_->n_logged("level=warning event=save"), 1u) << proxy_->logged();
}

// Neither program can write there, as if it were read-only.
TEST_F(ProxyTest, ASlotFolderThatIsLost) {
  start_llama();
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1000)}, {"user", "a"}}, n_cached);
  ASSERT_TRUE(wait_for_saves(1));
  start_llama();
  start_proxy();
  ask({{"user", "the first request tries a restore"}}, n_cached);
  std::filesystem::rename(slot_dir_, dir_ / "elsewhere");
  ask({{"system", long_text(1, 1000)}, {"user", "b"}}, n_cached);
  EXPECT_LT(n_cached, 256);
  ask({{"system", long_text(2, 1000)}, {"user", "b"}}, n_cached);
  EXPECT_LT(n_cached, 256);
  EXPECT_EQ(proxy_->n_logged("level=warning event=restore"), 1u) << proxy_->logged();
  std::filesystem::rename(dir_ / "elsewhere", slot_dir_);
  ask({{"user", "short"}}, n_cached);
  ask({{"system", long_text(1, 1000)}, {"user", "c"}}, n_cached);
  EXPECT_GE(n_cached, 768) << proxy_->logged();
}

TEST_F(ProxyTest, RestoresThatFailCostNothingButTime) {
  start_llama();
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1000)}, {"user", "a"}}, n_cached);
  ASSERT_TRUE(wait_for_saves(1));
  start_llama();
  start_proxy();
  ask({{"user", "the first request tries a restore"}}, n_cached);
  llama_->restores_fail_with = 400;
  ask({{"system", long_text(1, 1000)}, {"user", "b"}}, n_cached);
  EXPECT_EQ(n_cached, 0);
  EXPECT_EQ(proxy_->n_logged("level=warning event=restore"), 1u) << proxy_->logged();
}

TEST_F(ProxyTest, AFolderThatTheServerDoesNotUse) {
  start_llama();
  const auto other = make_folder("other");
  options_.upstream.url = llama_->url();
  options_.slot_dir = other;
  options_.backend = backend_.get();
  proxy_ = std::make_unique<RunningProxy>(options_);
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1000)}, {"user", "a"}}, n_cached);
  ask({{"system", long_text(1, 1000)}, {"user", "a"}}, n_cached);
  EXPECT_EQ(proxy_->n_logged("level=warning event=bind"), 1u) << proxy_->logged();
  EXPECT_THAT(proxy_->logged(), HasSubstr("--slot-save-path"));
}

TEST_F(ProxyTest, OneProxyForAFolder) {
  start_llama();
  start_proxy();
  EXPECT_THROW(RunningProxy second(options_), std::runtime_error);
}

// A store that is lost, one call after the other.
TEST_F(ProxyTest, AStoreThatIsGone) {
  const auto folder = make_folder("store");
  backend_ = std::move(*store::open_backend("dir:" + folder.string(), {}));
  start_llama();
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1000)}, {"user", "a"}}, n_cached);
  ASSERT_TRUE(wait_for_saves(1));
  proxy_.reset();  // it writes its statistics there
  std::filesystem::remove_all(folder);
  start_llama();
  start_proxy();
  ask({{"system", long_text(1, 1000)}, {"user", "b"}}, n_cached);
  EXPECT_EQ(n_cached, 0);
  ask({{"system", long_text(2, 1000)}, {"user", "c"}}, n_cached);
}

TEST_F(ProxyTest, DamagedBlobsAreNotUsed) {
  const auto folder = make_folder("store");
  backend_ = std::move(*store::open_backend("dir:" + folder.string(), {}));
  start_llama();
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1500)}, {"user", "a"}}, n_cached);
  ASSERT_TRUE(wait_for_saves(1));
  proxy_.reset();  // it writes its statistics there
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.path().filename().string().find("b,") != 0) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x5a');
  }
  start_llama();
  start_proxy();
  ask({{"system", long_text(1, 1500)}, {"user", "b"}}, n_cached);
  EXPECT_EQ(n_cached, 0);
  EXPECT_EQ(llama_->n_wrong_restores, 0);
}

TEST_F(ProxyTest, TwoHundredClients) {
  start_llama(4);
  start_proxy();
  std::vector<RawSocket> sockets;
  const auto messages = [](int i) {
    return std::vector<std::pair<std::string, std::string>>{
        {"system", long_text(i % 5, 600)}, {"user", "client " + std::to_string(i)}};
  };
  for (int i = 0; i < 200; ++i) {
    sockets.push_back(RawSocket::connect(proxy_->port()));
    sockets.back().send(post_text("/v1/chat/completions", chat(messages(i)).dump()));
  }
  for (int i = 0; i < 200; ++i) {
    const std::string answer = sockets[static_cast<std::size_t>(i)].receive_all();
    ASSERT_EQ(status_of(answer), 200) << i << answer;
    EXPECT_EQ(Json::parse(body_of(answer)).at("content"),
              FakeLlama::answer_to(
                  FakeLlama::tokens_of(FakeLlama::render(chat(messages(i)).at("messages")))));
  }
  EXPECT_EQ(llama_->n_wrong_restores, 0);
}

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

// Requests with faults at random. TQCACHE_SERVE_SOAK sets how many.
TEST_F(ProxyTest, Soak) {
  const char* const wanted = std::getenv("TQCACHE_SERVE_SOAK");
  const int n = wanted == nullptr ? 200 : std::atoi(wanted);
  auto faulty = std::make_unique<FaultyBackend>();
  FaultyBackend* const store = faulty.get();
  backend_ = std::move(faulty);
  start_llama();
  start_proxy();
  std::mt19937 random(7);
  const auto chance = [&](unsigned one_in) { return random() % one_in == 0; };
  std::int64_t resident_early = 0;
  int n_answers = 0;
  bool is_folder_lost = false;
  for (int i = 0; i < n; ++i) {
    if (chance(60) && !is_folder_lost) {
      start_llama();
      if (chance(3)) start_proxy();
    }
    llama_->saves_fail_with = chance(20) ? 500 : 0;
    llama_->restores_fail_with = chance(20) ? 400 : 0;
    llama_->breaks_off = chance(15);
    llama_->answers_garbage = chance(50);
    llama_->piece_delay_ms = chance(40) ? 10 : 0;
    store->fail(chance(20) ? std::optional(Error{ErrorCode::kIo, "the store is gone"})
                           : std::nullopt);
    if (is_folder_lost || chance(40)) {
      std::filesystem::rename(is_folder_lost ? dir_ / "lost" : slot_dir_,
                              is_folder_lost ? slot_dir_ : dir_ / "lost");
      is_folder_lost = !is_folder_lost;
    }
    const std::vector<std::pair<std::string, std::string>> messages = {
        {"system", long_text(static_cast<int>(random() % 12), 600)},
        {"user", "n" + std::to_string(random() % 50)}};
    const bool stream = chance(2);
    if (chance(25)) {
      RawSocket leaving = RawSocket::connect(proxy_->port());
      leaving.send(post_text("/v1/chat/completions", chat(messages, true).dump()));
      continue;
    }
    const std::string answer = send(chat(messages, stream));
    ASSERT_THAT(status_of(answer), AnyOf(Eq(200), Eq(502))) << answer;
    if (llama_->answers_garbage) {
      ASSERT_THAT(answer, HasSubstr("]] not JSON [["));
    } else if (status_of(answer) == 200 && !stream) {
      n_answers += 1;
      ASSERT_EQ(Json::parse(body_of(answer)).at("content"),
                FakeLlama::answer_to(
                    FakeLlama::tokens_of(FakeLlama::render(chat(messages).at("messages")))));
    }
    ASSERT_EQ(llama_->n_wrong_restores, 0);
    if (i == n / 10) resident_early = resident_bytes();
  }
  EXPECT_GT(n_answers, n / 4);
  std::printf("resident after %d requests: %.1f MiB, after %d: %.1f MiB\n", n / 10,
              static_cast<double>(resident_early) / (1 << 20), n,
              static_cast<double>(resident_bytes()) / (1 << 20));
  // The prompts are all in the store by then (in memory, at most some MiB), and the log, which is
  // kept here, has about 300 bytes per request.
  if (n >= 10'000) {
    EXPECT_LT(resident_bytes(), resident_early + (std::int64_t{64} << 20));
  }
}

}  // namespace
}  // namespace tqcache::test
