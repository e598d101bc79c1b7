#pragma once
// cuda/codec_tile.cuh: codes of a tile, a byte each in shared memory, to packed lines and back.
//
// In shared memory four neighboring codes of a token are a word; where it is says a function
// `word(token, column)`, which gives a reference. A packed line (docs/reference/codec.md §5) is
// handled in chunks of 16 bytes: four register lanes.

#include <cstdint>

#include "tqcache/cuda/codec_args.cuh"

namespace tqcache::cuda {

__device__ __forceinline__ uint4 operator|(uint4 a, uint4 b) {
  return make_uint4(a.x | b.x, a.y | b.y, a.z | b.z, a.w | b.w);
}
__device__ __forceinline__ uint4 operator&(uint4 a, std::uint32_t mask) {
  return make_uint4(a.x & mask, a.y & mask, a.z & mask, a.w & mask);
}
// Within bytes, as long as what is shifted out of them is masked or 0.
__device__ __forceinline__ uint4 operator<<(uint4 a, int n) {
  return make_uint4(a.x << n, a.y << n, a.z << n, a.w << n);
}
__device__ __forceinline__ uint4 operator>>(uint4 a, int n) {
  return make_uint4(a.x >> n, a.y >> n, a.z >> n, a.w >> n);
}

// Byte i of word j becomes byte j of word i.
__device__ __forceinline__ uint4 transposed_bytes(uint4 a) {
  const std::uint32_t x = __byte_perm(a.x, a.y, 0x5140), y = __byte_perm(a.z, a.w, 0x5140);
  const std::uint32_t z = __byte_perm(a.x, a.y, 0x7362), w = __byte_perm(a.z, a.w, 0x7362);
  return make_uint4(__byte_perm(x, y, 0x5410), __byte_perm(x, y, 0x7632), __byte_perm(z, w, 0x5410),
                    __byte_perm(z, w, 0x7632));
}

// Line `line` of a unit; x(k): the codes of line of bytes k.
template <int kBits, class Lines>
__device__ __forceinline__ uint4 pack_line(int line, const Lines& x) {
  const auto plane = [&](int bit) {
    uint4 y = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < 8; ++k) y = y | ((x(k) >> bit & 0x01010101u) << k);
    return y;
  };
  const auto sixes = [&](int first, int l) {
    const uint4 low = x(first + l) & 0x3f3f3f3fu;
    return low | ((x(first + 3) >> (2 * l) & 0x03030303u) << 6);
  };
  if constexpr (kBits == 1) return plane(0);
  if constexpr (kBits == 2) {
    return x(4 * line) | (x(4 * line + 1) << 2) | (x(4 * line + 2) << 4) | (x(4 * line + 3) << 6);
  }
  if constexpr (kBits == 3) {
    return x(2 * line) | (x(2 * line + 1) << 3) |
           (((x(6) | (x(7) << 3)) >> (2 * line) & 0x03030303u) << 6);
  }
  if constexpr (kBits == 4) return x(2 * line) | (x(2 * line + 1) << 4);
  if constexpr (kBits == 5) {
    if (line == 0) return plane(4);
    return (x(2 * line - 2) & 0x0f0f0f0fu) | ((x(2 * line - 1) & 0x0f0f0f0fu) << 4);
  }
  if constexpr (kBits == 6) return sixes(line / 3 * 4, line % 3);
  if constexpr (kBits == 7) {
    return line == 0 ? plane(6) : sixes((line - 1) / 3 * 4, (line - 1) % 3);
  }
  return x(line);
}

// The codes of line of bytes k of a unit with the packed lines y.
template <int kBits>
__device__ __forceinline__ uint4 unpack_line(const uint4 (&y)[kBits], int k) {
  const auto six = [&](int first, int field) {
    if (field < 3) return y[first + field] & 0x3f3f3f3fu;
    return (y[first] >> 6 & 0x03030303u) | (y[first + 1] >> 4 & 0x0c0c0c0cu) |
           (y[first + 2] >> 2 & 0x30303030u);
  };
  if constexpr (kBits == 1) return y[0] >> k & 0x01010101u;
  if constexpr (kBits == 2) return y[k / 4] >> (2 * (k % 4)) & 0x03030303u;
  if constexpr (kBits == 3) return six(0, k / 2) >> (3 * (k % 2)) & 0x07070707u;
  if constexpr (kBits == 4) return y[k / 2] >> (4 * (k % 2)) & 0x0f0f0f0fu;
  if constexpr (kBits == 5) {
    return (y[1 + k / 2] >> (4 * (k % 2)) & 0x0f0f0f0fu) | ((y[0] >> k & 0x01010101u) << 4);
  }
  if constexpr (kBits == 6) return six(k / 4 * 3, k % 4);
  if constexpr (kBits == 7) return six(1 + k / 4 * 3, k % 4) | ((y[0] >> k & 0x01010101u) << 6);
  return y[k];
}

// Where the packed lines of a part's tile are in a kv head's block.
struct TileLines {
  int bits, dim, tile;
  bool is_values;
  int group_lines;  // of keys

  __device__ TileLines(const PartTables& part, bool values, int tile_number)
      : bits(part.bits),
        dim(part.dim),
        tile(tile_number),
        is_values(values),
        group_lines(part.block_bytes / (16 * 64)) {}

