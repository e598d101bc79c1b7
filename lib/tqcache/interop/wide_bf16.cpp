#include "tqcache/interop/wide_bf16.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "tqcache/base/half.h"

namespace tqcache::interop {

void widen_bf16(AlignedBytes& values) {
  const std::size_t n = values.size() / 2;
  values.resize(4 * n);
  // From the end, so that no value is written over before it is read.
  for (std::size_t i = n; i-- > 0;) {
    std::uint16_t half;
    std::memcpy(&half, values.data() + 2 * i, sizeof(half));
    const std::uint32_t word = static_cast<std::uint32_t>(half) << 16;
    std::memcpy(values.data() + 4 * i, &word, sizeof(word));
  }
}

void narrow_to_bf16(std::span<const std::byte> wide, std::span<std::byte> narrow) {
  for (std::size_t i = 0; 2 * i < narrow.size(); ++i) {
    std::uint32_t word;
    std::memcpy(&word, wide.data() + 4 * i, sizeof(word));
    // Rounding would make a signalling NaN a quiet one.
    const bool is_exact = (word & 0xffff) == 0;
    const std::uint16_t half =
        is_exact ? static_cast<std::uint16_t>(word >> 16) : f32_to_bf16(std::bit_cast<float>(word));
    std::memcpy(narrow.data() + 2 * i, &half, sizeof(half));
  }
}

}  // namespace tqcache::interop
