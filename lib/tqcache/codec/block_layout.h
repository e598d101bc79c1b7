#pragma once
// codec/block_layout.h: where the codes of one kv head and one token block stand in memory.
//
// A vector unit wants the codes of sixteen lanes side by side, 4 codes a lane, and that is what a
// 64-byte line holds. Lanes of keys are tokens, because a score is a sum over components; lanes of
// values are components, because attention's output is a sum over tokens. Either way no kernel
// ever adds across lanes. The same bytes are memory, file, and what the kernels read.
//
//   line of bytes   64 codes, one a byte: lane i in bytes 4i to 4i + 3
//   unit            8 lines of bytes (512 codes), packed into `bits` lines (pack_unit)
//   group           the lines of sixteen lanes, from first to last; a block is its groups in order
//
//             lanes of group g        byte j of a lane in line k
//   keys      tokens 16g .. 16g+15    component 4k + j    (the last unit may be cut short)
//   values    components 16g ..       token 4k + j        (8 units: 256 tokens)
//
// Components beyond head_dim have code 0.
//
// Spec: docs/reference/codec.md, "Packed codes".

#include <cstddef>
#include <cstdint>
#include <span>

namespace tqcache::codec {

inline constexpr std::size_t kBlockTokens = 256;  // tokens of a block
inline constexpr std::size_t kLanes = 16;         // lanes of a line
inline constexpr std::size_t kLineBytes = 64;     // four codes a lane
inline constexpr std::size_t kUnitLines = 8;      // lines of bytes that are packed together
inline constexpr std::size_t kLaneCodes = 4;      // codes of one lane in a line of bytes
inline constexpr std::size_t kUnitLaneCodes = kUnitLines * kLaneCodes;

enum class BlockOrder : std::uint8_t { kKeys, kValues };

// Packed lines that hold the first `lines` (0 to 8) lines of bytes of a unit: a cut unit is the
// beginning of a whole one. All eight take `bits` lines.
constexpr std::size_t packed_lines(int bits, std::size_t lines) {
  const std::size_t pairs = (lines + 1) / 2;
  const std::size_t three_of_four = lines < 4 ? lines : lines == 4 ? 3 : lines < 8 ? lines - 1 : 6;
  if (lines == 0) return 0;
  switch (bits) {
    case 1:
      return 1;
    case 2:
      return (lines + 3) / 4;
    case 3:
      return pairs < 3 ? pairs : 3;
    case 4:
      return pairs;
    case 5:
      return 1 + pairs;
    case 6:
      return three_of_four;
    case 7:
      return 1 + three_of_four;
    default:
      return lines;
  }
}

// The shape of one block of one kv head. Requires: head_dim and bits as validate(QuantizerSpec).
struct BlockShape {
  int head_dim = 0;
  int bits = 0;
  BlockOrder order = BlockOrder::kKeys;

  bool operator==(const BlockShape&) const = default;

  constexpr std::size_t dim() const { return static_cast<std::size_t>(head_dim); }
  constexpr std::size_t groups() const {
    return (order == BlockOrder::kKeys ? kBlockTokens : dim() + kLanes - 1) / kLanes;
  }
  // Codes of one lane: what a group's sum runs over.
  constexpr std::size_t lane_codes() const {
    return order == BlockOrder::kKeys ? dim() : kBlockTokens;
  }
  constexpr std::size_t whole_units() const { return lane_codes() / kUnitLaneCodes; }
  // Packed lines of the unit that is cut short, 0 if there is none.
  constexpr std::size_t tail_lines() const {
    return packed_lines(bits, (lane_codes() % kUnitLaneCodes + kLaneCodes - 1) / kLaneCodes);
  }
  constexpr std::size_t group_lines() const {
    return whole_units() * static_cast<std::size_t>(bits) + tail_lines();
  }
  constexpr std::size_t group_bytes() const { return group_lines() * kLineBytes; }
  constexpr std::size_t block_bytes() const { return groups() * group_bytes(); }
};

// Packs one unit, and takes it apart.
//
// Shapes:   lines [8, 64], one code a byte; packed [bits, 64].
// Requires: bits in [1, 8]; every code below 2^bits.
void pack_unit(int bits, const std::uint8_t* lines, std::uint8_t* packed);
void unpack_unit(int bits, const std::uint8_t* packed, std::uint8_t* lines);

// Packs one group, of which the last unit may be cut, and takes it apart.
//
// Shapes:   lines [ceil(lane_codes / 32) * 8, 64], one code a byte; packed [group_bytes].
void pack_group(const BlockShape& shape, const std::uint8_t* lines, std::uint8_t* packed);
void unpack_group(const BlockShape& shape, const std::uint8_t* packed, std::uint8_t* lines);

// Packs a block, and takes it apart. By the definition, for tests and rare uses; what encodes and
// decodes at speed is codec/block_codec.h.
//
// Shapes:   codes [256, head_dim], one code a byte; block [block_bytes].
// Requires: every code below 2^bits. Every block unpacks to such codes.
void pack_block(const BlockShape& shape, std::span<const std::uint8_t> codes,
                std::span<std::byte> block);
void unpack_block(const BlockShape& shape, std::span<const std::byte> block,
                  std::span<std::uint8_t> codes);

// The codes of one token. Shapes: codes [head_dim]. Requires: token below 256.
void unpack_token(const BlockShape& shape, std::span<const std::byte> block, std::size_t token,
                  std::span<std::uint8_t> codes);

// --- Codes of one head vector as a stream of bits, in memory only: files keep whole blocks.
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
