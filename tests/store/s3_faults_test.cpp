// An S3 service that is gone, slow, or says wrong things.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "store/fake_server.h"
#include "support/matchers.h"
#include "tqcache/store.h"

namespace tqcache::test {
namespace s3_faults_test {

using store::Backend;
using store::Entry;
using store::PutOutcome;
using testing::HasSubstr;

std::string http(int status, const std::string& body = "", const std::string& headers = "") {
  return "HTTP/1.1 " + std::to_string(status) +
         " x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body;
}

std::string error_body(const std::string& code) {
  return "<?xml version=\"1.0\"?><Error><Code>" + code + "</Code><Message>words</Message></Error>";
}

std::unique_ptr<Backend> open_with(const FakeServer& server, const store::BackendOptions& options) {
  return std::move(store::open_backend("s3://bucket?endpoint=http://" + server.address(), options))
      .value();
}

store::BackendOptions with_key(const std::string& secret = "key") {
  return {.credentials = {.s3_access_key = "id", .s3_secret_key = secret}};
}

class S3Faults : public testing::Test {
 protected:
  static std::unique_ptr<Backend> open(const std::string& address, const std::string& more = "",
                                       const std::string& secret = "key") {
    store::BackendOptions options = with_key(secret);
    options.connect_timeout = std::chrono::milliseconds(500);
    options.idle_timeout = std::chrono::milliseconds(500);
    options.max_value_bytes = 1000;
    auto opened = store::open_backend("s3://bucket?endpoint=http://" + address + more, options);
    if (!opened) throw std::runtime_error(opened.error().message);
    return std::move(opened).value();
  }

  static Error error_of(const std::string& answer, const std::string& secret = "key") {
    const FakeServer server(Script{{answer}});
    return open(server.address(), "", secret)->get("a").error();
  }

