#pragma once
// codec/block_layout.h: the memory layout of the codes of one kv head and one token block.
//
// SIMD registers need the codes of sixteen lanes side by side, 4 codes per lane: a 64-byte line.
// For keys, lanes are tokens, because a score is a sum over components; for values, lanes are
// components, because attention's output is a sum over tokens. So no kernel ever adds across lanes.
// Memory, file and kernels use the same bytes.
//
//   line of bytes   64 codes, one per byte: lane i in bytes 4i to 4i + 3
//   unit            8 lines of bytes (512 codes), packed into `bits` lines (pack_unit)
//   group           all lines of sixteen lanes; a block is its groups in order
//
//             lanes of group g        byte j of a lane in line k
//   keys      tokens 16g .. 16g+15    component 4k + j    (the last unit may be incomplete)
//   values    components 16g ..       token 4k + j        (8 units: 256 tokens)
//
// Components from head_dim on have code 0.
//
// Spec: docs/reference/codec.md, "Packed codes".

#include <cstddef>
#include <cstdint>
#include <span>

#include "tqcache/codec_spec.h"

namespace tqcache::codec {

// Packs and unpacks one unit.
//
// Shapes:   lines [8, 64], one code per byte; packed [bits, 64].
// Requires: bits in [1, 8]; every code below 2^bits.
void pack_unit(int bits, const std::uint8_t* lines, std::uint8_t* packed);
void unpack_unit(int bits, const std::uint8_t* packed, std::uint8_t* lines);

// Packs and unpacks one group, whose last unit may be incomplete.
//
// Shapes:   lines [ceil(lane_codes / 32) * 8, 64], one code per byte; packed [group_bytes].
void pack_group(const BlockShape& shape, const std::uint8_t* lines, std::uint8_t* packed);
void unpack_group(const BlockShape& shape, const std::uint8_t* packed, std::uint8_t* lines);

// Packs and unpacks a block, by the definition, for tests and rare uses; codec/block_codec.h is the
// fast encoder and decoder.
//
// Shapes:   codes [256, head_dim], one code per byte; block [block_bytes].
// Requires: every code below 2^bits. Every block unpacks to such codes.
void pack_block(const BlockShape& shape, std::span<const std::uint8_t> codes,
                std::span<std::byte> block);
void unpack_block(const BlockShape& shape, std::span<const std::byte> block,
                  std::span<std::uint8_t> codes);

// The codes of one token. Shapes: codes [head_dim]. Requires: token below 256.
void unpack_token(const BlockShape& shape, std::span<const std::byte> block, std::size_t token,
                  std::span<std::uint8_t> codes);

// --- Codes of one head vector as a bit stream, in memory only: files store whole blocks.
//
// Code i takes bits i * bits and up of the stream; bit n of the stream is bit n % 8 of byte n / 8.
// Eight codes fill exactly `bits` bytes, so packing works on groups of eight. Unused bits of the
// last byte are written as zero and ignored when read.

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
