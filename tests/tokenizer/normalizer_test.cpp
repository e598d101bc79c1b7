// The steps that prepare a text, and white space.

#include "tqcache/tokenizer/normalizer.h"

#include <gtest/gtest.h>

#include <string>

#include "tqcache/tokenizer/utf8.h"

namespace tqcache::tokenizer {
namespace normalizer_test {

TEST(Normalizer, DoesItsStepsInOrder) {
  using enum Normalizer;
  const auto done = [](const Normalizers& steps, std::string_view text) {
    return normalize(steps, text).value();
  };
  EXPECT_EQ(done({}, " a "), " a ");
  EXPECT_EQ(done({kNfc}, "e\xcc\x81"), "\xc3\xa9");
  EXPECT_EQ(done({kPrependSpace}, "a"), " a");
  EXPECT_EQ(done({kPrependSpace}, ""), "");
  EXPECT_EQ(done({kMarkSpaces}, "▁a▁ b▁"), " a  b ");
  EXPECT_EQ(done({kJoinSpaces}, "a   b c  "), "a b c ");
  EXPECT_EQ(done({kStripLeft}, "\t\u3000 a "), "a ");
  EXPECT_EQ(done({kStripRight}, " a \n\u00a0"), " a");
  EXPECT_EQ(done({kStripSpaces}, "  \ta\t  "), "\ta\t");
  EXPECT_EQ(done({kStripSpaces}, "   "), "");
  EXPECT_EQ(done({kStripSpaces, kJoinSpaces, kPrependSpace, kMarkSpaces}, " a  b▁c "), " a b c");
}

TEST(Normalizer, HasANameForEveryStep) {
  using enum Normalizer;
  EXPECT_EQ(normalizers_name({}), "none");
  EXPECT_EQ(normalizers_name({kNfc}), "nfc");
  EXPECT_EQ(normalizers_name({kPrependSpace, kMarkSpaces}), "prepend+spaces");
  EXPECT_EQ(normalizers_name({kStripLeft, kStripRight, kStripSpaces, kJoinSpaces}),
            "strip_left+strip_right+strip_spaces+join_spaces");
}

TEST(WhiteSpace, IsCountedInBytesAtEitherEnd) {
  EXPECT_EQ(leading_white_space(" \t\r\n\x0b\x0c\u0085\u00a0\u2003\u2028\u3000x "), 19u);
  EXPECT_EQ(trailing_white_space(" x\u3000\u1680 "), 7u);
  EXPECT_EQ(leading_white_space("x"), 0u);
  EXPECT_EQ(trailing_white_space("x"), 0u);
  EXPECT_EQ(leading_white_space("  "), 2u);
  EXPECT_EQ(trailing_white_space("  "), 2u);
  // No spaces to Unicode: zero width, and the Mongolian vowel separator.
  EXPECT_EQ(leading_white_space("\u200b"), 0u);
  EXPECT_EQ(trailing_white_space("\u180e"), 0u);
}

}  // namespace normalizer_test
}  // namespace tqcache::tokenizer
