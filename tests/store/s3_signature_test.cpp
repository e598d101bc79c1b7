// The signatures of requests to S3, which libcurl makes, compared with AWS's specification of
// version 4.

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "store/fake_server.h"
#include "support/cache_builder.h"
#include "tqcache/bytes.h"
#include "tqcache/store.h"

namespace tqcache::test {
namespace s3_signature_test {

constexpr std::string_view kSecret = "a secret/key+1";

std::string text_of(std::span<const unsigned char> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string hex(const std::string& bytes) {
  std::ostringstream out;
  for (const char c : bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    out << kDigits[byte >> 4] << kDigits[byte & 15];
  }
  return out.str();
}

std::string hash_of(const std::string& text) {
  std::array<unsigned char, 32> digest{};
  EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  return hex(text_of(digest));
}

std::string keyed(const std::string& key, const std::string& text) {
  std::array<unsigned char, 32> digest{};
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(), nullptr);
  return text_of(digest);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

std::string joined(const std::vector<std::string>& parts, const std::string& separator) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) text += (i == 0 ? "" : separator) + parts[i];
  return text;
}

// What stands behind `name` up to a comma or the end: "Credential=", "Signature=".
std::string field(const std::string& authorization, const std::string& name) {
  const std::size_t begin = authorization.find(name);
  if (begin == std::string::npos) return {};
  const std::size_t at = begin + name.size();
  return authorization.substr(at, authorization.find(',', at) - at);
}

struct Request {
  std::string method, path, query, body;
  std::map<std::string, std::string> headers;  // by name in lower case
};

Request request_of(const std::string& text) {
  Request request;
  const std::size_t end = text.find("\r\n\r\n");
  request.body = text.substr(end + 4);
  std::istringstream head(text.substr(0, end + 2));
  std::string target, line;
  head >> request.method >> target;
  request.path = target.substr(0, target.find('?'));
  if (target.size() > request.path.size()) request.query = target.substr(request.path.size() + 1);
  std::getline(head, line);
  while (std::getline(head, line)) {
    line.pop_back();  // \r
    std::string name = line.substr(0, line.find(':'));
    std::ranges::transform(name, name.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    const std::size_t value = line.find_first_not_of(' ', name.size() + 1);
    request.headers[name] = value == std::string::npos ? "" : line.substr(value);
  }
  return request;
}

// The signature that the request has to have. Paths and values of queries need no encoding but
// what they have: the tests take none with other characters.
std::string signature_of(const Request& request) {
  const std::string& authorization = request.headers.at("authorization");
  const std::string credential = field(authorization, "Credential=");  // id/date/region/s3/...
  const std::string signed_names = field(authorization, "SignedHeaders=");
  std::vector<std::string> query = split(request.query, '&');
  std::ranges::sort(query);
  std::string headers;
  for (const std::string& name : split(signed_names, ';')) {
    headers += name + ":" + request.headers.at(name) + "\n";
  }
  const auto told = request.headers.find("x-amz-content-sha256");
  const std::string payload = told == request.headers.end() ? hash_of(request.body) : told->second;
  const std::string canonical = joined(
      {request.method, request.path, joined(query, "&"), headers, signed_names, payload}, "\n");
  const std::string scope = credential.substr(credential.find('/') + 1);
  std::string key = "AWS4" + std::string(kSecret);
  for (const std::string& part : split(scope, '/')) key = keyed(key, part);
  return hex(keyed(
      key, joined({"AWS4-HMAC-SHA256", request.headers.at("x-amz-date"), scope, hash_of(canonical)},
                  "\n")));
}

class S3Signature : public testing::Test {
 protected:
  // What the server is asked by `use`.
  template <class Use>
  static Request asked_by(const std::string& answer, Use use) {
    const FakeServer server(Script{{answer}});
    store::BackendOptions options;
    options.credentials = {.s3_access_key = "id", .s3_secret_key = std::string(kSecret)};
    const auto backend = must(
        store::open_backend("s3://my-bucket/a/b_c.d?endpoint=http://" + server.address(), options));
    use(*backend);
    return request_of(server.asked());
  }

  static void expect_signed(const Request& request) {
    EXPECT_EQ(field(request.headers.at("authorization"), "Signature="), signature_of(request))
        << request.method << " " << request.path << "?" << request.query;
  }
};

const std::string kMissing = "HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n";
const std::string kDone = "HTTP/1.1 200 x\r\nContent-Length: 0\r\n\r\n";

TEST_F(S3Signature, OfAGetIsRight) {
  const Request get = asked_by(kMissing, [](store::Backend& backend) {
    EXPECT_FALSE(must(backend.get("words/one-two_3.x")).has_value());
  });
  EXPECT_EQ(get.path, "/my-bucket/a/b_c.d/words/one-two_3.x");
  expect_signed(get);
}

TEST_F(S3Signature, OfAPutIsRight) {
  const Request put = asked_by(kDone, [](store::Backend& backend) {
    const std::string value = "the value";
    EXPECT_TRUE(backend.put("key", std::as_bytes(std::span(value))).ok());
  });
  EXPECT_EQ(put.method, "PUT");
  expect_signed(put);
}

TEST_F(S3Signature, OfAListingIsRight) {
  const std::string body = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
  const std::string answer =
      "HTTP/1.1 200 x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  const Request list = asked_by(answer, [](store::Backend& backend) {
    EXPECT_TRUE(backend.list("p/", [](const store::Entry&) -> Result<void> { return {}; }).ok());
  });
  EXPECT_NE(list.query.find("prefix="), std::string::npos);
  expect_signed(list);
}

}  // namespace s3_signature_test
}  // namespace tqcache::test
