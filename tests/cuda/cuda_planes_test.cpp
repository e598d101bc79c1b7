// Planes of bytes on the GPU, against those of the CPU.

#include "tqcache/cuda/cuda_planes.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <vector>

#include "cuda/device_array.h"
#include "tqcache/format/sections/byte_planes.h"

namespace tqcache::cuda {
namespace {

TEST(CudaPlanes, SplitsAndJoinsAsTheCpu) {
  std::mt19937 random(1);
  for (const std::size_t width : {2u, 4u}) {
    for (const std::size_t n : {0u, 1u, 15u, 16u, 17u, 255u, 4096u, 4099u, 1000003u}) {
      std::vector<std::byte> numbers(n * width), expected(n * width);
      for (std::byte& byte : numbers) byte = static_cast<std::byte>(random());
      format::split_planes(numbers, width, expected);
      const DeviceArray<std::byte> device_numbers(numbers), joined(n * width + 16);
      const std::size_t stride = (n + 31) / 16 * 16;  // bytes behind a plane stay as they are
      const DeviceArray<std::byte> device_planes(width * stride);
      BytePlanes planes{};
      for (std::size_t p = 0; p < width; ++p) planes[p] = device_planes.get() + p * stride;
      const auto count = static_cast<std::int64_t>(n);
      ASSERT_TRUE(
          split_planes(device_numbers.get(), count, static_cast<int>(width), planes, nullptr).ok());
      ASSERT_TRUE(join_planes(planes, count, static_cast<int>(width), joined.get(), nullptr).ok());
      expect_cuda(cudaDeviceSynchronize());
      const std::vector<std::byte> got = device_planes.read();
      for (std::size_t p = 0; p < width; ++p) {
        for (std::size_t i = 0; i < stride; ++i) {
          ASSERT_EQ(i < n ? expected[p * n + i] : std::byte{0xcd}, got[p * stride + i])
              << "width " << width << ", " << n << " numbers, plane " << p << ", byte " << i;
        }
      }
      numbers.resize(n * width + 16, std::byte{0xcd});
      EXPECT_EQ(numbers, joined.read()) << "width " << width << ", " << n << " numbers";
    }
  }
}

TEST(CudaPlanes, RefusesOtherWidthsAndAlignments) {
  const DeviceArray<std::byte> memory(64);
  BytePlanes planes{memory.get(), memory.get() + 16, memory.get() + 32, memory.get() + 48};
  EXPECT_EQ(ErrorCode::kInvalidArgument,
            split_planes(memory.get(), 1, 3, planes, nullptr).error().code);
  EXPECT_EQ(ErrorCode::kInvalidArgument,
            join_planes(planes, -1, 2, memory.get(), nullptr).error().code);
  planes[1] = memory.get() + 8;
  EXPECT_EQ(ErrorCode::kInvalidArgument,
            join_planes(planes, 1, 2, memory.get(), nullptr).error().code);
}

}  // namespace
}  // namespace tqcache::cuda
