#pragma once
// eval/answers.h: whether what a model said is what was expected.
//
// Both are made plain first: lower case, punctuation and symbols (Unicode's categories P and S)
// taken out, white space of any kind and length one space, none at the ends, composed characters
// (NFC). Articles stay. So "Your parrot is called Max." and "your  parrot is called MAX" are the
// same answer, and so are "1,234" and "1234".

#include <span>
#include <string>
#include <string_view>

namespace tqcache::eval {

// The plain form. Bytes that are not UTF-8 are left out.
std::string plain_answer(std::string_view text);

struct Match {
  bool exact = false;  // the answer is one of those expected
  bool found = false;  // one of those expected stands in the answer
};

// A number that is a part of a longer one is not found in it: 13 does not stand in "2134". An
// expected answer without a letter or a digit matches nothing.
Match match_answer(std::string_view given, std::span<const std::string> expected);

}  // namespace tqcache::eval
