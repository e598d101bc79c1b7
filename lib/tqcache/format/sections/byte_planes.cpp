#include "tqcache/format/sections/byte_planes.h"

#include <bit>
#include <cassert>
#include <cstdint>
#include <cstring>

namespace tqcache::format {
namespace {

constexpr unsigned kRotation = 1;  // bits, so that the sign is below the mantissa

// One loop per plane, each of which compilers vectorize.
template <class Word>
void split(const std::byte* __restrict raw, std::size_t n, std::byte* __restrict planes) {
  for (std::size_t plane = 0; plane < sizeof(Word); ++plane) {
    const std::size_t shift = 8 * (sizeof(Word) - 1 - plane);
    std::byte* out = planes + plane * n;
    for (std::size_t i = 0; i < n; ++i) {
      Word word;
      std::memcpy(&word, raw + i * sizeof(Word), sizeof(Word));
      out[i] = static_cast<std::byte>(std::rotl(word, kRotation) >> shift);
    }
  }
}

template <class Word>
void put(Word rotated, std::size_t i, std::byte* raw) {
  const Word word = std::rotr(rotated, kRotation);
  std::memcpy(raw + i * sizeof(Word), &word, sizeof(Word));
}

void join_two(const std::byte* __restrict high, const std::byte* __restrict low, std::size_t n,
              std::byte* __restrict raw) {
  for (std::size_t i = 0; i < n; ++i) {
    const auto rotated =
        std::to_integer<unsigned>(high[i]) << 8 | std::to_integer<unsigned>(low[i]);
    put(static_cast<std::uint16_t>(rotated), i, raw);
  }
}

void join_four(const std::byte* __restrict first, const std::byte* __restrict second,
               const std::byte* __restrict third, const std::byte* __restrict fourth, std::size_t n,
               std::byte* __restrict raw) {
  using U32 = std::uint32_t;
  for (std::size_t i = 0; i < n; ++i) {
    const U32 high = std::to_integer<U32>(first[i]) << 8 | std::to_integer<U32>(second[i]);
    const U32 low = std::to_integer<U32>(third[i]) << 8 | std::to_integer<U32>(fourth[i]);
    put(high << 16 | low, i, raw);
  }
}

}  // namespace

void split_planes(ByteView raw, std::size_t width, std::span<std::byte> planes) {
  assert(raw.size() == planes.size() && raw.size() % width == 0);
  if (width == 2) return split<std::uint16_t>(raw.data(), raw.size() / 2, planes.data());
  assert(width == 4);
  split<std::uint32_t>(raw.data(), raw.size() / 4, planes.data());
}

void join_planes(std::span<const ByteView> planes, std::span<std::byte> raw) {
  const std::size_t n = raw.size() / planes.size();
  if (planes.size() == 2) return join_two(planes[0].data(), planes[1].data(), n, raw.data());
  assert(planes.size() == 4);
  join_four(planes[0].data(), planes[1].data(), planes[2].data(), planes[3].data(), n, raw.data());
}

}  // namespace tqcache::format
