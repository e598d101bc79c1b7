#pragma once
// codec/packing.h: codes of 1 to 8 bits as one stream of bits, least significant first.
//
// Code i takes bits i * bits and up of the stream; bit n of the stream is bit n % 8 of byte n / 8.
// Eight codes fill exactly `bits` bytes, so packing works on groups of eight. Unused bits of the
// last byte are written as zero and not looked at when read.
//
// In memory only, for single head vectors: files keep whole blocks, in the layout of
// codec/block_layout.h.

#include <cstddef>
#include <cstdint>
#include <span>

namespace tqcache::codec {

// ceil(count * bits / 8).
constexpr std::size_t packed_size(std::size_t count, int bits) {
  return (count * static_cast<std::size_t>(bits) + 7) / 8;
}

// Shapes:   codes [count]; packed [packed_size(count, bits)].
// Requires: bits in [1, 8]; every code below 2^bits.
void pack_codes(std::span<const std::uint8_t> codes, int bits, std::span<std::byte> packed);

// Shapes:   as above. Every byte string unpacks to codes below 2^bits.
void unpack_codes(std::span<const std::byte> packed, int bits, std::span<std::uint8_t> codes);

}  // namespace tqcache::codec