  static Result<void> list(const std::string& body, const std::string& headers,
                           std::vector<Entry>& entries, const std::string& secret = "key") {
    const FakeServer server(Script{{http(200, body, headers)}});
    return open(server.address(), "", secret)->list("", [&](const Entry& entry) -> Result<void> {
      entries.push_back(entry);
      return {};
    });
  }
};

TEST_F(S3Faults, WantsToKnowWhoAsks) {
  EXPECT_THAT(store::open_backend("s3://bucket", with_key("")),
              test::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("AWS_SECRET_ACCESS_KEY")));
}

TEST_F(S3Faults, TellsOfAServiceThatIsGone) {
  std::string address;
  {
    const FakeServer server(Script{{}});
    address = server.address();
  }
  EXPECT_EQ(open(address)->get("a").error().code, ErrorCode::kIo);
}

TEST_F(S3Faults, GivesUpAServiceThatIsSilent) {
  const FakeServer server(Script{{kSilence}});
  EXPECT_EQ(open(server.address())->get("a").error().code, ErrorCode::kIo);
}

TEST_F(S3Faults, GivesUpAServiceThatFallsSilentInTheMiddleOfAValue) {
  const std::string whole = http(200, "value");
  const FakeServer server(Script{{whole.substr(0, whole.size() - 2), kSilence}});
  EXPECT_EQ(open(server.address())->get("a").error().code, ErrorCode::kIo);
  EXPECT_EQ(server.n_connections(), 1);
}

TEST_F(S3Faults, AsksAgainWhenAConnectionBreaksInTheMiddleOfAValue) {
  const std::string whole = http(200, "value");
  const FakeServer server(Script{{whole.substr(0, whole.size() - 2)}, {whole}});
  const auto value = open(server.address())->get("a");
  ASSERT_TRUE(value.ok()) << value.error().message;
  EXPECT_EQ((*value)->size(), 5u);
}

TEST_F(S3Faults, GivesUpWhenASecondConnectionBreaks) {
  const std::string whole = http(200, "value");
  EXPECT_EQ(error_of(whole.substr(0, whole.size() - 2)).code, ErrorCode::kIo);
}

TEST_F(S3Faults, GivesUpAServiceThatEndsItsSide) {
  const FakeServer server(Script{{kHalfClosed}});
  EXPECT_EQ(open(server.address())->get("a").error().code, ErrorCode::kIo);
  EXPECT_EQ(server.n_connections(), 2);
  const FakeServer storing(Script{{kHalfClosed}});
  EXPECT_EQ(open_with(storing, with_key())->put("a", Bytes(32 << 20)).error().code, ErrorCode::kIo);
}

TEST_F(S3Faults, FindsWhatItPutBeforeTheConnectionBroke) {
  const FakeServer server(Script{{""}, {http(412)}});
  const auto outcome = open(server.address())->put("a", {});
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  EXPECT_EQ(*outcome, PutOutcome::kExisted);
}

TEST_F(S3Faults, TakesTheLengthOfAnAnswerForNoPromise) {
  EXPECT_EQ(error_of("HTTP/1.1 200 x\r\nContent-Length: 9000000000000000000\r\n\r\nvalue").code,
            ErrorCode::kIo);
}

TEST_F(S3Faults, RefusesWhatIsNotItsProtocol) {
  EXPECT_EQ(error_of("-ERR unknown command\r\n").code, ErrorCode::kIo);  // libcurl's word
  EXPECT_EQ(error_of(http(202)).code, ErrorCode::kCorrupt);
}

TEST_F(S3Faults, TakesNoMoreThanTheLargestValue) {
  EXPECT_EQ(error_of(http(200, std::string(1001, 'x'))).code, ErrorCode::kTooLarge);
  EXPECT_EQ(error_of("HTTP/1.1 200 x\r\n\r\n" + std::string(5000, 'x')).code, ErrorCode::kTooLarge);
}

TEST_F(S3Faults, TellsWhyItWasRefused) {
  const Error denied = error_of(http(403, error_body("AccessDenied")));
  EXPECT_EQ(denied.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(denied.message, HasSubstr("HTTP 403 AccessDenied"));
  EXPECT_EQ(error_of(http(404, error_body("NoSuchBucket"))).code, ErrorCode::kNotFound);
  EXPECT_EQ(error_of(http(503, error_body("SlowDown"))).code, ErrorCode::kBusy);
  EXPECT_EQ(error_of(http(403, error_body("QuotaExceeded"))).code, ErrorCode::kIo);
  EXPECT_EQ(error_of(http(507)).code, ErrorCode::kIo);
  EXPECT_EQ(error_of(http(301, error_body("PermanentRedirect"))).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of(http(405)).code, ErrorCode::kUnsupported);
  EXPECT_THAT(error_of(http(403, error_body("\x7f\n"))).message, HasSubstr("HTTP 403 ??"));
}

TEST_F(S3Faults, MissesAKeyThatIsNotThere) {
  const FakeServer server(Script{{http(404, error_body("NoSuchKey"))}});
  EXPECT_FALSE(open(server.address())->get("a")->has_value());
}

TEST_F(S3Faults, LooksBeforeItPutsWhereThereAreNoConditions) {
  const FakeServer server(Script{{http(501, error_body("NotImplemented")), http(404), http(200)}});
  const auto backend = open(server.address());
  const auto outcome = backend->put("a", {});
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  EXPECT_EQ(*outcome, PutOutcome::kStored);
}

TEST_F(S3Faults, RemembersThatThereAreNoConditions) {
  const FakeServer server(Script{{http(501), http(404), http(200), http(200)}});
  const auto backend = open(server.address());
  EXPECT_EQ(*backend->put("a", {}), PutOutcome::kStored);
  EXPECT_EQ(*backend->put("a", {}), PutOutcome::kExisted);  // by HEAD alone
}

// Some services answer 400 to a condition that they do not know.
TEST_F(S3Faults, LooksBeforeItPutsWhereConditionsAreABadRequest) {
  const FakeServer server(Script{{http(400, error_body("NotImplemented")), http(404), http(200)}});
  EXPECT_EQ(*open(server.address())->put("a", {}), PutOutcome::kStored);
  const FakeServer other(Script{{http(400, error_body("InvalidRequest"))}});
  EXPECT_EQ(open(other.address())->put("a", {}).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(S3Faults, SaysThatAServiceWantsTheBucketAsHost) {
  for (const char* word : {"SecondLevelDomainForbidden", "PathStyleDomainForbidden"}) {
    EXPECT_THAT(error_of(http(403, error_body(word))).message,
                HasSubstr("this service wants style=host in the URL of the store"));
  }
}

TEST_F(S3Faults, NamesTheBucketInTheHostOrInThePath) {
  const FakeServer by_path(Script{{http(200, "value")}});
  EXPECT_TRUE(open(by_path.address())->get("a").ok());
  EXPECT_THAT(by_path.asked(), HasSubstr("GET /bucket/a HTTP"));
  // bucket.localhost is this machine for libcurl.
  const FakeServer by_host(Script{{http(200, "value")}});
  const std::string port = by_host.address().substr(by_host.address().rfind(':'));
  EXPECT_TRUE(open("localhost" + port, "&style=host")->get("a").ok());
  EXPECT_THAT(by_host.asked(), HasSubstr("GET /a HTTP"));
  EXPECT_THAT(by_host.asked(), HasSubstr("Host: bucket.localhost" + port));
  const FakeServer listing(Script{{http(200, "<ListBucketResult></ListBucketResult>"), http(200)}});
  const auto host = open(listing.address().replace(0, 9, "localhost"), "&style=host");
  EXPECT_TRUE(host->list("", [](const Entry&) -> Result<void> { return {}; }).ok());
  const std::string key = "a";
  EXPECT_TRUE(host->touch(std::span(&key, 1)).ok());
  EXPECT_THAT(listing.asked(), HasSubstr("GET /?"));
  EXPECT_THAT(listing.asked(), HasSubstr("x-amz-copy-source: /bucket/a"));
  EXPECT_FALSE(store::open_backend("s3://bucket?style=dns", with_key()).ok());
}

TEST_F(S3Faults, PutsAgainWhatAnotherWasPutting) {
  const FakeServer server(Script{{http(409), http(412)}});
  EXPECT_EQ(*open(server.address())->put("a", {}), PutOutcome::kExisted);
  const FakeServer stubborn(Script{std::vector<std::string>(9, http(409))});
  EXPECT_EQ(open(stubborn.address())->put("a", {}).error().code, ErrorCode::kBusy);
}

// --- a service that cannot answer now

class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;

 private:
  const char* name_;
};

TEST_F(S3Faults, AsksAgainWhatTheServiceCannotAnswerNow) {
  const FakeServer server(
      Script{{http(503, error_body("SlowDown")), http(500), http(200, "value")}});
  const auto value = open(server.address())->get("a");
  ASSERT_TRUE(value.ok()) << value.error().message;
  EXPECT_EQ((*value)->size(), 5u);
  const FakeServer storing(Script{{http(500), http(412)}});
  EXPECT_EQ(*open(storing.address())->put("a", {}), PutOutcome::kExisted);
}

TEST_F(S3Faults, GivesUpAServiceThatStaysBusy) {
  const FakeServer server(Script{{http(503, error_body("SlowDown"))}});
  EXPECT_EQ(open(server.address())->get("a").error().code, ErrorCode::kBusy);
  // Pauses of 100 and 200 ms are within its half of a second, one of 400 ms more is not.
  EXPECT_EQ(server.n_connections(), 3);
}

TEST_F(S3Faults, APauseBetweenAttemptsIsInterrupted) {
  const FakeServer server(Script{{http(503)}});
  int n_looks = 0;
  store::BackendOptions options = with_key();
  options.idle_timeout = std::chrono::hours(1);
  options.interrupted = [&] { return ++n_looks > 40; };
  EXPECT_EQ(open_with(server, options)->get("a").error().code, ErrorCode::kInterrupted);
}

// --- keys, certificates, proxies

TEST_F(S3Faults, SendsTheTokenOfTemporaryKeys) {
  store::BackendOptions options = with_key();
  options.credentials.s3_session_token = "FwoGZXIvYXdzEB0aD";
  const FakeServer server(Script{{http(403, error_body("No-FwoGZXIvYXdzEB0aD"))}});
  const Error error = open_with(server, options)->get("a").error();
  EXPECT_THAT(error.message, HasSubstr("HTTP 403 No-*****************"));
  EXPECT_THAT(server.asked(), HasSubstr("x-amz-security-token: FwoGZXIvYXdzEB0aD\r\n"));
  EXPECT_THAT(server.asked(),
              testing::ContainsRegex("SignedHeaders=[a-z0-9;-]*x-amz-security-token"));
}

TEST_F(S3Faults, RefusesATokenThatWouldBeAnotherHeader) {
  store::BackendOptions options = with_key();
  options.credentials.s3_session_token = "a\r\nother: b";
  EXPECT_THAT(store::open_backend("s3://bucket", options),
              test::FailsWith(ErrorCode::kInvalidArgument, testing::Not(HasSubstr("other"))));
}

TEST_F(S3Faults, TrustsTheCertificatesThatTheUserNames) {
  for (const char* const name : {"AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"}) {
    const Variable file(name, "/nowhere/ca.pem");
    const FakeServer server(Script{{""}});
    store::BackendOptions options = with_key();
    options.credentials.ca_file = store::credentials_of_environment().ca_file;
    const auto backend =
        store::open_backend("s3://bucket?endpoint=https://" + server.address(), options);
    EXPECT_THAT((*backend)->get("a").error().message, HasSubstr("/nowhere/ca.pem")) << name;
  }
}

TEST_F(S3Faults, SendsNoPromptsThroughAProxyInTheClear) {
  const FakeServer proxy(Script{{http(200, "value")}});
  const Variable variable("http_proxy", "http://" + proxy.address());
  const FakeServer server(Script{{http(200, "value")}});
  EXPECT_TRUE(open(server.address())->get("a").ok());
  EXPECT_EQ(proxy.n_connections(), 0);
}

// --- large answers

TEST_F(S3Faults, HoldsFewLargeAnswersAtOnce) {
  const std::string whole = http(200, std::string(30 << 20, 'x'));
  const FakeServer server(Script{{whole}});
  std::size_t n_got = 0;
  const std::vector<std::string> keys = {"a", "b", "c", "d"};
  const Result<void> done =
      open_with(server, with_key())
          ->get(keys, [&](std::size_t i, std::optional<ByteView> value) -> Result<void> {
            EXPECT_EQ(i, n_got++);
            EXPECT_EQ(value.value_or(ByteView()).size(), std::size_t{30} << 20);
            return {};
          });
  EXPECT_TRUE(done.ok()) << done.error().message;
  EXPECT_EQ(n_got, 4u);
  EXPECT_GT(server.n_connections(), 4);  // some were asked for again
}

const std::string kObject =
    "<Contents><Key>b/1</Key><Size>7</Size><LastModified>2026-11-22T10:00:00.000Z</LastModified></"
    "Contents>";

TEST_F(S3Faults, CountsTimeByTheClockOfTheService) {
  std::vector<Entry> entries;
  const std::string body = "<ListBucketResult>" + kObject + "</ListBucketResult>";
  ASSERT_TRUE(list(body, "Date: Sun, 22 Nov 2026 10:01:40 GMT\r\n", entries).ok());
  ASSERT_TRUE(list(body, "date:Sun, 22 Nov 2026 09:00:00 GMT\r\n", entries).ok());
  ASSERT_TRUE(list(body, "", entries).ok());
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].key, "b/1");
  EXPECT_EQ(entries[0].bytes, 7u);
  EXPECT_EQ(entries[0].idle, std::chrono::seconds(100));
  EXPECT_EQ(entries[1].idle, std::chrono::seconds(0));
  EXPECT_FALSE(entries[2].idle.has_value());
}

TEST_F(S3Faults, SkipsListedKeysWithoutThePrefix) {
  std::string body = "<ListBucketResult>";
  for (const char* const key : {"a", "b/1", "c/1"}) {
    body += "<Contents><Key>" + std::string(key) +
            "</Key><Size>7</Size><LastModified>2026-11-22T10:00:00.000Z</LastModified></Contents>";
  }
  const FakeServer server(Script{{http(200, body + "</ListBucketResult>")}});
  std::vector<std::string> keys;
  const Result<void> done =
      open(server.address())->list("b/", [&](const Entry& entry) -> Result<void> {
        keys.push_back(entry.key);
        return {};
      });
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_EQ(keys, std::vector<std::string>{"b/1"});
}

TEST_F(S3Faults, RefusesAListingThatIsNone) {
  std::vector<Entry> entries;
  EXPECT_EQ(list("value", "", entries).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(list("<Other/>", "", entries).error().code, ErrorCode::kCorrupt);
}

TEST_F(S3Faults, EndsAListingThatGoesRoundInCircles) {
  const std::string body =
      "<ListBucketResult><IsTruncated>true</IsTruncated>"
      "<NextContinuationToken>t</NextContinuationToken></ListBucketResult>";
  const FakeServer server(Script{{http(200, body), http(200, body)}});
  const Result<void> done =
      open(server.address())->list("", [](const Entry&) -> Result<void> { return {}; });
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, ErrorCode::kCorrupt);
}

// --- services that never end

TEST_F(S3Faults, AnAnswerThatTricklesInIsTooSlow) {
  const FakeServer server(Script{{kTrickle + "HTTP/1.1 200 x\r\nContent-Length: 9000\r\n\r\n"}});
  store::BackendOptions options = with_key();
  options.idle_timeout = std::chrono::milliseconds(1000);
  options.least_rate = 1 << 20;
  EXPECT_EQ(open_with(server, options)->get("a").error().code, ErrorCode::kIo);
  EXPECT_EQ(server.n_connections(), 1);
  EXPECT_FALSE(server.has_given_up());
}

TEST_F(S3Faults, AnAnswerHasALimitOfTime) {
  const FakeServer server(Script{{kTrickle + "HTTP/1.1 200 x\r\nContent-Length: 9000\r\n\r\n"}});
  store::BackendOptions options = with_key();
  options.idle_timeout = std::chrono::minutes(10);
  options.least_rate = 0;
  options.time_limit = std::chrono::milliseconds(200);
  EXPECT_EQ(open_with(server, options)->get("a").error().code, ErrorCode::kIo);
  EXPECT_FALSE(server.has_given_up());
}

TEST_F(S3Faults, IsInterruptedWhereverItWaits) {
  int n_looks = 0;
  store::BackendOptions options = with_key();
  options.idle_timeout = std::chrono::minutes(10);
  options.interrupted = [&] { return ++n_looks > 8; };
  for (const std::string& answer : {kSilence, kDeaf, kTrickle + "HTTP/1.1 200 x\r\nA: b\r\n"}) {
    const FakeServer server(Script{{answer}});
    n_looks = 0;
    EXPECT_EQ(open_with(server, options)->get("a").error().code, ErrorCode::kInterrupted);
    n_looks = 0;
    EXPECT_EQ(open_with(server, options)->exists("a").error().code, ErrorCode::kInterrupted);
    n_looks = 0;
    EXPECT_EQ(open_with(server, options)->put("a", Bytes(32 << 20)).error().code,
              ErrorCode::kInterrupted);
    n_looks = 0;
    EXPECT_EQ(open_with(server, options)->remove("a").error().code, ErrorCode::kInterrupted);
  }
}

TEST_F(S3Faults, AListingThatNeverEndsIsRefused) {
  std::vector<std::string> pages;
  for (int i = 0; i < 100; ++i) {
    pages.push_back(http(200,
                         "<ListBucketResult><IsTruncated>true</IsTruncated>"
                         "<NextContinuationToken>t" +
                             std::to_string(i) + "</NextContinuationToken>" + kObject +
                             "</ListBucketResult>"));
  }
  for (const bool by_pages : {true, false}) {
    const FakeServer server(Script{pages});
    store::BackendOptions options = with_key();
    (by_pages ? options.max_list_pages : options.max_listed_keys) = 50;
    const Result<void> done =
        open_with(server, options)->list("", [](const Entry&) -> Result<void> { return {}; });
    ASSERT_FALSE(done.ok());
    EXPECT_EQ(done.error().code, ErrorCode::kTooLarge);
  }
}

TEST_F(S3Faults, ShowsNoKeyThatTheServiceRepeats) {
  const Error error = error_of(http(403, error_body("No-wJalrSecret-here")), "wJalrSecret");
  EXPECT_THAT(error.message, HasSubstr("HTTP 403 No-***********-here"));
  const Error split =
      error_of(http(403, error_body("wJalr<!-- -->Secret wJal&#114;Secret")), "wJalrSecret");
  EXPECT_THAT(split.message, HasSubstr("HTTP 403 *********** ***********"));
}

TEST_F(S3Faults, ShowsNoKeyThatAListRepeats) {
  for (const std::string field : {"LastModified", "Size"}) {
    const std::string wrong = "<" + field + ">1wJalrSecret wJal&#114;Secret</" + field + ">";
    std::vector<Entry> entries;
    const auto listed =
        list("<ListBucketResult><Contents>" + wrong + "</Contents></ListBucketResult>", "", entries,
             "wJalrSecret");
    ASSERT_FALSE(listed.ok()) << field;
    EXPECT_THAT(listed.error().message, HasSubstr("\"1*********** ***********\""));
  }
}

}  // namespace s3_faults_test
}  // namespace tqcache::test
