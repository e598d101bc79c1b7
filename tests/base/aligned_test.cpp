#include <gtest/gtest.h>

#include <cstdint>

#include "tqcache/bytes.h"

namespace tqcache {
namespace aligned_test {

TEST(Aligned, StartsOnA64ByteLine) {
  for (std::size_t count = 1; count < 200; count += 7) {
    const AlignedFloats floats(count);
    const AlignedBytes bytes(count);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(floats.data()) % kAlignment, 0u) << count;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlignment, 0u) << count;
  }
}

TEST(Aligned, KeepsValuesAndAlignmentWhileItGrows) {
  AlignedFloats floats;
  for (int i = 0; i < 1000; ++i) floats.push_back(static_cast<float>(i));
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(floats[static_cast<std::size_t>(i)], static_cast<float>(i));
  }
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(floats.data()) % kAlignment, 0u);
}

}  // namespace aligned_test
}  // namespace tqcache
