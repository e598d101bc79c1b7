// Who may ask: names of the server, pages of other sites, keys.

#include "tqcache/serve/http_access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "serve/raw_socket.h"
#include "tqcache/serve/http_server.h"

namespace tqcache::serve {
namespace {

using test::body_of;
using test::raw_exchange;
using test::status_of;
using testing::HasSubstr;
using testing::Not;

class HttpAccess : public testing::Test {
 protected:
  HttpOptions options_{.address = "127.0.0.1:0"};
  Metrics metrics_;
  Log log_{[](std::string_view) {}};
  std::unique_ptr<HttpServer> server_;

  void start() {
    server_ = std::make_unique<HttpServer>(options_, metrics_, log_);
    server_->route("POST", "/echo", [](const Request& request, Client&) {
      return Response::text(200, request.body);
    });
    server_->route("GET", kPagePath,
                   [](const Request&, Client&) { return Response::text(200, "the page"); });
    server_->route("GET", "/models", [](const Request&, Client&) {
      Response response = Response::text(200, "models");
      response.headers.push_back({"Access-Control-Allow-Origin", "http://other.example"});
      response.headers.push_back({"Access-Control-Allow-Credentials", "true"});
      return response;
    });
    const auto started = server_->start();
    ASSERT_TRUE(started) << started.error().message;
  }
  // The whole answer. `headers` has the line of the host, too.
  std::string ask(const std::string& line, const std::string& headers) const {
    return raw_exchange(server_->port(),
                        line + " HTTP/1.1\r\nConnection: close\r\n" + headers + "\r\n");
  }
  int status(const std::string& line, const std::string& headers) const {
    return status_of(ask(line, headers));
  }
  static std::string host(const std::string& name) { return "Host: " + name + "\r\n"; }
};

TEST_F(HttpAccess, WithoutKeysTheHostIsAnAddressOrLocalhost) {
  start();
  for (const char* name : {"localhost", "LocalHost:8081", "127.0.0.1", "127.0.0.1:8081",
                           "10.1.2.3:80", "[::1]", "[::1]:8081", "[2001:db8::5]:80"}) {
    EXPECT_EQ(status("POST /echo", host(name)), 200) << name;
    EXPECT_EQ(status("GET /health", host(name)), 200) << name;
  }
  for (const char* name :
       {"evil.example", "evil.example:8081", "localhost.evil.example", "127.0.0.1.evil.example",
        "127.0.0.1evil.example", "evil.example:127.0.0.1", "evil.example:8081:127.0.0.1",
        "localhost:x", "local host", "[::1].evil.example", "[::1]evil:80", "[::1", "[evil.example]",
        "127.1", "2130706433", "0x7f000001", ".localhost", "user@localhost", ""}) {
    for (const char* line : {"POST /echo", "GET /echo", "GET /health", "GET /metrics", "GET /",
                             "GET /tqcache", "OPTIONS /echo"}) {
      EXPECT_EQ(status(line, host(name)), 403) << name << line;
    }
    // What the client says of itself changes nothing.
    EXPECT_EQ(status("GET /tqcache", host(name) + "x-api-key: x\r\n"), 403) << name;
    EXPECT_EQ(status("POST /echo", host(name) + "Authorization: Bearer x\r\n"), 403) << name;
  }
  const std::string refused = ask("POST /echo", host("evil.example:8081"));
  EXPECT_THAT(refused, HasSubstr("--allow-host evil.example\""));
  EXPECT_THAT(refused, HasSubstr("permission_error"));
  // No browser leaves the header out.
  EXPECT_EQ(status_of(raw_exchange(server_->port(), "GET /health HTTP/1.0\r\n\r\n")), 200);
}

TEST_F(HttpAccess, AllowedHosts) {
  options_.allowed_hosts = {"Box.lan"};
  start();
  EXPECT_EQ(status("POST /echo", host("box.lan")), 200);
  EXPECT_EQ(status("POST /echo", host("BOX.LAN:8081")), 200);
  EXPECT_EQ(status("POST /echo", host("evil.box.lan")), 403);
  EXPECT_EQ(status("POST /echo", host("box.lan.evil")), 403);
}

TEST_F(HttpAccess, WithKeysTheKeyDecides) {
  options_.api_keys = {"secret"};
  start();
  EXPECT_EQ(status("POST /echo", host("name.example")), 401);
  EXPECT_EQ(status("POST /echo", host("name.example") + "x-api-key: other\r\n"), 401);
  EXPECT_EQ(status("POST /echo", host("name.example") + "x-api-key: secret\r\n"), 200);
}

TEST_F(HttpAccess, PagesOfOtherOriginsAreRefused) {
  start();
  const std::string own = host("127.0.0.1:8081");
  EXPECT_EQ(status("POST /echo", own + "Origin: http://127.0.0.1:8081\r\n"), 200);
  EXPECT_EQ(status("POST /echo", own + "Origin: https://127.0.0.1:8081\r\n"), 200);
  EXPECT_EQ(status("POST /echo", own + "Sec-Fetch-Site: same-origin\r\n"), 200);
  EXPECT_EQ(status("POST /echo", own + "Sec-Fetch-Site: none\r\n"), 200);
  for (const char* origin :
       {"http://evil.example", "http://127.0.0.1:3000", "null", "127.0.0.1:8081",
        "http://127.0.0.1:8081.evil.example", "http://127.0.0.1:80810"}) {
    const std::string foreign = own + "Origin: " + origin + "\r\n";
    EXPECT_EQ(status("POST /echo", foreign + "Content-Type: text/plain\r\n"), 403) << origin;
    EXPECT_EQ(status("GET /models", foreign), 403) << origin;
    EXPECT_EQ(status("GET /metrics", foreign), 403) << origin;
    EXPECT_EQ(status("POST /health", foreign), 403) << origin;
    EXPECT_EQ(status("POST /tqcache", foreign), 403) << origin;
  }
  EXPECT_EQ(status("POST /echo", own + "Sec-Fetch-Site: cross-site\r\n"), 403);
  EXPECT_EQ(status("GET /models", own + "Sec-Fetch-Site: cross-site\r\n"), 403);
  // A link to the page, or a monitor's.
  EXPECT_EQ(status("GET /tqcache", own + "Sec-Fetch-Site: cross-site\r\n"), 200);
  EXPECT_EQ(status("GET /health", own + "Sec-Fetch-Site: cross-site\r\n"), 200);
  EXPECT_THAT(ask("POST /echo", own + "Origin: http://evil.example\r\n"),
              HasSubstr("--allow-origin http://evil.example"));
}

TEST_F(HttpAccess, AllowedOriginsMayAskAndReadAnswers) {
  options_.allowed_origins = {"https://chat.example:444"};
  options_.api_keys = {"secret"};
  start();
  const std::string from = host("127.0.0.1") + "Origin: https://chat.example:444\r\n";
  const std::string allowed = "Access-Control-Allow-Origin: https://chat.example:444\r\n";
  const std::string key = "Authorization: Bearer secret\r\n";
  const std::string preflight =
      ask("OPTIONS /v1/anything", from +
                                      "Access-Control-Request-Method: POST\r\n"
                                      "Access-Control-Request-Headers: x-stainless-os, x-b\r\n");
  EXPECT_EQ(status_of(preflight), 204);
  EXPECT_THAT(preflight, HasSubstr(allowed));
  EXPECT_THAT(preflight, HasSubstr("Access-Control-Allow-Methods: GET, HEAD, POST"));
  EXPECT_THAT(preflight, HasSubstr("Access-Control-Allow-Headers: authorization, content-type, "
                                   "x-api-key, x-stainless-os, x-b\r\n"));
  EXPECT_THAT(preflight, HasSubstr("Access-Control-Max-Age: "));
  EXPECT_THAT(preflight, HasSubstr("Vary: Origin\r\n"));
  EXPECT_THAT(preflight, Not(HasSubstr("Content-Length")));
  EXPECT_EQ(body_of(preflight), "");

  const std::string answer = ask("POST /echo", from + key);
  EXPECT_EQ(status_of(answer), 200);
  EXPECT_THAT(answer, HasSubstr(allowed));
  EXPECT_THAT(answer, HasSubstr("Vary: Origin\r\n"));
  // The page can read why it was refused. OPTIONS that is no preflight needs a key.
  const std::string refused = ask("POST /echo", from);
  EXPECT_EQ(status_of(refused), 401);
  EXPECT_THAT(refused, HasSubstr(allowed));
  EXPECT_EQ(status("OPTIONS /echo", from), 401);
  // An upstream server's headers do not stand beside these.
  const std::string models = ask("GET /models", from + key);
  EXPECT_THAT(models, HasSubstr(allowed));
  EXPECT_THAT(models, Not(HasSubstr("other.example")));
  EXPECT_THAT(models, Not(HasSubstr("Allow-Credentials")));
  // The page is for nobody else's scripts.
  EXPECT_THAT(ask("GET /tqcache", from + key), Not(HasSubstr("Access-Control")));

  const std::string other = host("127.0.0.1") + "Origin: https://chat.example\r\n";
  EXPECT_EQ(status("POST /echo", other + key), 403);
  EXPECT_EQ(status("OPTIONS /echo", other + "Access-Control-Request-Method: POST\r\n"), 403);
  EXPECT_THAT(ask("GET /health", other), Not(HasSubstr("Access-Control")));
}

TEST_F(HttpAccess, AllOriginsAllowedDoesNotAllowAllHosts) {
  options_.allowed_origins = {"*"};
  start();
  const std::string from = "Origin: http://any.example\r\n";
  EXPECT_THAT(ask("POST /echo", host("localhost") + from),
              HasSubstr("Access-Control-Allow-Origin: http://any.example\r\n"));
  EXPECT_EQ(status("POST /echo", host("any.example") + from), 403);
  EXPECT_EQ(status("OPTIONS /echo",
                   host("any.example") + from + "Access-Control-Request-Method: POST\r\n"),
            403);
}

TEST_F(HttpAccess, WithoutAllowedOriginsThereIsNoCors) {
  start();
  const std::string preflight =
      "Origin: http://127.0.0.1\r\nAccess-Control-Request-Method: POST\r\n";
  const std::string answer = ask("OPTIONS /echo", host("127.0.0.1") + preflight);
  EXPECT_EQ(status_of(answer), 405);
  EXPECT_THAT(answer, HasSubstr("Allow: POST\r\n"));
  EXPECT_THAT(answer, Not(HasSubstr("Access-Control")));
  // Nor that of an upstream server.
  EXPECT_THAT(ask("GET /models", host("127.0.0.1")), Not(HasSubstr("Access-Control")));
}

}  // namespace
}  // namespace tqcache::serve
