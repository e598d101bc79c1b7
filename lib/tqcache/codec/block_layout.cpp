#include "tqcache/codec/block_layout.h"

#include <array>
#include <cassert>
#include <cstring>

#include "tqcache/codec/kernels/lanes.h"
#include "tqcache/codec_spec.h"

namespace tqcache::codec {

namespace {

constexpr std::size_t kMaxLaneCodes = kMaxHeadDim;  // for keys; values have 256
constexpr std::size_t kMaxGroupBytes = kMaxLaneCodes / kLaneCodes * kLineBytes;

// A line as integers of eight bytes: codes never leave their byte, so shifting integers works as
// well as shifting bytes. All supported CPUs have registers for two such integers.
typedef std::uint64_t Words __attribute__((vector_size(16)));
constexpr std::size_t kLineWords = kLineBytes / sizeof(Words);
struct Line {
  Words words[kLineWords];
};

// One integer at a time: if the whole line is copied, compilers also keep it in memory.
Line load(const std::uint8_t* bytes) {
  Line line;
  TQC_UNROLL for (std::size_t i = 0; i < kLineWords; ++i) {
    std::memcpy(&line.words[i], bytes + i * sizeof(Words), sizeof(Words));
  }
  return line;
}

void store(const Line& line, std::uint8_t* bytes) {
  TQC_UNROLL for (std::size_t i = 0; i < kLineWords; ++i) {
    std::memcpy(bytes + i * sizeof(Words), &line.words[i], sizeof(Words));
  }
}

constexpr std::uint64_t in_every_byte(unsigned value) { return 0x0101010101010101u * value; }

constexpr unsigned kWhole = 0xff;  // a mask that keeps the whole code

// ((line >> kRight) & kMask) << kLeft, in every byte.
template <int kRight, unsigned kMask, int kLeft>
Line field(const Line& line) {
  static_assert(kMask != kWhole || kRight == 0);
  Line result;
  TQC_UNROLL for (std::size_t i = 0; i < kLineWords; ++i) {
    const Words moved = line.words[i] >> kRight;
    result.words[i] = (kMask == kWhole ? moved : moved & in_every_byte(kMask)) << kLeft;
  }
  return result;
}

Line operator|(const Line& a, const Line& b) {
  Line result;
  TQC_UNROLL for (std::size_t i = 0; i < kLineWords; ++i) {
    result.words[i] = a.words[i] | b.words[i];
  }
  return result;
}

// A plane of kWidth (1, 2 or 4) bits, from bit kAt of the codes: one packed line holds the planes
// of 8 / kWidth lines, the first in the lowest bits. kMask is kWhole if the codes have no other
// bits.
template <int kWidth, int kAt = 0, unsigned kMask = kWhole, int kIndex = 0>
Line pack_plane(const std::uint8_t* lines) {
  const Line own = field<kAt, kMask, kWidth * kIndex>(load(lines));
  if constexpr ((kIndex + 1) * kWidth == 8) {
    return own;
  } else {
    return own | pack_plane<kWidth, kAt, kMask, kIndex + 1>(lines + kLineBytes);
  }
}

// Writes the lines if the plane is the lowest, otherwise adds to them.
template <int kWidth, int kAt, int kIndex = 0>
void unpack_plane(const Line& packed, std::uint8_t* lines) {
  const Line own = field<kWidth * kIndex, (1u << kWidth) - 1, kAt>(packed);
  store(kAt == 0 ? own : own | load(lines), lines);
  if constexpr ((kIndex + 1) * kWidth < 8) {
    unpack_plane<kWidth, kAt, kIndex + 1>(packed, lines + kLineBytes);
  }
}

// Four 6-bit fields in three lines: three of them are in the low bits, and the fourth is split into
// three pairs of bits above them.
struct Sixes {
  Line fields[4];
};

void pack_sixes(const Sixes& six, std::uint8_t* packed) {
  const Line(&f)[4] = six.fields;
  store(field<0, 0x3f, 0>(f[0]) | field<0, 3, 6>(f[3]), packed);
  store(field<0, 0x3f, 0>(f[1]) | field<2, 3, 6>(f[3]), packed + kLineBytes);
  store(field<0, 0x3f, 0>(f[2]) | field<4, 3, 6>(f[3]), packed + 2 * kLineBytes);
}

Sixes unpack_sixes(const std::uint8_t* packed) {
  const Line lines[3] = {load(packed), load(packed + kLineBytes), load(packed + 2 * kLineBytes)};
  return {{field<0, 0x3f, 0>(lines[0]), field<0, 0x3f, 0>(lines[1]), field<0, 0x3f, 0>(lines[2]),
           field<6, 3, 0>(lines[0]) | field<6, 3, 2>(lines[1]) | field<6, 3, 4>(lines[2])}};
}

void pack_threes(const std::uint8_t* lines, std::uint8_t* packed) {
  Sixes six;
  for (std::size_t f = 0; f < 4; ++f) {
    const std::uint8_t* const pair = lines + 2 * f * kLineBytes;
    six.fields[f] = load(pair) | field<0, kWhole, 3>(load(pair + kLineBytes));
  }
  pack_sixes(six, packed);
}

void unpack_threes(const std::uint8_t* packed, std::uint8_t* lines) {
  const Sixes six = unpack_sixes(packed);
  for (std::size_t f = 0; f < 4; ++f) {
    std::uint8_t* const pair = lines + 2 * f * kLineBytes;
    store(field<0, 7, 0>(six.fields[f]), pair);
    store(field<3, 7, 0>(six.fields[f]), pair + kLineBytes);
  }
}

// Eight lines of 6-bit codes, or of the low six bits of 7-bit codes.
void pack_all_sixes(const std::uint8_t* lines, std::uint8_t* packed) {
  for (std::size_t half = 0; half < 2; ++half) {
    Sixes six;
    for (std::size_t f = 0; f < 4; ++f) six.fields[f] = load(lines + (4 * half + f) * kLineBytes);
    pack_sixes(six, packed + 3 * half * kLineBytes);
  }
}

void unpack_all_sixes(const std::uint8_t* packed, std::uint8_t* lines) {
  for (std::size_t half = 0; half < 2; ++half) {
    const Sixes six = unpack_sixes(packed + 3 * half * kLineBytes);
    for (std::size_t f = 0; f < 4; ++f) store(six.fields[f], lines + (4 * half + f) * kLineBytes);
  }
}

// The low four bits of eight lines.
template <unsigned kMask>
void pack_nibbles(const std::uint8_t* lines, std::uint8_t* packed) {
  for (std::size_t g = 0; g < 4; ++g) {
    store(pack_plane<4, 0, kMask>(lines + 2 * g * kLineBytes), packed + g * kLineBytes);
  }
}

void unpack_nibbles(const std::uint8_t* packed, std::uint8_t* lines) {
  for (std::size_t g = 0; g < 4; ++g) {
    unpack_plane<4, 0>(load(packed + g * kLineBytes), lines + 2 * g * kLineBytes);
  }
}

const std::uint8_t* as_u8(std::span<const std::byte> bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

constexpr std::size_t padded_lines(const BlockShape& shape) {
  return (shape.lane_codes() + kUnitLaneCodes - 1) / kUnitLaneCodes * kUnitLines;
}

// The position of a code in the lines of bytes of its group.
struct Place {
  std::size_t group;
  std::size_t byte;
};

constexpr Place place(const BlockShape& shape, std::size_t token, std::size_t component) {
  const bool keys = shape.order == BlockOrder::kKeys;
  const std::size_t lane = keys ? token : component;
  const std::size_t index = keys ? component : token;
  return {lane / kLanes,
          index / kLaneCodes * kLineBytes + lane % kLanes * kLaneCodes + index % kLaneCodes};
}

// Calls visit(byte, code) for every code of a group, with its position in the group's lines and in
// [256, dim]. Values end after their last component, in the middle of a group.
template <class Visit>
void for_group(const BlockShape& shape, std::size_t group, const Visit& visit) {
  const bool keys = shape.order == BlockOrder::kKeys;
  for (std::size_t lane = group * kLanes; lane < (group + 1) * kLanes; ++lane) {
    if (!keys && lane >= shape.dim()) break;
    for (std::size_t index = 0; index < shape.lane_codes(); ++index) {
      const std::size_t token = keys ? lane : index;
      const std::size_t component = keys ? index : lane;
      visit(place(shape, token, component).byte, token * shape.dim() + component);
    }
  }
}

}  // namespace

void pack_unit(int bits, const std::uint8_t* lines, std::uint8_t* packed) {
  switch (bits) {
    case 1:
      return store(pack_plane<1>(lines), packed);
    case 2:
      store(pack_plane<2>(lines), packed);
      return store(pack_plane<2>(lines + 4 * kLineBytes), packed + kLineBytes);
    case 3:
      return pack_threes(lines, packed);
    case 4:
      return pack_nibbles<kWhole>(lines, packed);
    case 5:
      store(pack_plane<1, 4, 1>(lines), packed);
      return pack_nibbles<0xf>(lines, packed + kLineBytes);
    case 6:
      return pack_all_sixes(lines, packed);
    case 7:
      store(pack_plane<1, 6, 1>(lines), packed);
      return pack_all_sixes(lines, packed + kLineBytes);
    default:
      assert(bits == 8);
      std::memcpy(packed, lines, kUnitLines * kLineBytes);
  }
}

void unpack_unit(int bits, const std::uint8_t* packed, std::uint8_t* lines) {
  switch (bits) {
    case 1:
      return unpack_plane<1, 0>(load(packed), lines);
    case 2:
      unpack_plane<2, 0>(load(packed), lines);
      return unpack_plane<2, 0>(load(packed + kLineBytes), lines + 4 * kLineBytes);
    case 3:
      return unpack_threes(packed, lines);
    case 4:
      return unpack_nibbles(packed, lines);
    case 5:
      unpack_nibbles(packed + kLineBytes, lines);
      return unpack_plane<1, 4>(load(packed), lines);
    case 6:
      return unpack_all_sixes(packed, lines);
    case 7:
      unpack_all_sixes(packed + kLineBytes, lines);
      return unpack_plane<1, 6>(load(packed), lines);
    default:
      assert(bits == 8);
      std::memcpy(lines, packed, kUnitLines * kLineBytes);
  }
}

void pack_group(const BlockShape& shape, const std::uint8_t* lines, std::uint8_t* packed) {
  const std::size_t unit_bytes = static_cast<std::size_t>(shape.bits) * kLineBytes;
  const std::size_t units = shape.whole_units();
  for (std::size_t u = 0; u < units; ++u) {
    pack_unit(shape.bits, lines + u * kUnitLines * kLineBytes, packed + u * unit_bytes);
  }
  if (shape.tail_lines() == 0) return;
  std::uint8_t unit[kUnitLines * kLineBytes];
  pack_unit(shape.bits, lines + units * kUnitLines * kLineBytes, unit);
  std::memcpy(packed + units * unit_bytes, unit, shape.tail_lines() * kLineBytes);
}

void unpack_group(const BlockShape& shape, const std::uint8_t* packed, std::uint8_t* lines) {
  const std::size_t unit_bytes = static_cast<std::size_t>(shape.bits) * kLineBytes;
  const std::size_t units = shape.whole_units();
  for (std::size_t u = 0; u < units; ++u) {
    unpack_unit(shape.bits, packed + u * unit_bytes, lines + u * kUnitLines * kLineBytes);
  }
  if (shape.tail_lines() == 0) return;
  std::uint8_t unit[kUnitLines * kLineBytes] = {};
  std::memcpy(unit, packed + units * unit_bytes, shape.tail_lines() * kLineBytes);
  unpack_unit(shape.bits, unit, lines + units * kUnitLines * kLineBytes);
}

void pack_block(const BlockShape& shape, std::span<const std::uint8_t> codes,
                std::span<std::byte> block) {
  assert(codes.size() == kBlockTokens * shape.dim() && block.size() == shape.block_bytes());
  std::array<std::uint8_t, kMaxGroupBytes> lines;
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    std::memset(lines.data(), 0, padded_lines(shape) * kLineBytes);
    for_group(shape, group, [&](std::size_t byte, std::size_t code) { lines[byte] = codes[code]; });
    pack_group(shape, lines.data(),
               reinterpret_cast<std::uint8_t*>(block.data()) + group * shape.group_bytes());
  }
}

void unpack_block(const BlockShape& shape, std::span<const std::byte> block,
                  std::span<std::uint8_t> codes) {
  assert(codes.size() == kBlockTokens * shape.dim() && block.size() == shape.block_bytes());
  std::array<std::uint8_t, kMaxGroupBytes> lines;
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    unpack_group(shape, as_u8(block) + group * shape.group_bytes(), lines.data());
    for_group(shape, group, [&](std::size_t byte, std::size_t code) { codes[code] = lines[byte]; });
  }
}

void unpack_token(const BlockShape& shape, std::span<const std::byte> block, std::size_t token,
                  std::span<std::uint8_t> codes) {
  assert(token < kBlockTokens);
  assert(codes.size() == shape.dim() && block.size() == shape.block_bytes());
  std::array<std::uint8_t, kMaxGroupBytes> lines;
  std::size_t unpacked = shape.groups();  // none yet
  for (std::size_t component = 0; component < shape.dim(); ++component) {
    const Place at = place(shape, token, component);
    if (at.group != unpacked) {
      unpack_group(shape, as_u8(block) + at.group * shape.group_bytes(), lines.data());
      unpacked = at.group;
    }
    codes[component] = lines[at.byte];
  }
}

namespace {

constexpr std::size_t kGroup = 8;  // codes that fill whole bytes

// Up to eight codes and the bytes they fill. Works byte by byte, because copying 3, 5, 6 or 7 bytes
// into an integer that is read at once stalls the CPU.
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
