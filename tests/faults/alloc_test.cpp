// Every allocation of an operation failing in turn: it throws bad_alloc or gives an error, frees
// all that it has, leaves the old file or the new one and nothing else, and can be run again.

#include <gtest/gtest.h>
#include <openssl/err.h>

#include <functional>
#include <new>
#include <optional>

#include "failing_allocator.h"
#include "operation_parts.h"
#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "tqcache/tqkv.h"

namespace tqcache::faults {
namespace alloc_test {

namespace fs = std::filesystem;
using test::TempDir;

enum class Ended { kWithoutFailure, kDoneAllTheSame, kWithError, kByException };

struct Attempt {
  Ended ended = Ended::kWithoutFailure;
  std::int64_t leaked = 0;  // allocations
};

// OpenSSL keeps a list of a thread's errors, with copies of names in it.
void forget_errors() { ERR_clear_error(); }

Attempt attempt(std::int64_t number, bool for_good, const std::function<Result<void>()>& act) {
  forget_errors();
  Attempt made;
  std::optional<Error> error;
  const std::int64_t before = live_allocations();
  fail_allocation(number, for_good);
  try {
    if (Result<void> result = act(); !result) error = std::move(result).error();
    made.ended = error ? Ended::kWithError : Ended::kDoneAllTheSame;
  } catch (const std::bad_alloc&) {
    made.ended = Ended::kByException;
  }
  if (!end_of_failures()) made.ended = Ended::kWithoutFailure;
  // Want of memory is nothing that a file could be blamed for.
  EXPECT_TRUE(!error || error->code == ErrorCode::kIo) << error->message;
  error.reset();
  forget_errors();
  made.leaked = live_allocations() - before;
  return made;
}

// Calls `act` with its first allocation failing, its second, ... until it needs no more.
// `check` looks at what it left after each, and makes all as it was before.
void fail_each(const std::function<Result<void>()>& act, bool for_good,
               const std::function<void(Ended)>& check) {
  ASSERT_TRUE(act().ok());  // what is made once in a process is made now
  check(Ended::kDoneAllTheSame);
  std::int64_t number = 0;
  for (Attempt last{Ended::kByException}; last.ended != Ended::kWithoutFailure;) {
    last = attempt(++number, for_good, act);
    check(last.ended);
    // A library may have kept something for next time; a leak is one every time.
    for (int again = 0; last.leaked > 0 && again < 3; ++again) {
      last = attempt(number, for_good, act);
      check(last.ended);
    }
    ASSERT_EQ(last.leaked, 0) << "allocation " << number;
  }
  EXPECT_GT(number, 10);
  testing::Test::RecordProperty("allocations", static_cast<int>(number - 1));
}

// Those that need nothing of strace.
std::vector<Operation> able_operations() {
  std::vector<Operation> able = operations();
  std::erase_if(able, [](const Operation& each) { return !each.always.empty(); });
  return able;
}

class Operations : public testing::TestWithParam<std::tuple<Operation, bool>> {};

INSTANTIATE_TEST_SUITE_P(All, Operations,
                         testing::Combine(testing::ValuesIn(able_operations()), testing::Bool()),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param).name) +
                                  (std::get<1>(each.param) ? "_for_good" : "_once");
                         });

TEST_P(Operations, SurviveEveryAllocationThatFails) {
  const Operation& operation = std::get<0>(GetParam());
  const bool for_good = std::get<1>(GetParam());
  prepare(operation);
  std::optional<TempDir> folder(std::in_place);
  set_up(operation, folder->path());
  const auto check = [&](Ended ended) {
    const std::string state = operation.state(folder->path());
    const bool is_done = ended == Ended::kWithoutFailure || ended == Ended::kDoneAllTheSame;
    EXPECT_TRUE(state == "new" || (state == "old" && !is_done)) << state;
    EXPECT_EQ(names_in(folder->path()),
              state == "old" ? names_before(operation) : operation.names_after);
    folder.emplace();
    set_up(operation, folder->path());
  };
  fail_each([&] { return operation.run(folder->path()); }, for_good, check);
}

const cache::Cache& some_cache() {
  static const cache::Cache made = test::CacheBuilder(300)
                                       .dense({1, 16})
                                       .preset({1, 64}, "turbo3")
                                       .preset({1, 64}, "turbo2.5")
                                       .arrays()
                                       .build();
  return made;
}

class InMemory : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(All, InMemory, testing::Bool(), [](const auto& each) {
  return std::string(each.param ? "for_good" : "once");
});

TEST_P(InMemory, ReadingSurvivesEveryAllocationThatFails) {
  const Bytes bytes = test::must(format::write_cache_bytes(some_cache(), write_options()));
  const auto source = memory_source(Bytes(bytes));
  const auto read = [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const cache::Cache cache, format::read_cache(*source, read_options()));
    return cache.n_tokens() == 300 ? Result<void>() : Error{ErrorCode::kCorrupt, "tokens"};
  };
  fail_each(read, GetParam(), [](Ended) {});
}

TEST_P(InMemory, VerifyingSurvivesEveryAllocationThatFails) {
  const Bytes bytes = test::must(format::write_cache_bytes(some_cache(), write_options()));
  const auto source = memory_source(Bytes(bytes));
  const auto verify = [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const auto report, format::verify_cache(*source, read_options()));
    return report.damage.empty() ? Result<void>() : Error{ErrorCode::kCorrupt, "damage"};
  };
  fail_each(verify, GetParam(), [](Ended) {});
}

TEST_P(InMemory, WritingSurvivesEveryAllocationThatFails) {
  const Bytes expected = test::must(format::write_cache_bytes(some_cache(), write_options()));
  const auto write = [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const Bytes bytes, format::write_cache_bytes(some_cache(), write_options()));
    return bytes == expected ? Result<void>() : Error{ErrorCode::kCorrupt, "bytes"};
  };
  fail_each(write, GetParam(), [](Ended) {});
}

}  // namespace alloc_test
}  // namespace tqcache::faults
