// A Redis server that is gone, slow, or says wrong things.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "store/fake_server.h"
#include "support/matchers.h"
#include "tqcache/store.h"

namespace tqcache::test {
namespace redis_faults_test {

using store::Backend;
using testing::ElementsAre;
using testing::HasSubstr;
using namespace std::string_literals;

const std::string kValue = "$5\r\nvalue\r\n";

std::unique_ptr<Backend> open(const FakeServer& server, std::uint64_t max_value_bytes = 1000) {
  store::BackendOptions options;
  options.connect_timeout = std::chrono::milliseconds(500);
  options.idle_timeout = std::chrono::milliseconds(200);
  options.max_value_bytes = max_value_bytes;
  return std::move(store::open_backend("redis://" + server.address(), options)).value();
}

Error error_of(const std::string& answer) {
  const FakeServer server(Script{{answer}});
  return open(server)->get("a").error();
}

TEST(RedisFaults, TellsOfAServerThatIsGone) {
  std::string address;
  {
    const FakeServer server(Script{{}});
    address = server.address();
  }
  const auto backend = store::open_backend("redis://" + address, {});
  const Error error = (*backend)->get("a").error();
  EXPECT_EQ(error.code, ErrorCode::kIo);
  EXPECT_THAT(error.message, HasSubstr(address));
  const auto socket = store::open_backend("redis+unix:/nowhere/socket", {});
  EXPECT_EQ((*socket)->get("a").error().code, ErrorCode::kIo);
}

TEST(RedisFaults, GivesUpAServerThatIsSilent) {
  const FakeServer server(Script{{kSilence}});
  const Error error = open(server)->get("a").error();
  EXPECT_EQ(error.code, ErrorCode::kIo);
  EXPECT_THAT(error.message, HasSubstr("nothing for 200 ms"));
  EXPECT_EQ(server.n_connections(), 1);  // a second wait would not help
}

TEST(RedisFaults, GivesUpAServerThatFallsSilentInTheMiddleOfAValue) {
  const FakeServer server(Script{{"$5\r\nval", kSilence}});
  EXPECT_THAT(open(server)->get("a").error().message, HasSubstr("nothing for 200 ms"));
  EXPECT_EQ(server.n_connections(), 1);
}

TEST(RedisFaults, AsksAgainWhenAConnectionBreaks) {
  const FakeServer server(Script{{""}, {kValue}});
  EXPECT_TRUE(open(server)->get("a")->has_value());
}

TEST(RedisFaults, AsksAgainWhenAConnectionBreaksInTheMiddleOfAValue) {
  const FakeServer server(Script{{"$5\r\nval"}, {kValue}});
  const auto value = open(server)->get("a");
  ASSERT_TRUE(value.ok()) << value.error().message;
  EXPECT_EQ(**value, Bytes(as_bytes("value").begin(), as_bytes("value").end()));
}

// As a server with `timeout` does it between two calls: nobody notices, whatever comes next.
TEST(RedisFaults, IsReachedAgainWhenItHasClosedAnIdleConnection) {
  const FakeServer server(Script{{"+OK\r\n"}, {kValue}, {":1\r\n"}, {"+OK\r\n"}});
  const auto store = open(server);
  EXPECT_TRUE(store->put("a", as_bytes("value")).ok());
  EXPECT_TRUE(store->get("a").ok());
  EXPECT_TRUE(store->exists("a").ok());
  EXPECT_TRUE(store->put("b", as_bytes("value")).ok());
  EXPECT_EQ(server.n_connections(), 4);
}

TEST(RedisFaults, GivesUpWhenASecondConnectionBreaks) {
  const FakeServer server(Script{{"$5\r\nval"}});
  EXPECT_EQ(open(server)->get("a").error().code, ErrorCode::kIo);
  EXPECT_EQ(server.n_connections(), 2);
}

TEST(RedisFaults, GivesUpAServerThatEndsItsSide) {
  const FakeServer server(Script{{kHalfClosed}});
  EXPECT_EQ(open(server)->get("a").error().code, ErrorCode::kIo);
  EXPECT_EQ(server.n_connections(), 2);
  const FakeServer storing(Script{{kHalfClosed}});
  EXPECT_EQ(open(storing, 64 << 20)->put("a", Bytes(32 << 20)).error().code, ErrorCode::kIo);
  const FakeServer middle(Script{{"$5\r\nval", kHalfClosed}});
  EXPECT_EQ(open(middle)->get("a").error().code, ErrorCode::kIo);
}

// What get() brings for these keys, in the order in which it does; empty for a miss.
std::vector<std::string> values_of(const FakeServer& server, std::vector<std::string> keys) {
  std::vector<std::string> values;
  const Result<void> done =
      open(server)->get(keys, [&](std::size_t i, std::optional<ByteView> value) -> Result<void> {
        EXPECT_EQ(i, values.size());
        values.emplace_back();
        if (value)
          values.back().assign(reinterpret_cast<const char*>(value->data()), value->size());
        return {};
      });
  EXPECT_TRUE(done.ok()) << done.error().message;
  return values;
}

TEST(RedisFaults, AsksAgainOnlyForWhatWasNotThereWhenAConnectionBroke) {
  const FakeServer server(Script{{kValue + "$5\r\nval"}, {"$5\r\nother\r\n"}});
  EXPECT_THAT(values_of(server, {"a", "b"}), ElementsAre("value", "other"));
}

TEST(RedisFaults, FindsWhatItPutBeforeTheConnectionBroke) {
  const FakeServer server(Script{{""}, {"$-1\r\n"}});
  const auto outcome = open(server)->put("a", as_bytes("value"));
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  EXPECT_EQ(*outcome, store::PutOutcome::kExisted);
}

TEST(RedisFaults, EndsAPutAtTheFirstRefusal) {
  const FakeServer server(Script{{"+OK\r\n-OOM full\r\n+OK\r\n"}});
  const std::vector<store::Blob> blobs = {{"a", {}}, {"b", {}}, {"c", {}}};
  EXPECT_THAT(open(server)->put(blobs),
              test::FailsWith(ErrorCode::kIo, HasSubstr("b: refused: OOM")));
}

TEST(RedisFaults, GoesOnWithANewConnectionAfterAnError) {
  const FakeServer server(Script{{"nonsense\r\n"}, {kValue}});
  const auto backend = open(server);
  EXPECT_EQ(backend->get("a").error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(backend->get("a").ok());
}

TEST(RedisFaults, RefusesWhatIsNotItsProtocol) {
  for (const char* answer :
       {"HTTP/1.1 400 Bad Request\r\n\r\n", ":5\r\n", "+OK\r\n", "*0\r\n", "$x\r\n", "$-5\r\n"}) {
    EXPECT_EQ(error_of(answer).code, ErrorCode::kCorrupt) << answer;
  }
}

TEST(RedisFaults, TakesNoMoreThanTheLargestValue) {
  EXPECT_EQ(error_of("$1001\r\n" + std::string(1001, 'x') + "\r\n").code, ErrorCode::kTooLarge);
  // The length is no promise: this one goes on for ever, as far as anyone can tell.
  EXPECT_EQ(error_of("$500000\r\n" + std::string(200'000, 'x')).code, ErrorCode::kTooLarge);
}

// As tqcache opens stores: a hostile answer is in memory more than once.
TEST(RedisFaults, TakesNoValueThatNoPromptHas) {
  const FakeServer server(
      Script{{"$536870912\r\n" + std::string(std::size_t{145} << 20, 'x'), kSilence}});
  const auto backend = store::open_backend("redis://" + server.address(), {});
  const Error error = (*backend)->get("a").error();
  EXPECT_EQ(error.code, ErrorCode::kTooLarge) << error.message;
}

TEST(RedisFaults, TellsWhyItWasRefused) {
  EXPECT_EQ(error_of("-LOADING the dataset\r\n").code, ErrorCode::kBusy);
  EXPECT_EQ(error_of("-CLUSTERDOWN no slot\r\n").code, ErrorCode::kBusy);
  EXPECT_EQ(error_of("-OOM command not allowed\r\n").code, ErrorCode::kIo);
  EXPECT_EQ(error_of("-NOAUTH Authentication required.\r\n").code, ErrorCode::kIo);
  EXPECT_THAT(error_of("-NOAUTH Authentication required.\r\n").message,
              HasSubstr("required. The password goes into the URL or into REDISCLI_AUTH"));
  EXPECT_EQ(error_of("-WRONGPASS invalid username-password pair\r\n").code, ErrorCode::kIo);
  EXPECT_EQ(error_of("-NOPERM no permissions to run get\r\n").code, ErrorCode::kIo);
  EXPECT_EQ(error_of("-ERR unknown command `GET`\r\n").code, ErrorCode::kUnsupported);
  EXPECT_THAT(error_of("-NOPERM \x1b[31m\x07\r\n").message, HasSubstr("refused: NOPERM ?[31m?"));
}

// A damaged blob without bytes; everything else about it is told.
TEST(RedisFaults, TakesAValueOfAnotherKindForAnEmptyOne) {
  const FakeServer server(Script{{"-WRONGTYPE Operation against a key\r\n"}});
  const auto value = open(server)->get("a");
  ASSERT_TRUE(value.ok()) << value.error().message;
  EXPECT_EQ(*value, Bytes());
}

TEST(RedisFaults, FollowsARedirection) {
  const FakeServer other(Script{{kValue}});
  const FakeServer first(Script{{"-MOVED 15495 " + other.address() + "\r\n", "-ERR no\r\n"}});
  EXPECT_TRUE(open(first)->get("a")->has_value());
}

TEST(RedisFaults, KeepsTheOrderWhenOneOfSeveralIsRedirected) {
  const FakeServer other(Script{{"$6\r\nsecond\r\n"}});
  const FakeServer first(
      Script{{kValue + "-MOVED 15495 " + other.address() + "\r\n$5\r\nthird\r\n", "-ERR no\r\n"}});
  EXPECT_THAT(values_of(first, {"a", "b", "c"}), ElementsAre("value", "second", "third"));
}

TEST(RedisFaults, AsksForTheSlotsOnce) {
  // One node has all slots; what is asked afterwards goes there.
  const FakeServer other(Script{{kValue, kValue}});
  const std::string port = other.address().substr(other.address().find(':') + 1);
  const std::string slots =
      "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:" + port + "\r\n";
  const FakeServer first(Script{{"-MOVED 15495 " + other.address() + "\r\n", slots}});
  const auto backend = open(first);
  EXPECT_TRUE(backend->get("a").ok());
  EXPECT_TRUE(backend->get("b").ok());
  EXPECT_EQ(first.n_connections(), 1);
}

TEST(RedisFaults, FollowsARedirectionForOneCommand) {
  const FakeServer other(Script{{"+OK\r\n" + kValue}});
  const FakeServer first(Script{{"-ASK 15495 " + other.address() + "\r\n", kValue}});
  const auto backend = open(first);
  EXPECT_TRUE(backend->get("a")->has_value());
  EXPECT_TRUE(backend->get("a")->has_value());
  EXPECT_EQ(other.n_connections(), 1);
}

TEST(RedisFaults, GivesUpNodesThatPointAtEachOther) {
  // An empty host means the node itself.
  const FakeServer server(Script{std::vector<std::string>(50, "-ASK 1 :0\r\n")});
  EXPECT_EQ(open(server)->get("a").error().code, ErrorCode::kInvalidArgument);  // no such port
  const FakeServer circle(Script{std::vector<std::string>(50, "-MOVED 1 " + kItself + "\r\n")});
  EXPECT_EQ(open(circle)->get("a").error().code, ErrorCode::kBusy);
}

TEST(RedisFaults, RefusesAListingThatIsNone) {
  for (const char* scan : {"*0\r\n", "*2\r\n$1\r\n0\r\n$1\r\nx\r\n", "*2\r\n$-1\r\n*0\r\n"}) {
    const FakeServer server(Script{{"-ERR no cluster\r\n", scan}});
    const Result<void> done =
        open(server)->list("", [](const store::Entry&) -> Result<void> { return {}; });
    ASSERT_FALSE(done.ok()) << scan;
    EXPECT_EQ(done.error().code, ErrorCode::kCorrupt) << scan;
  }
}

// --- servers that never end

// Patient by default: no limit of time but those that a test sets.
store::BackendOptions patient() {
  store::BackendOptions options;
  options.idle_timeout = std::chrono::minutes(10);
  options.least_rate = 0;
  return options;
}

std::unique_ptr<Backend> open(const FakeServer& server, const store::BackendOptions& options,
                              const std::string& login = "") {
  return std::move(store::open_backend("redis://" + login + server.address(), options)).value();
}

TEST(RedisFaults, RefusesNegativeSizesAndTimes) {
  const std::string scan = "*2\r\n$1\r\n0\r\n*1\r\n$9\r\ntqcache:a\r\n";
  const auto list = [&](const std::string& size, const std::string& idle) {
    // The keys are listed on one connection, and looked at on another.
    const FakeServer server(Script{{"-ERR no cluster\r\n", scan}, {size, idle}});
    std::vector<store::Entry> entries;
    const Result<void> done = open(server, patient())->list("", [&](const store::Entry& entry) {
      entries.push_back(entry);
      return Result<void>();
    });
    return done ? Result<std::vector<store::Entry>>(std::move(entries)) : done.error();
  };
  const auto good = list(":5\r\n", ":7\r\n");
  ASSERT_TRUE(good.ok()) << good.error().message;
  ASSERT_EQ(good->size(), 1u);
  EXPECT_EQ(good->front().idle, std::chrono::seconds(7));
  EXPECT_EQ(list(":-5\r\n", ":7\r\n").error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(list(":5\r\n", ":-7\r\n").error().code, ErrorCode::kCorrupt);
}

TEST(RedisFaults, SkipsListedKeysWithoutThePrefix) {
  const std::string scan =
      "*2\r\n$1\r\n0\r\n*4\r\n$9\r\ntqcache:a\r\n$11\r\ntqcache:b/1\r\n"
      "$11\r\ntqcache:c/1\r\n$3\r\nb/2\r\n";
  const std::string sizes = ":5\r\n:5\r\n:5\r\n";
  const FakeServer server(Script{{"-ERR no cluster\r\n", scan}, {sizes, sizes}});
  std::vector<std::string> keys;
  const Result<void> done = open(server, patient())->list("b/", [&](const store::Entry& entry) {
    keys.push_back(entry.key);
    return Result<void>();
  });
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_THAT(keys, ElementsAre("b/1"));
}

TEST(RedisEndless, AnAnswerThatTricklesInIsTooSlow) {
  const FakeServer server(Script{{kTrickle + "$1000\r\n"}});
  store::BackendOptions options = patient();
  options.idle_timeout = std::chrono::milliseconds(1000);
  options.least_rate = 1 << 20;
  const Error error = open(server, options)->get("a").error();
  EXPECT_EQ(error.code, ErrorCode::kIo);
  EXPECT_THAT(error.message, testing::AnyOf(HasSubstr("fewer than"), HasSubstr("nothing for")));
  EXPECT_EQ(server.n_connections(), 1);
}

TEST(RedisEndless, AnAnswerHasALimitOfTime) {
  const FakeServer server(Script{{kTrickle + "$1000\r\n"}});
  store::BackendOptions options = patient();
  options.time_limit = std::chrono::milliseconds(200);
  EXPECT_THAT(open(server, options)->get("a").error().message, HasSubstr("not done within 200"));
}

// The program is interrupted while each of these waits: none looks at a clock.
TEST(RedisEndless, IsInterruptedWhereverItWaits) {
  std::atomic<int> n_looks = 0;
  store::BackendOptions options = patient();
  options.interrupted = [&] { return ++n_looks > 8; };
  for (const std::string& answer : {kSilence, kDeaf, kTrickle + "$1000\r\n", "$5\r\nval"s}) {
    const FakeServer server(Script{{answer, kSilence}});
    n_looks = 0;
    EXPECT_EQ(open(server, options)->get("a").error().code, ErrorCode::kInterrupted) << answer;
    n_looks = 0;
    EXPECT_EQ(open(server, options, ":word@")->exists("a").error().code, ErrorCode::kInterrupted);
    n_looks = 0;
    const auto listed =
        open(server, options)->list("", [](const store::Entry&) -> Result<void> { return {}; });
    EXPECT_EQ(listed.error().code, ErrorCode::kInterrupted);
  }
  const FakeServer server(Script{{kDeaf}});
  n_looks = 0;
  const Bytes large(32 << 20);  // more than the system keeps for a reader
  EXPECT_EQ(open(server, options)->put("a", large).error().code, ErrorCode::kInterrupted);
}

TEST(RedisEndless, NoAnswerToAGetIsAnArray) {
  for (const std::string& array : {"*1000000000\r\n"s, "*2000000000\r\n"s, "*1\r\n*7\r\n"s}) {
    const FakeServer server(Script{{array + ":1\r\n", kEndless + ":1\r\n"}});
    const Error error = open(server)->get("a").error();
    EXPECT_EQ(error.code, ErrorCode::kCorrupt) << array;
    EXPECT_THAT(error.message, HasSubstr("more than 0 elements"));
    EXPECT_FALSE(server.has_given_up());
  }
}

TEST(RedisEndless, APageOfKeysHasALimit) {
  const FakeServer server(
      Script{{"-ERR no cluster\r\n", "*2\r\n$1\r\n7\r\n*100000000\r\n", kEndless + "$1\r\na\r\n"}});
  const auto listed =
      open(server)->list("", [](const store::Entry&) -> Result<void> { return {}; });
  ASSERT_FALSE(listed.ok());
  EXPECT_EQ(listed.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(listed.error().message, HasSubstr("elements"));
}

TEST(RedisEndless, AListingThatNeverEndsIsRefused) {
  std::vector<std::string> answers = {"-ERR no cluster\r\n"};
  for (int i = 100; i < 200; ++i) {
    answers.push_back("*2\r\n$1\r\n7\r\n*1\r\n$11\r\ntqcache:" + std::to_string(i) + "\r\n");
  }
  for (const bool by_pages : {true, false}) {
    const FakeServer server(Script{answers});
    store::BackendOptions options = patient();
    (by_pages ? options.max_list_pages : options.max_listed_keys) = 50;
    const auto listed =
        open(server, options)->list("", [](const store::Entry&) -> Result<void> { return {}; });
    ASSERT_FALSE(listed.ok());
    EXPECT_EQ(listed.error().code, ErrorCode::kTooLarge);
    EXPECT_THAT(listed.error().message, HasSubstr("SCAN does not end"));
  }
}

// --- the password

constexpr const char* kLogin = ":HunterTwo@";

TEST(RedisPassword, IsNotShownWhenTheServerRepeatsIt) {
  const std::string repeated = "-ERR unknown command 'AUTH', with args: 'HunterTwo'\r\n";
  const FakeServer refusing(Script{{repeated}});
  const Error refused = open(refusing, patient(), kLogin)->get("a").error();
  EXPECT_EQ(refused.code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.message, testing::Not(HasSubstr("HunterTwo")));
  const FakeServer naming(Script{{"-HunterTwo\r\n"}});
  EXPECT_THAT(open(naming, patient(), kLogin)->get("a").error().message,
              testing::Not(HasSubstr("HunterTwo")));
  const FakeServer later(Script{{"+OK\r\n", "-ERR HunterTwo and HunterTwo again\r\n"}});
  EXPECT_THAT(open(later, patient(), kLogin)->get("a").error().message,
              HasSubstr("ERR ********* and ********* again"));
}

// A refusal that begins as a redirection does and is none, a redirection that nothing follows, and
// a node of that name.
TEST(RedisPassword, IsNotShownInWhatLooksLikeARedirection) {
  for (const std::string& text : {"MOVED ;999 10.0.0.1 HunterTwo"s, "ASK HunterTwo"s}) {
    const FakeServer server(Script{{"+OK\r\n", "-" + text + "\r\n"}});
    const Error error = open(server, patient(), kLogin)->get("a").error();
    EXPECT_THAT(error.message, HasSubstr("*********")) << text;
    EXPECT_THAT(error.message, testing::Not(HasSubstr("HunterTwo")));
  }
  const FakeServer selecting(Script{{"+OK\r\n", "-MOVED 1 HunterTwo:1\r\n"}});
  const auto second_database =
      store::open_backend("redis://:HunterTwo@" + selecting.address() + "/1", patient());
  const Error refused = (*second_database)->get("a").error();
  EXPECT_THAT(refused.message, HasSubstr("*********"));
  EXPECT_THAT(refused.message, testing::Not(HasSubstr("HunterTwo")));
  const std::string slots = "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$17\r\nHunterTwo.invalid\r\n:1\r\n";
  const FakeServer naming(
      Script{{"+OK\r\n", "-MOVED 15495 HunterTwo.invalid:1\r\n", slots, slots, slots}});
  const Error error = open(naming, patient(), kLogin)->get("a").error();
  EXPECT_THAT(error.message, HasSubstr("*********.invalid:1"));
  EXPECT_THAT(error.message, testing::Not(HasSubstr("HunterTwo")));
}

TEST(RedisPassword, IsNotShownInARefusalInsideAnArray) {
  for (const std::string text : {"-HunterTwo", "-MOVED 1 HunterTwo:1"}) {
    for (const std::string& page :
         {"*2\r\n" + text + "\r\n*0\r\n", "*2\r\n$1\r\n0\r\n*1\r\n" + text + "\r\n"}) {
      const FakeServer server(Script{{"+OK\r\n", "-ERR no cluster\r\n", page}});
      const auto listed =
          open(server, patient(), kLogin)->list("", [](const store::Entry&) -> Result<void> {
            return {};
          });
      ASSERT_FALSE(listed.ok());
      EXPECT_THAT(listed.error().message, HasSubstr("*********")) << page;
      EXPECT_THAT(listed.error().message, testing::Not(HasSubstr("HunterTwo")));
    }
  }
}

TEST(RedisPassword, IsNotSentWhereOnlyARedirectionLeads) {
  for (const std::string& kind : {"MOVED"s, "ASK"s}) {
    const FakeServer other(Script{{"+OK\r\n", kValue}});
    const FakeServer first(
        Script{{"+OK\r\n", "-" + kind + " 15495 " + other.address() + "\r\n", "-ERR no\r\n"}});
    const Error error = open(first, patient(), kLogin)->get("a").error();
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument) << kind;
    EXPECT_EQ(other.n_connections(), 0);
    EXPECT_THAT(first.asked(), HasSubstr("HunterTwo"));
  }
}

TEST(RedisPassword, IsSentToTheNodesOfTheSeed) {
  const FakeServer other(Script{{"+OK\r\n", kValue}});
  const std::string port = other.address().substr(other.address().find(':') + 1);
  const std::string slots =
      "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:" + port + "\r\n";
  const FakeServer first(Script{{"+OK\r\n", "-MOVED 15495 " + other.address() + "\r\n", slots}});
  const auto value = open(first, patient(), kLogin)->get("a");
  ASSERT_TRUE(value.ok()) << value.error().message;
  EXPECT_TRUE(value->has_value());
  EXPECT_THAT(other.asked(), HasSubstr("HunterTwo"));
}

}  // namespace redis_faults_test
}  // namespace tqcache::test
