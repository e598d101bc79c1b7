// A migrated cache takes no more memory than the caller allows, whatever its file asks for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>

#include "migrations/v1_to_v2.h"
#include "support/v1_builder.h"

namespace tqcache::test {
namespace v1_memory_test {

using migrations::v1_to_v2;
using migrations::V1File;
using testing::HasSubstr;

// `bytes` are enough, and one less is not.
void expect_bytes(const V1File& file, std::uint64_t bytes) {
  EXPECT_TRUE(v1_to_v2(file, MemoryBudget::of_user(bytes)).ok());
  const auto migration = v1_to_v2(file, MemoryBudget::of_user(bytes - 1));
  ASSERT_FALSE(migration.ok()) << bytes;
  EXPECT_EQ(migration.error().code, ErrorCode::kTooLarge);
  EXPECT_THAT(migration.error().message, HasSubstr("layer 0: "));
  EXPECT_THAT(migration.error().message, HasSubstr("bytes of memory"));
}

TEST(V1Memory, OfDenseTensorsIsOfWholeBlocks) {
  expect_bytes(V1Builder(1).dense({2, 64}, V1Dtype::kF16).build(), 2 * 256 * 2 * 64 * 2);
  expect_bytes(V1Builder(257).dense({1, 8}, V1Dtype::kF32).build(), 2 * 512 * 8 * 4);
}

TEST(V1Memory, OfPackedTensorsIsOfCodesAndTails) {
  const std::uint64_t packed = 256 * 64 * 4 / 8 + 256 * 2 * 2 * 2;  // codes; scales and biases
  const std::uint64_t tail = 256 * 64 * 4;
  expect_bytes(V1Builder(256).quantized({1, 64}, {4, 32}).build(), 2 * packed);
  expect_bytes(V1Builder(300).quantized({1, 64}, {4, 32}).build(), 2 * (packed + tail));
}

TEST(V1Memory, OfTensorsThatAreKeptDenseIsOfAllTheirValues) {
  expect_bytes(V1Builder(300).quantized({1, 64}, {4, 16}).build(), 2 * 512 * 64 * 4);
  const std::uint64_t v = 512 * 64 * 2;
  expect_bytes(V1Builder(300).turbo({1, 64}, {.wht = true, .odd_norms = true}).build(),
               512 * 64 * 4 + v);
}

TEST(V1Memory, OfCalibrationIsDense) {
  expect_bytes(V1Builder(10).turbo({1, 64}, {.mixed = V1Mixed{}, .calibrating = true}).build(),
               2 * 256 * 64 * 2);
}

TEST(V1Memory, OfArraysAndRingsIsTheirs) {
  expect_bytes(V1Builder(1).arrays().fact("tokens", "[1]").build(), 60 * 2 + 70 * 4 + 11 * 2);
  expect_bytes(
      V1Builder(20).rotating({2, 8}, {.n_rows = 12, .keep = 0, .max_size = 10, .next = 12}).build(),
      2 * 2 * 10 * 8 * 2);
}

}  // namespace v1_memory_test
}  // namespace tqcache::test
