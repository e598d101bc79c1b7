#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>

#include "tqcache/error.h"

namespace tqcache {
namespace result_test {

Result<int> half_of(int n) {
  if (n % 2 != 0) return Error{ErrorCode::kInvalidArgument, std::to_string(n) + ": is odd"};
  return n / 2;
}

Result<int> quarter_of(int n) {
  TQC_TRY_ASSIGN(const int half, half_of(n));
  TQC_TRY_ASSIGN(const int quarter, half_of(half));
  return quarter;
}

Result<void> check_even(int n) {
  TQC_TRY(half_of(n).ok() ? Result<void>() : Result<void>(half_of(n).error()));
  return {};
}

Result<void> apply(const std::function<Result<void>(int)>& body, int n) { return body(n); }

TEST(Result, HoldsAValueOrAnError) {
  EXPECT_TRUE(half_of(6).ok());
  EXPECT_EQ(*half_of(6), 3);
  EXPECT_FALSE(half_of(7));
  EXPECT_EQ(half_of(7).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(half_of(7).error().message, "7: is odd");
}

TEST(Result, OfVoidIsOkUntilItHoldsAnError) {
  EXPECT_TRUE(check_even(2).ok());
  EXPECT_EQ(check_even(3).error().message, "3: is odd");
}

TEST(Result, ReturnsTheFirstError) {
  EXPECT_EQ(*quarter_of(12), 3);
  EXPECT_EQ(quarter_of(6).error().message, "3: is odd");
}

TEST(Result, MovesMoveOnlyValues) {
  const auto make = []() -> Result<std::unique_ptr<int>> { return std::make_unique<int>(5); };
  const auto use = [&]() -> Result<int> {
    TQC_TRY_ASSIGN(const std::unique_ptr<int> owned, make());
    return *owned;
  };
  EXPECT_EQ(*use(), 5);
  const std::unique_ptr<int> taken = *make();
  EXPECT_EQ(*taken, 5);
}

TEST(Result, ReachesMembersOfItsValue) {
  const Result<std::string> name = std::string("layer");
  EXPECT_EQ(name->size(), 5u);
}

TEST(Result, MacrosWorkInALambdaInsideTheirOwnArgument) {
  const auto run = [](int n) -> Result<int> {
    int sum = 0;
    TQC_TRY(apply(
        [&](int m) -> Result<void> {
          TQC_TRY(check_even(m));
          TQC_TRY_ASSIGN(const int half, half_of(m));
          TQC_TRY_ASSIGN(const int quarter, half_of(half));
          sum = half + quarter;
          return {};
        },
        n));
    return sum;
  };
  EXPECT_EQ(*run(8), 6);
  EXPECT_EQ(run(6).error().message, "3: is odd");
  EXPECT_EQ(run(5).error().message, "5: is odd");
}

TEST(Result, MacrosTakeExpressionsWithCommas) {
  const auto make = []() -> Result<std::map<int, int>> { return std::map<int, int>{{1, 2}}; };
  const auto use = [&]() -> Result<std::size_t> {
    TQC_TRY_ASSIGN(const auto map, Result<std::map<int, int>>(make()));
    return map.size();
  };
  EXPECT_EQ(*use(), 1u);
}

TEST(ResultDeathTest, AbortsWhenTheValueOfAnErrorIsUsed) {
  const Result<int> failed = corrupt("section 12: checksum mismatch");
  EXPECT_DEATH((void)*failed,
               "value\\(\\) of a Result with an error: section 12: checksum mismatch");
}

TEST(ResultDeathTest, AbortsWhenTheErrorOfAValueIsUsed) {
  const Result<int> good = 1;
  EXPECT_DEATH((void)good.error(), "error\\(\\) of a Result with a value");
  EXPECT_DEATH((void)Result<void>().error(), "error\\(\\) of a Result with a value");
}

TEST(Error, GetsContextFromItsCaller) {
  const Error error = in_context("section 12", in_context("layer 3", {ErrorCode::kCorrupt, "bad"}));
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_EQ(error.message, "section 12: layer 3: bad");
}

}  // namespace result_test
}  // namespace tqcache
