#include "tqcache/tensors/printable_name.h"

#include <gtest/gtest.h>

namespace tqcache::tensors {
namespace printable_name_test {

TEST(PrintableName, KeepsAnOrdinaryName) {
  EXPECT_EQ(printable_name("blk.0.attn_q.weight"), "\"blk.0.attn_q.weight\"");
}

TEST(PrintableName, LeavesNoControlCharacterOrQuote) {
  EXPECT_EQ(printable_name("a\x1b[2J\n\x7f\"\\\xc2\x9b"), "\"a?[2J??????\"");
  EXPECT_EQ(printable_name(std::string_view("\0x", 2)), "\"?x\"");
}

TEST(PrintableName, CutsAfter64Bytes) {
  EXPECT_EQ(printable_name(std::string(64, 'n')), '"' + std::string(64, 'n') + '"');
  EXPECT_EQ(printable_name(std::string(65, 'n')), '"' + std::string(64, 'n') + "...\"");
}

}  // namespace printable_name_test
}  // namespace tqcache::tensors
