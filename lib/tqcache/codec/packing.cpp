#include "tqcache/codec/packing.h"

#include <cassert>

namespace tqcache::codec {
namespace {

constexpr std::size_t kGroup = 8;  // codes that fill whole bytes

// Up to eight codes and the bytes they fill. Byte by byte, because a copy of 3, 5, 6 or 7 bytes
// into a word that is read at once stalls the CPU.
template <int kBits>
void pack_group(const std::uint8_t* codes, std::size_t count, std::byte* packed) {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < count; ++i) {
    word |= static_cast<std::uint64_t>(codes[i]) << (i * kBits);
  }
  const std::size_t bytes = packed_size(count, kBits);
  for (std::size_t i = 0; i < bytes; ++i, word >>= 8) packed[i] = static_cast<std::byte>(word);
}

template <int kBits>
void unpack_group(const std::byte* packed, std::size_t count, std::uint8_t* codes) {
  constexpr std::uint64_t kMask = (1u << kBits) - 1;
  std::uint64_t word = 0;
  const std::size_t bytes = packed_size(count, kBits);
  for (std::size_t i = 0; i < bytes; ++i) word |= static_cast<std::uint64_t>(packed[i]) << (8 * i);
  for (std::size_t i = 0; i < count; ++i, word >>= kBits) {
    codes[i] = static_cast<std::uint8_t>(word & kMask);
  }
}

template <int kBits>
void pack(std::span<const std::uint8_t> codes, std::span<std::byte> packed) {
  const std::size_t groups = codes.size() / kGroup;
  for (std::size_t g = 0; g < groups; ++g) {
    pack_group<kBits>(codes.data() + g * kGroup, kGroup, packed.data() + g * kBits);
  }
  pack_group<kBits>(codes.data() + groups * kGroup, codes.size() % kGroup,
                    packed.data() + groups * kBits);
}

template <int kBits>
void unpack(std::span<const std::byte> packed, std::span<std::uint8_t> codes) {
  const std::size_t groups = codes.size() / kGroup;
  for (std::size_t g = 0; g < groups; ++g) {
    unpack_group<kBits>(packed.data() + g * kBits, kGroup, codes.data() + g * kGroup);
  }
  unpack_group<kBits>(packed.data() + groups * kBits, codes.size() % kGroup,
                      codes.data() + groups * kGroup);
}

}  // namespace

void pack_codes(std::span<const std::uint8_t> codes, int bits, std::span<std::byte> packed) {
  assert(packed.size() == packed_size(codes.size(), bits));
  switch (bits) {
    case 1:
      return pack<1>(codes, packed);
    case 2:
      return pack<2>(codes, packed);
    case 3:
      return pack<3>(codes, packed);
    case 4:
      return pack<4>(codes, packed);
    case 5:
      return pack<5>(codes, packed);
    case 6:
      return pack<6>(codes, packed);
    case 7:
      return pack<7>(codes, packed);
    case 8:
      return pack<8>(codes, packed);
    default:
      assert(false && "bits outside 1 to 8");
  }
}

void unpack_codes(std::span<const std::byte> packed, int bits, std::span<std::uint8_t> codes) {
  assert(packed.size() == packed_size(codes.size(), bits));
  switch (bits) {
    case 1:
      return unpack<1>(packed, codes);
    case 2:
      return unpack<2>(packed, codes);
    case 3:
      return unpack<3>(packed, codes);
    case 4:
      return unpack<4>(packed, codes);
    case 5:
      return unpack<5>(packed, codes);
    case 6:
      return unpack<6>(packed, codes);
    case 7:
      return unpack<7>(packed, codes);
    case 8:
      return unpack<8>(packed, codes);
    default:
      assert(false && "bits outside 1 to 8");
  }
}

}  // namespace tqcache::codec
