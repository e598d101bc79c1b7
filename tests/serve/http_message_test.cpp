#include "tqcache/serve/http_message.h"

#include <gtest/gtest.h>

#include <string>

#include "tqcache/serve/http_server.h"

namespace tqcache::serve {
namespace {

int status_for(const std::string& text) {
  Head head;
  const auto refusal = parse_head(text, {}, head);
  return refusal ? refusal->status : 200;
}

TEST(HttpHead, Parses) {
  Head head;
  const auto refusal = parse_head(
      "POST /v1/x?a=b HTTP/1.1\r\nHost: h\r\nX-Y:  two words \r\nContent-Length: 12\r\n"
      "Connection: close\r\nExpect: 100-Continue\r\n\r\n",
      {}, head);
  ASSERT_FALSE(refusal) << refusal->message;
  EXPECT_EQ(head.request.method, "POST");
  EXPECT_EQ(head.request.path, "/v1/x");
  EXPECT_EQ(head.request.query, "a=b");
  EXPECT_EQ(head.request.header("x-y"), "two words");
  EXPECT_EQ(head.content_length, 12u);
  EXPECT_FALSE(head.keep_alive);
  EXPECT_TRUE(head.expects_continue);
}

TEST(HttpHead, WhatHasTwoMeaningsIsRefused) {
  const std::string post = "POST / HTTP/1.1\r\nHost: h\r\n";
  EXPECT_EQ(status_for(post + "Content-Length: 1\r\n\r\n"), 200);
  EXPECT_EQ(status_for(post + "Content-Length: 1\r\nContent-Length: 1\r\n\r\n"), 400);
  EXPECT_EQ(status_for(post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n"), 400);
  EXPECT_EQ(status_for(post + "Content-Length: 1, 1\r\n\r\n"), 400);
  EXPECT_EQ(status_for(post + "Content-Length: +1\r\n\r\n"), 400);
  EXPECT_EQ(status_for(post + "Content-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(status_for(post + "Content-Length: 0x1\r\n\r\n"), 400);
  EXPECT_EQ(status_for(post + "Content-Length:\r\n\r\n"), 400);
  EXPECT_EQ(status_for(post + "Content-Length: 99999999999999999999\r\n\r\n"), 400);
  EXPECT_EQ(status_for(post + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
  EXPECT_EQ(status_for(post + "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n"), 400);
  EXPECT_EQ(status_for(post + "Transfer-Encoding: chunked\r\n\r\n"), 200);
  EXPECT_EQ(status_for(post + "Transfer-Encoding: chunked, chunked\r\n\r\n"), 501);
  EXPECT_EQ(status_for(post + "Transfer-Encoding: gzip, chunked\r\n\r\n"), 501);
  EXPECT_EQ(status_for(post + "Transfer-Encoding: xchunked\r\n\r\n"), 501);
  EXPECT_EQ(status_for(post + "Transfer-Encoding : chunked\r\n\r\n"), 400);
  EXPECT_EQ(status_for(post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"),
            400);
  EXPECT_EQ(status_for("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
  EXPECT_EQ(status_for(post + "Content-Length: 1\r\n folded\r\n\r\n"), 400);
  EXPECT_EQ(status_for(post + "\tX: folded\r\n\r\n"), 400);
  EXPECT_EQ(status_for(post + "X: a\nContent-Length: 1\r\n\r\n"), 400);
  EXPECT_EQ(status_for(post + "X: a\rContent-Length: 1\r\n\r\n"), 400);
  EXPECT_EQ(status_for(post + std::string("X: a\0b\r\n\r\n", 11)), 400);
  EXPECT_EQ(status_for(post + "Host: other\r\n\r\n"), 400);
  EXPECT_EQ(status_for("POST / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status_for(post + "no colon\r\n\r\n"), 400);
  EXPECT_EQ(status_for(post + ": no name\r\n\r\n"), 400);
}

TEST(HttpHead, RequestLine) {
  const std::string rest = "\r\nHost: h\r\n\r\n";
  EXPECT_EQ(status_for("GET / HTTP/1.1" + rest), 200);
  EXPECT_EQ(status_for("GET / HTTP/2.0" + rest), 505);
  EXPECT_EQ(status_for("GET / HTTP/1.10" + rest), 505);
  EXPECT_EQ(status_for("GET http://other/ HTTP/1.1" + rest), 400);
  EXPECT_EQ(status_for("GET  / HTTP/1.1" + rest), 400);
  EXPECT_EQ(status_for("GET / x HTTP/1.1" + rest), 400);
  EXPECT_EQ(status_for("GET /\tx HTTP/1.1" + rest), 400);
  EXPECT_EQ(status_for("G@T / HTTP/1.1" + rest), 400);
  EXPECT_EQ(status_for("/ HTTP/1.1" + rest), 400);
  EXPECT_EQ(status_for(" GET / HTTP/1.1" + rest), 400);
  EXPECT_EQ(status_for("GET /" + std::string(9000, 'a') + " HTTP/1.1" + rest), 414);
}

TEST(HttpHead, Limits) {
  std::string many = "GET / HTTP/1.1\r\nHost: h\r\n";
  for (int i = 0; i < 128; ++i) many += "X: y\r\n";
  EXPECT_EQ(status_for(many + "\r\n"), 431);
  EXPECT_EQ(status_for("GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(70'000, 'a') + "\r\n\r\n"),
            431);
}

// The body, or the status of its refusal.
std::string chunked(const std::string& bytes, std::size_t step) {
  ChunkDecoder decoder(100);
  std::string body;
  for (std::size_t i = 0; i < bytes.size(); i += step) {
    decoder.feed(std::string_view(bytes).substr(i, step), body);
    if (decoder.refusal()) return std::to_string(decoder.refusal()->status);
  }
  return decoder.is_complete() ? body : "incomplete";
}

TEST(HttpChunks, AreReadInAnyPieces) {
  for (const std::size_t step : {1u, 2u, 3u, 7u, 100u}) {
    EXPECT_EQ(chunked("5\r\nhello\r\nA\r\n, world!!!\r\n0\r\n\r\n", step), "hello, world!!!");
    EXPECT_EQ(chunked("0\r\n\r\n", step), "");
    EXPECT_EQ(chunked("5\r\nhel", step), "incomplete");
    EXPECT_EQ(chunked("5\r\nhelloX\r\n0\r\n\r\n", step), "400");
    EXPECT_EQ(chunked("5;x=y\r\nhello\r\n0\r\n\r\n", step), "400");
    EXPECT_EQ(chunked("0x5\r\nhello\r\n0\r\n\r\n", step), "400");
    EXPECT_EQ(chunked("-5\r\nhello\r\n0\r\n\r\n", step), "400");
    EXPECT_EQ(chunked("\r\nhello\r\n0\r\n\r\n", step), "400");
    EXPECT_EQ(chunked("5\nhello\r\n0\r\n\r\n", step), "400");
    EXPECT_EQ(chunked("5 \r\nhello\r\n0\r\n\r\n", step), "400");
    EXPECT_EQ(chunked("0\r\nTrailer: x\r\n\r\n", step), "400");
    EXPECT_EQ(chunked("65\r\n", step), "413");
    EXPECT_EQ(chunked("ffffffffffffffff\r\n", step), "400");
  }
}

TEST(HttpServer, Addresses) {
  EXPECT_EQ(parse_host_port("127.0.0.1:80")->host, "127.0.0.1");
  EXPECT_EQ(parse_host_port("[::1]:8080")->host, "::1");
  EXPECT_EQ(parse_host_port("[::1]:8080")->port, 8080);
  for (const char* text : {"", "host", ":80", "host:", "host:x", "host:70000", "::1:80", "h:-1"}) {
    EXPECT_FALSE(parse_host_port(text)) << text;
  }
}

}  // namespace
}  // namespace tqcache::serve
