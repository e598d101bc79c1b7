#pragma once
// support/matchers.h: what a Result has to be.
//
//   EXPECT_THAT(validate(cache), FailsWith(ErrorCode::kCorrupt, HasSubstr("layer 2")));

#include <gmock/gmock.h>

#include <ostream>
#include <string>

#include "tqcache/error.h"

namespace tqcache {

// What a failed expectation shows of a Result.
template <class T>
void PrintTo(const Result<T>& result, std::ostream* out) {
  if (result.ok()) {
    *out << "a result that is no error";
  } else {
    *out << "code " << static_cast<int>(result.error().code) << ": " << result.error().message;
  }
}

}  // namespace tqcache

namespace tqcache::test {

// A Result with an error of this code, whose message is this text or fits this matcher.
MATCHER_P2(FailsWith, code, message,
           "code " + std::to_string(static_cast<int>(code)) + ", and a message that " +
               testing::DescribeMatcher<const std::string&>(message)) {
  return !arg.ok() && arg.error().code == code &&
         testing::ExplainMatchResult(testing::MatcherCast<const std::string&>(message),
                                     arg.error().message, result_listener);
}

}  // namespace tqcache::test