  __device__ __forceinline__ int n_lines() const {
    return is_values ? (dim + 15) / 16 * bits : 2 * group_lines;
  }
  __device__ __forceinline__ int n_units() const {
    return is_values ? (dim + 15) / 16 : 2 * ((dim + 31) / 32);
  }
};

// Words of one token's rows behind each other.
struct PlainWords {
  std::uint32_t* words;
  int stride;
  __device__ __forceinline__ std::uint32_t& operator()(int token, int column) const {
    return words[token * stride + column];
  }
};

// Threads `thread`, `thread` + n_threads, ... of those that share the tile pack its codes.
template <int kBits, class Words>
__device__ __forceinline__ void pack_tile_of(const TileLines& lines, const Words& word,
                                             std::uint8_t* packed, int thread, int n_threads) {
  const int quad = thread % 4;  // n_threads is a multiple of 4
  for (int number = thread / 4; number < lines.n_lines(); number += n_threads / 4) {
    uint4 out;
    int at;
    if (lines.is_values) {
      const int group = number / kBits, line = number % kBits, column = group * 4 + quad;
      out = pack_line<kBits>(line, [&](int k) {
        return transposed_bytes(make_uint4(word(4 * k, column), word(4 * k + 1, column),
                                           word(4 * k + 2, column), word(4 * k + 3, column)));
      });
      at = ((group * kPageTiles + lines.tile) * kBits + line) * 64;
    } else {
      const int group = number >= lines.group_lines ? 1 : 0;
      const int in_group = number - group * lines.group_lines;
      const int token = 16 * group + 4 * quad, column = in_group / kBits * 8;
      out = pack_line<kBits>(in_group % kBits, [&](int k) {
        return make_uint4(word(token, column + k), word(token + 1, column + k),
                          word(token + 2, column + k), word(token + 3, column + k));
      });
      at = (2 * lines.tile * lines.group_lines + number) * 64;
    }
    *reinterpret_cast<uint4*>(packed + at + quad * 16) = out;
  }
}

template <int kBits, class Words>
__device__ __forceinline__ void unpack_tile_of(const TileLines& lines, const std::uint8_t* packed,
                                               const Words& word, int thread, int n_threads) {
  const int units = (lines.dim + 31) / 32;
  for (int i = thread; i < lines.n_units() * 4; i += n_threads) {
    const int unit = i / 4, quad = i % 4;
    // Of keys: unit u of group g. The last may be cut short.
    const int group = lines.is_values ? unit : unit / units;
    const int u = lines.is_values ? 0 : unit % units;
    const int first = lines.is_values ? (group * kPageTiles + lines.tile) * kBits
                                      : (2 * lines.tile + group) * lines.group_lines + u * kBits;
    const int there = lines.is_values ? kBits : lines.group_lines - u * kBits;
    const std::uint8_t* const from = packed + first * 64 + quad * 16;
    uint4 y[kBits];
#pragma unroll
    for (int l = 0; l < kBits; ++l) {
      y[l] = l < there ? *reinterpret_cast<const uint4*>(from + l * 64) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      uint4 x = unpack_line<kBits>(y, k);
      int token = 16 * group + 4 * quad, column = u * 8 + k;
      if (lines.is_values) {
        x = transposed_bytes(x);
        token = 4 * k;
        column = group * 4 + quad;
      }
      word(token, column) = x.x;
      word(token + 1, column) = x.y;
      word(token + 2, column) = x.z;
      word(token + 3, column) = x.w;
    }
  }
}

template <class Words>
__device__ __forceinline__ void pack_tile(const TileLines& lines, const Words& word,
                                          std::uint8_t* packed, int thread, int n_threads) {
  switch (lines.bits) {
    case 1:
      return pack_tile_of<1>(lines, word, packed, thread, n_threads);
    case 2:
      return pack_tile_of<2>(lines, word, packed, thread, n_threads);
    case 3:
      return pack_tile_of<3>(lines, word, packed, thread, n_threads);
    case 4:
      return pack_tile_of<4>(lines, word, packed, thread, n_threads);
    case 5:
      return pack_tile_of<5>(lines, word, packed, thread, n_threads);
    case 6:
      return pack_tile_of<6>(lines, word, packed, thread, n_threads);
    case 7:
      return pack_tile_of<7>(lines, word, packed, thread, n_threads);
    default:
      return pack_tile_of<8>(lines, word, packed, thread, n_threads);
  }
}

template <class Words>
__device__ __forceinline__ void unpack_tile(const TileLines& lines, const std::uint8_t* packed,
                                            const Words& word, int thread, int n_threads) {
  switch (lines.bits) {
    case 1:
      return unpack_tile_of<1>(lines, packed, word, thread, n_threads);
    case 2:
      return unpack_tile_of<2>(lines, packed, word, thread, n_threads);
    case 3:
      return unpack_tile_of<3>(lines, packed, word, thread, n_threads);
    case 4:
      return unpack_tile_of<4>(lines, packed, word, thread, n_threads);
    case 5:
      return unpack_tile_of<5>(lines, packed, word, thread, n_threads);
    case 6:
      return unpack_tile_of<6>(lines, packed, word, thread, n_threads);
    case 7:
      return unpack_tile_of<7>(lines, packed, word, thread, n_threads);
    default:
      return unpack_tile_of<8>(lines, packed, word, thread, n_threads);
  }
}

}  // namespace tqcache::cuda
