#include "tqcache/serve/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "serve/raw_socket.h"

namespace tqcache::serve {
namespace {

using std::chrono::milliseconds;
using test::body_of;
using test::get_text;
using test::post_text;
using test::raw_exchange;
using test::RawSocket;
using test::status_of;
using testing::HasSubstr;
using testing::Not;

class HttpServerTest : public testing::Test {
 protected:
  HttpOptions options_{.address = "127.0.0.1:0"};
  Metrics metrics_;
  std::string logged_;
  std::mutex log_mutex_;
  Log log_{[this](std::string_view line) {
    const std::lock_guard lock(log_mutex_);
    logged_ += line;
  }};
  std::unique_ptr<HttpServer> server_;

  int start() {
    server_ = std::make_unique<HttpServer>(options_, metrics_, log_);
    server_->route("POST", "/echo", [](const Request& request, Client&) {
      return Response::text(200, request.body);
    });
    const auto started = server_->start();
    EXPECT_TRUE(started) << started.error().message;
    return server_->port();
  }
};

TEST_F(HttpServerTest, AnswersAndKeepsTheConnection) {
  const int port = start();
  const RawSocket socket = RawSocket::connect(port);
  for (int i = 0; i < 20; ++i) {
    socket.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc");
    const std::string answer = socket.receive_message();
    ASSERT_EQ(status_of(answer), 200) << answer;
    EXPECT_EQ(body_of(answer), "abc");
  }
  EXPECT_EQ(status_of(raw_exchange(port, get_text("/health"))), 200);
  EXPECT_EQ(status_of(raw_exchange(port, get_text("/none"))), 404);
  EXPECT_EQ(status_of(raw_exchange(port, get_text("/echo"))), 405);
  const std::string metrics = raw_exchange(port, get_text("/metrics"));
  EXPECT_THAT(metrics, HasSubstr("tqcache_requests_total{status=\"200\"} 21\n"));
}

TEST_F(HttpServerTest, AnswersRequestsThatComeTogether) {
  const int port = start();
  const RawSocket socket = RawSocket::connect(port);
  socket.send(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\ndef\r\n0\r\n\r\n"
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: "
      "3\r\n\r\nghi");
  const std::string all = socket.receive_all();
  EXPECT_THAT(all, HasSubstr("abc"));
  EXPECT_THAT(all, HasSubstr("def"));
  EXPECT_THAT(all, HasSubstr("ghi"));
}

TEST_F(HttpServerTest, ExpectContinue) {
  const int port = start();
  const RawSocket socket = RawSocket::connect(port);
  socket.send(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nExpect: "
      "100-continue\r\n\r\n");
  EXPECT_THAT(socket.receive_until("\r\n\r\n"), HasSubstr("100 Continue"));
  socket.send("abc");
  EXPECT_EQ(body_of(socket.receive_message()), "abc");
}

// A second request hidden in the first one is never answered.
TEST_F(HttpServerTest, SmuggledRequestsAreRefused) {
  const int port = start();
  const std::string hidden = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const std::string length = std::to_string(hidden.size() + 5);
  const std::vector<std::string> heads = {
      "Content-Length: " + length + "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "Transfer-Encoding: chunked\r\nContent-Length: " + length + "\r\n\r\n0\r\n\r\n",
      "Content-Length: 0\r\nContent-Length: " + length + "\r\n\r\n",
      "Content-Length: " + length + "\r\nContent-Length: 0\r\n\r\n",
      "Transfer-Encoding : chunked\r\nContent-Length: 0\r\n\r\n",
      "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
      "X: y\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
      "X: y\rTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
      "Transfer-Encoding: chunked\r\n\r\n0;x\r\n\r\n",
      "Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n",
      "Transfer-Encoding: chunked\r\n\r\n00000000000000000\r\n\r\n",
      "Transfer-Encoding: identity\r\nContent-Length: 0\r\n\r\n",
  };
  for (const std::string& head : heads) {
    const std::string answer =
        raw_exchange(port, "POST /echo HTTP/1.1\r\nHost: localhost\r\n" + head + hidden);
    EXPECT_GE(status_of(answer), 400) << head << answer;
    EXPECT_THAT(answer, Not(HasSubstr("# HELP"))) << head;
    EXPECT_EQ(answer.find("HTTP/1.1", 1), std::string::npos) << head << answer;
  }
  // Bare line feeds end no line.
  const RawSocket socket = RawSocket::connect(port);
  socket.send("GET /health HTTP/1.1\nHost: h\n\n");
  EXPECT_TRUE(socket.receive(300).empty());
}

TEST_F(HttpServerTest, Limits) {
  options_.max_body_bytes = 1000;
  const int port = start();
  EXPECT_EQ(status_of(raw_exchange(port, post_text("/echo", std::string(1000, 'a')))), 200);
  EXPECT_EQ(status_of(raw_exchange(port, post_text("/echo", std::string(1001, 'a')))), 413);
  // 100 MiB, of which the client sends much before it reads.
  EXPECT_EQ(
      status_of(raw_exchange(port, post_text("/echo", std::string(std::size_t{100} << 20, 'a')))),
      413);
  EXPECT_EQ(status_of(raw_exchange(port, get_text("/health", "X: " + std::string(70'000, 'a')))),
            431);
  const RawSocket endless = RawSocket::connect(port);
  while (endless.send("X")) {
    if (!endless.receive(0).empty()) break;
  }
}

TEST_F(HttpServerTest, HeadsThatTakeTooLong) {
  options_.head_timeout = milliseconds(200);
  options_.read_timeout = milliseconds(200);
  const int port = start();
  const RawSocket slow = RawSocket::connect(port);
  slow.send("GET /health HTT");
  EXPECT_EQ(status_of(slow.receive_all()), 408);
  const RawSocket slow_body = RawSocket::connect(port);
  slow_body.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\na");
  EXPECT_EQ(status_of(slow_body.receive_all()), 408);
}

// Each byte comes in time, and all together too slowly.
TEST_F(HttpServerTest, BodiesThatTrickle) {
  options_.read_timeout = milliseconds(200);
  const int port = start();
  const RawSocket slow = RawSocket::connect(port);
  slow.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n");
  while (slow.send("a") && slow.receive(10).empty()) {
  }
  // The answer was received above, in whole or in part.
  EXPECT_EQ(metrics_.value("tqcache_requests_refused_total", {{"status", "408"}}), 1);
}

TEST_F(HttpServerTest, AnswersThatAreTakenTooSlowly) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  options_.write_timeout = milliseconds(200);
  options_.least_bytes_per_second = std::uint64_t{1} << 40;
  server_ = std::make_unique<HttpServer>(options_, metrics_, log_);
  server_->route("GET", "/large", [](const Request&, Client&) {
    return Response::text(200, std::string(kBytes, 'x'));
  });
  ASSERT_TRUE(server_->start());
  const RawSocket slow = RawSocket::connect(server_->port());
  slow.send(get_text("/large"));
  std::size_t n_received = 0;
  while (true) {
    const std::size_t n = slow.receive().size();
    n_received += n;
    if (n == 0) break;
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_LT(n_received, kBytes);
}

TEST_F(HttpServerTest, Keys) {
  options_.api_keys = {"secret", "other"};
  const int port = start();
  EXPECT_EQ(status_of(raw_exchange(port, get_text("/health"))), 200);
  EXPECT_EQ(status_of(raw_exchange(port, get_text("/metrics"))), 401);
  EXPECT_EQ(status_of(raw_exchange(port, get_text("/metrics", "Authorization: Bearer secre\r\n"))),
            401);
  EXPECT_EQ(status_of(raw_exchange(port, get_text("/metrics", "Authorization: Bearer secret\r\n"))),
            200);
  EXPECT_EQ(status_of(raw_exchange(port, get_text("/metrics", "x-api-key: other\r\n"))), 200);
  server_->set_api_keys({"new"});
  EXPECT_EQ(status_of(raw_exchange(port, get_text("/metrics", "x-api-key: other\r\n"))), 401);
  EXPECT_EQ(status_of(raw_exchange(port, get_text("/metrics", "x-api-key: new\r\n"))), 200);
  server_->stop(std::chrono::seconds(280));  // it logs a request behind its answer
  EXPECT_THAT(logged_, HasSubstr("event=request"));
  EXPECT_THAT(logged_, Not(HasSubstr("secret")));
}

TEST_F(HttpServerTest, TooManyConnections) {
  options_.max_connections = 3;
  const int port = start();
  std::vector<RawSocket> held;
  for (int i = 0; i < 3; ++i) {
    held.push_back(RawSocket::connect(port));
    held.back().send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\na");
    ASSERT_EQ(status_of(held.back().receive_message()), 200);
  }
  EXPECT_EQ(status_of(raw_exchange(port, get_text("/none"))), 503);
  EXPECT_EQ(status_of(raw_exchange(port, get_text("/health"))), 200);
}

TEST_F(HttpServerTest, TwoHundredConnections) {
  const int port = start();
  std::vector<RawSocket> sockets;
  for (int i = 0; i < 200; ++i) sockets.push_back(RawSocket::connect(port));
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    const std::string text = std::to_string(1000 + i);
    sockets[i].send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n" + text);
  }
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    EXPECT_EQ(body_of(sockets[i].receive_message()), std::to_string(1000 + i));
  }
}

TEST_F(HttpServerTest, StreamsAndNoticesThatTheClientIsGone) {
  std::atomic<bool> is_over = false;
  server_ = std::make_unique<HttpServer>(options_, metrics_, log_);
  server_->route("GET", "/stream", [&](const Request&, Client& client) {
    Response response;
    response.headers = {{"Content-Type", "text/event-stream"}};
    response.stream = [&](Sink& sink) {
      while (sink.write("data: x\n\n") && !client.is_gone()) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      is_over = true;
      return false;
    };
    return response;
  });
  server_->route("GET", "/ends", [](const Request&, Client&) {
    Response response;
    response.stream = [](Sink& sink) { return sink.write("one") && sink.write("two"); };
    return response;
  });
  ASSERT_TRUE(server_->start());
  RawSocket socket = RawSocket::connect(server_->port());
  socket.send("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(socket.receive_until("data: x"), HasSubstr("text/event-stream"));
  socket.close();
  while (!is_over) std::this_thread::sleep_for(milliseconds(10));
  const std::string whole = raw_exchange(server_->port(), get_text("/ends"));
  EXPECT_THAT(whole, HasSubstr("3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"));
  const std::string old = raw_exchange(server_->port(), "GET /ends HTTP/1.0\r\n\r\n");
  EXPECT_EQ(body_of(old), "onetwo");
}

TEST_F(HttpServerTest, StopsAfterRunningRequests) {
  const test::ReservedPort reserved;
  options_.address = "127.0.0.1:" + std::to_string(reserved.port());
  std::atomic<bool> has_begun = false;
  server_ = std::make_unique<HttpServer>(options_, metrics_, log_);
  server_->route("GET", "/slow", [&](const Request&, Client&) {
    has_begun = true;
    std::this_thread::sleep_for(milliseconds(300));
    return Response::text(200, "done");
  });
  ASSERT_TRUE(server_->start());
  const int port = server_->port();
  std::string answer;
  std::thread client([&] { answer = raw_exchange(port, get_text("/slow")); });
  while (!has_begun) std::this_thread::sleep_for(milliseconds(1));
  server_->stop(std::chrono::seconds(280));
  client.join();
  EXPECT_EQ(body_of(answer), "done");
  EXPECT_THROW(RawSocket::connect(port), std::runtime_error);
}

TEST_F(HttpServerTest, BreaksOffWhatDoesNotEnd) {
  std::atomic<bool> has_begun = false;
  server_ = std::make_unique<HttpServer>(options_, metrics_, log_);
  server_->route("GET", "/endless", [&](const Request&, Client& client) {
    has_begun = true;
    while (!client.is_gone()) std::this_thread::sleep_for(milliseconds(1));
    return Response::text(200, "never");
  });
  ASSERT_TRUE(server_->start());
  const RawSocket socket = RawSocket::connect(server_->port());
  socket.send("GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n");
  while (!has_begun) std::this_thread::sleep_for(milliseconds(1));
  server_->stop(milliseconds(10));
}

TEST_F(HttpServerTest, APortInUseIsAnError) {
  const int port = start();
  HttpOptions options = options_;
  options.address = "127.0.0.1:" + std::to_string(port);
  HttpServer second(options, metrics_, log_);
  EXPECT_FALSE(second.start());
}

TEST(MetricsText, EscapesLabels) {
  Metrics metrics;
  metrics.define("a_total", Metrics::Type::kCounter, "Help.");
  metrics.add("a_total", 2.5, {{"x", "q\"\\\n"}});
  EXPECT_EQ(metrics.text(),
            "# HELP a_total Help.\n# TYPE a_total counter\na_total 0\n"
            "a_total{x=\"q\\\"\\\\\\n\"} 2.5\n");
}

TEST(LogLine, QuotesWhatCouldForgeALine) {
  std::string text;
  Log log([&](std::string_view line) { text += line; });
  log.info("a", {{"x", "b c\nlevel=error"}, {"y", "plain"}});
  EXPECT_THAT(text, HasSubstr("event=a x=\"b c\\nlevel=error\" y=plain\n"));
}

}  // namespace
}  // namespace tqcache::serve
