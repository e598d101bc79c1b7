#include <cuda_runtime.h>

#include "tqcache/cuda/check.cuh"
#include "tqcache/cuda/codec_tile.cuh"
#include "tqcache/cuda/cuda_planes.h"

namespace tqcache::cuda {
namespace {

constexpr int kPlaneThreads = 256;
constexpr int kOwn = 16;  // numbers of a thread: 16 bytes of each plane

struct PlaneArgs {
  uint4* numbers = nullptr;
  std::uint8_t* planes[4] = {};
  long long n = 0;
};

// The bytes of two words in the order of their 16-bit numbers, each number rotated left.
__device__ __forceinline__ std::uint32_t rotated_left(std::uint32_t two) {
  return (two & 0x7fff7fffu) << 1 | (two >> 15 & 0x00010001u);
}
__device__ __forceinline__ std::uint32_t rotated_right(std::uint32_t two) {
  return (two >> 1 & 0x7fff7fffu) | (two & 0x00010001u) << 15;
}

// Four numbers in `words` (kWidth of them) to a word of each plane, in the order of planes.
template <int kWidth>
__device__ __forceinline__ void split_four(const std::uint32_t* words, std::uint32_t* planes) {
  if constexpr (kWidth == 2) {
    const std::uint32_t a = rotated_left(words[0]), b = rotated_left(words[1]);
    planes[0] = __byte_perm(a, b, 0x7531);
    planes[1] = __byte_perm(a, b, 0x6420);
  } else {
    const auto rotated = [&](int i) { return __funnelshift_l(words[i], words[i], 1); };
    const uint4 bytes =
        transposed_bytes(make_uint4(rotated(0), rotated(1), rotated(2), rotated(3)));
    planes[0] = bytes.w, planes[1] = bytes.z, planes[2] = bytes.y, planes[3] = bytes.x;
  }
}

template <int kWidth>
__device__ __forceinline__ void join_four(const std::uint32_t* planes, std::uint32_t* words) {
  if constexpr (kWidth == 2) {
    words[0] = rotated_right(__byte_perm(planes[1], planes[0], 0x5140));
    words[1] = rotated_right(__byte_perm(planes[1], planes[0], 0x7362));
  } else {
    const uint4 a = transposed_bytes(make_uint4(planes[3], planes[2], planes[1], planes[0]));
    words[0] = __funnelshift_r(a.x, a.x, 1), words[1] = __funnelshift_r(a.y, a.y, 1);
    words[2] = __funnelshift_r(a.z, a.z, 1), words[3] = __funnelshift_r(a.w, a.w, 1);
  }
}

template <int kWidth, bool kSplits>
__global__ void __launch_bounds__(kPlaneThreads) move_planes(const __grid_constant__ PlaneArgs p) {
  const long long whole = p.n / kOwn;
  const long long i = static_cast<long long>(blockIdx.x) * kPlaneThreads + threadIdx.x;
  if (i < whole) {
    std::uint32_t numbers[kOwn * kWidth / 4], planes[kWidth][4];
    uint4* const at = p.numbers + i * kWidth;
    if constexpr (kSplits) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const uint4 chunk = __ldcs(at + j);
        numbers[4 * j] = chunk.x, numbers[4 * j + 1] = chunk.y;
        numbers[4 * j + 2] = chunk.z, numbers[4 * j + 3] = chunk.w;
      }
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const uint4 chunk = __ldcs(reinterpret_cast<const uint4*>(p.planes[j]) + i);
        planes[j][0] = chunk.x, planes[j][1] = chunk.y, planes[j][2] = chunk.z;
        planes[j][3] = chunk.w;
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      std::uint32_t four[kWidth];
      if constexpr (kSplits) {
        split_four<kWidth>(numbers + k * kWidth, four);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) planes[j][k] = four[j];
      } else {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) four[j] = planes[j][k];
        join_four<kWidth>(four, numbers + k * kWidth);
      }
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      if constexpr (kSplits) {
        __stcs(reinterpret_cast<uint4*>(p.planes[j]) + i,
               make_uint4(planes[j][0], planes[j][1], planes[j][2], planes[j][3]));
      } else {
        __stcs(at + j, make_uint4(numbers[4 * j], numbers[4 * j + 1], numbers[4 * j + 2],
                                  numbers[4 * j + 3]));
      }
    }
    return;
  }
  // The last numbers, one a thread.
  const long long one = whole * kOwn + (i - whole);
  if (one >= p.n) return;
  auto* const bytes = reinterpret_cast<std::uint8_t*>(p.numbers) + one * kWidth;
  constexpr int kBits = 8 * kWidth;
  std::uint32_t x = 0;
  if constexpr (kSplits) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) x |= static_cast<std::uint32_t>(bytes[j]) << (8 * j);
    x = x << 1 | x >> (kBits - 1);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      p.planes[j][one] = static_cast<std::uint8_t>(x >> (8 * (kWidth - 1 - j)));
    }
  } else {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      x |= static_cast<std::uint32_t>(p.planes[j][one]) << (8 * (kWidth - 1 - j));
    }
    x = x >> 1 | x << (kBits - 1);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) bytes[j] = static_cast<std::uint8_t>(x >> (8 * j));
  }
}

template <bool kSplits>
Result<void> move(void* numbers, std::int64_t n, int width, const BytePlanes& planes,
                  cudaStream_t stream) {
  if (width != 2 && width != 4) return invalid("planes: numbers that have neither 2 nor 4 bytes");
  if (n < 0 || n >= std::int64_t{1} << 38) return invalid("planes: number of numbers");
  PlaneArgs p;
  p.numbers = static_cast<uint4*>(numbers);
  p.n = n;
  bool is_aligned = reinterpret_cast<std::uintptr_t>(numbers) % 16 == 0;
  for (std::size_t j = 0; j < static_cast<std::size_t>(width); ++j) {
    p.planes[j] = reinterpret_cast<std::uint8_t*>(planes[j]);
    is_aligned = is_aligned && reinterpret_cast<std::uintptr_t>(planes[j]) % 16 == 0;
  }
  if (!is_aligned) return invalid("planes: alignment");
  if (n == 0) return {};
  const std::int64_t items = n / kOwn + n % kOwn;
  const auto blocks = static_cast<unsigned>((items + kPlaneThreads - 1) / kPlaneThreads);
  if (width == 2) {
    move_planes<2, kSplits><<<blocks, kPlaneThreads, 0, stream>>>(p);
  } else {
    move_planes<4, kSplits><<<blocks, kPlaneThreads, 0, stream>>>(p);
  }
  return check_launch("planes");
}

}  // namespace

Result<void> split_planes(const void* numbers, std::int64_t n, int width, const BytePlanes& planes,
                          Stream stream) {
  return move<true>(const_cast<void*>(numbers), n, width, planes, stream);
}

Result<void> join_planes(const BytePlanes& planes, std::int64_t n, int width, void* numbers,
                         Stream stream) {
  return move<false>(numbers, n, width, planes, stream);
}

}  // namespace tqcache::cuda
