#pragma once
// support/matchers.h: what a Result has to be.
//
//   EXPECT_THAT(validate(cache), FailsWith(ErrorCode::kCorrupt, HasSubstr("layer 2")));

#include <gmock/gmock.h>

#include <string>

#include "tqcache/error.h"

namespace tqcache::test {

// A Result with an error of this code, whose message is this text or fits this matcher.
MATCHER_P2(FailsWith, code, message, "fails with the code and the message") {
  if (arg.ok()) {
    *result_listener << "it is no error";
    return false;
  }
  *result_listener << "code " << static_cast<int>(arg.error().code) << ": " << arg.error().message;
  return arg.error().code == code &&
         testing::Matches(testing::MatcherCast<const std::string&>(message))(arg.error().message);
}

}  // namespace tqcache::test
