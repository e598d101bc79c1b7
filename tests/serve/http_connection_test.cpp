// What is written to a client, when it counts as gone, and what it can hold.

#include "tqcache/serve/http_connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "serve/raw_socket.h"
#include "tqcache/serve/http_server.h"

namespace tqcache::serve {
namespace {

using std::chrono::milliseconds;
using test::body_of;
using test::get_text;
using test::raw_exchange;
using test::RawSocket;
using test::status_of;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kHead = " HTTP/1.1\r\nHost: localhost\r\n\r\n";

class HttpConnection : public testing::Test {
 protected:
  HttpOptions options_{.address = "127.0.0.1:0"};
  Metrics metrics_;
  Log log_{[](std::string_view) {}};
  std::unique_ptr<HttpServer> server_;
  std::atomic<bool> may_go_on_ = false;

  void open() { server_ = std::make_unique<HttpServer>(options_, metrics_, log_); }
  int start() {
    const auto started = server_->start();
    EXPECT_TRUE(started) << started.error().message;
    return server_->port();
  }
  // A route that streams pieces, and whose maker says that they are complete, or not.
  void stream(const char* path, std::vector<std::string> pieces, bool is_complete,
              std::optional<std::uint64_t> length = {}) {
    server_->route("GET", path, [=](const Request&, Client&) {
      Response response;
      response.stream_length = length;
      response.stream = [=](Sink& sink) {
        for (const std::string& piece : pieces) {
          if (!sink.write(piece)) return false;
        }
        return is_complete;
      };
      return response;
    });
  }
  // A route that answers when the client is gone, or the test says so.
  void hold(std::atomic<bool>& was_gone, std::atomic<bool>& has_begun, bool is_stream) {
    server_->route("GET", "/hold", [&, is_stream](const Request&, Client& client) {
      const auto wait = [&] {
        has_begun = true;
        while (!client.is_gone()) {
          if (may_go_on_) {
            // It would be seen within these.
            for (int i = 0; i < 50; ++i) {
              std::this_thread::sleep_for(milliseconds(1));
              if (client.is_gone()) was_gone = true;
            }
            return;
          }
          std::this_thread::sleep_for(milliseconds(1));
        }
        was_gone = true;
      };
      if (!is_stream) {
        wait();
        return Response::text(200, "done");
      }
      Response response;
      response.stream = [wait](Sink& sink) {
        wait();
        return sink.write("done");
      };
      return response;
    });
  }
};

// --- What is written

TEST_F(HttpConnection, AnAnswerHasOneFraming) {
  open();
  server_->route("GET", "/lies", [](const Request&, Client&) {
    Response response = Response::text(200, "four");
    for (const auto& [name, value] : std::vector<Header>{{"Content-Length", "400"},
                                                         {"transfer-encoding", "chunked"},
                                                         {"Connection", "upgrade"},
                                                         {"Bad Name", "x"},
                                                         {"X-Split", "a\r\nX-Injected: b"},
                                                         {"X-Good", "yes"}}) {
      response.headers.push_back({name, value});
    }
    return response;
  });
  stream("/chunks", {"one", "", "two"}, true);
  stream("/length", {"one", "two"}, true, 6);
  const int port = start();
  const std::string plain = raw_exchange(port, get_text("/lies"));
  EXPECT_THAT(plain, HasSubstr("Content-Length: 4\r\n"));
  EXPECT_THAT(plain, HasSubstr("X-Good: yes\r\n"));
  EXPECT_THAT(plain, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(plain, Not(HasSubstr("400")));
  EXPECT_THAT(plain, Not(HasSubstr("chunked")));
  EXPECT_THAT(plain, Not(HasSubstr("upgrade")));
  EXPECT_THAT(plain, Not(HasSubstr("Bad Name")));
  EXPECT_THAT(plain, Not(HasSubstr("Injected")));
  const std::string chunks = raw_exchange(port, get_text("/chunks"));
  EXPECT_THAT(chunks, HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_THAT(chunks, Not(HasSubstr("Content-Length")));
  EXPECT_EQ(body_of(chunks), "3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n");
  const std::string length = raw_exchange(port, get_text("/length"));
  EXPECT_THAT(length, HasSubstr("Content-Length: 6\r\n"));
  EXPECT_THAT(length, Not(HasSubstr("Transfer-Encoding")));
  EXPECT_EQ(body_of(length), "onetwo");
}

TEST_F(HttpConnection, HeadHasTheHeadOfGetAndNoBody) {
  open();
  server_->route("GET", "/text",
                 [](const Request&, Client&) { return Response::text(200, "12345"); });
  stream("/length", {"one", "two"}, true, 6);
  stream("/chunks", {"one", "two"}, true);
  const RawSocket socket = RawSocket::connect(start());
  // Answers behind one another show that no byte is too many.
  for (const char* path : {"/text", "/length", "/chunks", "/health", "/none"}) {
    socket.send(std::string("HEAD ") + path + kHead);
    const std::string answer = socket.receive_until("\r\n\r\n");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 ")) << path;
    EXPECT_EQ(body_of(answer), "") << path;
    EXPECT_EQ(status_of(answer), std::string_view(path) == "/none" ? 404 : 200) << path;
    EXPECT_EQ(answer.find("Content-Length: 6") != std::string::npos,
              std::string_view(path) == "/length");
  }
  socket.send("GET /text" + kHead);
  EXPECT_EQ(body_of(socket.receive_message()), "12345");
}

TEST_F(HttpConnection, AStreamThatFailsDoesNotLookComplete) {
  open();
  stream("/chunks", {"one"}, false);
  stream("/short", {"one"}, true, 6);
  stream("/long", {"one", "two", "three"}, true, 6);
  server_->route("GET", "/throws", [](const Request&, Client&) {
    Response response;
    response.stream = [](Sink& sink) -> bool {
      sink.write("one");
      throw std::runtime_error("no");
    };
    return response;
  });
  stream("/nothing", {}, false);
  const int port = start();
  for (const char* path : {"/chunks", "/throws"}) {
    EXPECT_EQ(body_of(raw_exchange(port, std::string("GET ") + path + kHead)), "3\r\none\r\n");
  }
  EXPECT_EQ(body_of(raw_exchange(port, "GET /short" + kHead)), "one");
  EXPECT_EQ(body_of(raw_exchange(port, "GET /long" + kHead)), "onetwo");
  const std::string nothing = raw_exchange(port, "GET /nothing" + kHead);
  EXPECT_EQ(status_of(nothing), 200);
  EXPECT_EQ(body_of(nothing), "");
  // A client of HTTP/1.0 takes the end of the connection for that of the body.
  for (const char* path : {"/chunks", "/throws", "/nothing"}) {
    const RawSocket old = RawSocket::connect(port);
    old.send(std::string("GET ") + path + " HTTP/1.0\r\n\r\n");
    char bytes[1000];
    ssize_t n = 0;
    while ((n = ::recv(old.fd(), bytes, sizeof(bytes), 0)) > 0) {
    }
    EXPECT_EQ(n, -1) << path;
    EXPECT_EQ(errno, ECONNRESET) << path;
  }
}

TEST_F(HttpConnection, AHandlerThatThrowsIsStatus500) {
  open();
  server_->route("GET", "/throws",
                 [](const Request&, Client&) -> Response { throw std::runtime_error("secret"); });
  const std::string answer = raw_exchange(start(), get_text("/throws"));
  EXPECT_EQ(status_of(answer), 500);
  EXPECT_THAT(answer, Not(HasSubstr("secret")));
}

// A socket that is closed with unread bytes would take the answer from the client.
TEST_F(HttpConnection, TheLastAnswerArrivesThoughTheClientSendsMore) {
  open();
  server_->route("GET", "/text", [](const Request&, Client&) {
    return Response::text(200, std::string(std::size_t{4} << 20, 'x'));
  });
  const int port = start();
  const std::string answer =
      raw_exchange(port, get_text("/text") + std::string(std::size_t{1} << 20, 'a'));
  EXPECT_EQ(body_of(answer).size(), std::size_t{4} << 20);
}

// --- Who is gone

TEST_F(HttpConnection, AClientThatClosesIsGoneWhateverItSentBefore) {
  for (const bool is_stream : {false, true}) {
    for (const char* more : {"", "G", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"}) {
      std::atomic<bool> was_gone = false, has_begun = false;
      open();
      hold(was_gone, has_begun, is_stream);
      RawSocket socket = RawSocket::connect(start());
      socket.send("GET /hold" + kHead);
      while (!has_begun) std::this_thread::sleep_for(milliseconds(1));
      socket.send(more);
      socket.close();
      while (!was_gone) std::this_thread::sleep_for(milliseconds(1));
      server_.reset();
    }
  }
}

TEST_F(HttpConnection, AClientThatClosesItsSendingSideGetsItsAnswer) {
  for (const bool is_stream : {false, true}) {
    std::atomic<bool> was_gone = false, has_begun = false;
    may_go_on_ = false;
    open();
    hold(was_gone, has_begun, is_stream);
    const RawSocket socket = RawSocket::connect(start());
    socket.send("GET /hold" + kHead);
    ::shutdown(socket.fd(), SHUT_WR);
    while (!has_begun) std::this_thread::sleep_for(milliseconds(1));
    may_go_on_ = true;
    const std::string all = socket.receive_all();
    EXPECT_FALSE(was_gone);
    // The answer before that of the request is one that clients skip.
    const std::string skipped = "HTTP/1.1 100 Continue\r\n\r\n";
    ASSERT_THAT(all, StartsWith(skipped));
    EXPECT_EQ(status_of(all.substr(skipped.size())), 200);
    EXPECT_THAT(all, HasSubstr("done"));
    server_.reset();
  }
}

TEST_F(HttpConnection, RequestsBeforeTheEndOfAClientsBytesAreAllAnswered) {
  std::atomic<bool> was_gone = false, has_begun = false;
  may_go_on_ = true;
  open();
  hold(was_gone, has_begun, false);
  const RawSocket socket = RawSocket::connect(start());
  socket.send("GET /hold" + kHead + "GET /hold" + kHead);
  ::shutdown(socket.fd(), SHUT_WR);
  const std::string all = socket.receive_all();
  const std::size_t first = all.find("done");
  ASSERT_NE(first, std::string::npos);
  EXPECT_NE(all.find("done", first + 1), std::string::npos) << all;
  EXPECT_FALSE(was_gone);
}

// --- What clients can hold

TEST_F(HttpConnection, HalfSentHeadsDoNotKeepHealthWaiting) {
  options_.max_connections = 4;
  options_.head_timeout = options_.idle_timeout = std::chrono::hours(24);
  open();
  const int port = start();
  std::vector<RawSocket> held;
  for (int i = 0; i < 150; ++i) {
    held.push_back(RawSocket::connect(port));
    held.back().send("POST / HTTP/1.1\r\nHost: localhost\r\nX");
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(status_of(raw_exchange(port, get_text("/health"))), 200);
    EXPECT_EQ(status_of(raw_exchange(port, get_text("/metrics"))), 200);
    const std::string refused = raw_exchange(port, get_text("/none"));
    EXPECT_EQ(status_of(refused), 503);
    EXPECT_THAT(refused, HasSubstr("too many connections\""));
  }
  // A key is needed there as elsewhere.
  server_->set_api_keys({"secret"});
  EXPECT_EQ(status_of(raw_exchange(port, get_text("/metrics"))), 401);
  EXPECT_EQ(status_of(raw_exchange(port, get_text("/health"))), 200);
}

TEST_F(HttpConnection, OneAddressCannotHoldAllConnections) {
  options_.max_connections = 16;
  options_.max_connections_per_address = 3;
  open();
  const int port = start();
  const auto ask = [&](const RawSocket& socket) {
    socket.send("GET /none" + kHead);
    return socket.receive_message();
  };
  std::vector<RawSocket> held;
  for (int i = 0; i < 3; ++i) {
    held.push_back(RawSocket::connect(port, 2));
    ASSERT_EQ(status_of(ask(held.back())), 404);
  }
  const std::string refused = ask(RawSocket::connect(port, 2));
  EXPECT_EQ(status_of(refused), 503);
  EXPECT_THAT(refused, HasSubstr("from this address"));
  EXPECT_EQ(status_of(ask(RawSocket::connect(port, 3))), 404);
  // A connection that ends makes room.
  held.pop_back();
  while (status_of(ask(RawSocket::connect(port, 2))) != 404) {
    std::this_thread::sleep_for(milliseconds(1));
  }
}

// A reverse proxy has the connections of many clients.
TEST_F(HttpConnection, ThisMachineMayHaveAllConnections) {
  options_.max_connections = 40;
  open();
  const int port = start();
  std::vector<RawSocket> held;
  for (int i = 0; i < 40; ++i) {
    held.push_back(RawSocket::connect(port));
    held.back().send("GET /none" + kHead);
    ASSERT_EQ(status_of(held.back().receive_message()), 404);
  }
}

// Each byte comes in time.
TEST_F(HttpConnection, ABodyHasALimitOfTime) {
  options_.body_timeout = milliseconds(200);
  open();
  const RawSocket slow = RawSocket::connect(start());
  slow.send("POST /none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000\r\n\r\n");
  while (slow.send("a") && slow.receive(10).empty()) {
  }
  EXPECT_EQ(metrics_.value("tqcache_requests_refused_total", {{"status", "408"}}), 1);
}

// With few file descriptors, some are left for /health, and for other work.
TEST_F(HttpConnection, ConnectionsFitTheLimitOfOpenFiles) {
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::dup(0);
  ASSERT_GE(next, 0);
  ::close(next);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(next) + 21;  // 20 beside the socket that listens
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  open();
  const int port = start();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);  // the clients of this test are files, too
  std::vector<RawSocket> held;
  for (int i = 0; i < 10; ++i) {
    held.push_back(RawSocket::connect(port));
    held.back().send("GET /none" + kHead);
    ASSERT_EQ(status_of(held.back().receive_message()), 404);
  }
  EXPECT_EQ(status_of(raw_exchange(port, get_text("/none"))), 503);
  EXPECT_EQ(status_of(raw_exchange(port, get_text("/health"))), 200);
}

}  // namespace
}  // namespace tqcache::serve
