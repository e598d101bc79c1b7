#pragma once
// cuda/packed_tile.cuh: a tile of packed codes in shared memory and its way into matrix units.
//
// A tile is 32 tokens of a kv head, one warp's work. Keys: two groups of sixteen tokens, in each
// head_dim / 32 units. Values: head_dim / 16 groups of sixteen components, in each the one unit of
// these tokens. Either way a slot (a unit of a group) is 32 codes of each of sixteen register lanes
// (docs/reference/codec.md §5), and the matrix units multiply 16 rows (lanes) by 16 codes of each.
//
// Thread (g, t) = (lane / 4, lane % 4) of a warp holds, for rows g and g + 8, codes 8t .. 8t + 7 of
// a slot: lines of bytes 2t and 2t + 1. Byte j of these two lines is a pair, codes 8t + j and
// 8t + 4 + j, and up to 4 bits a pair stands in one byte of a packed line (3 bits: in a field of
// six bits). So a pair is looked up at once, in a table of f16 pairs that has a copy for each lane,
// which keeps shared memory free of bank conflicts.

#include <cuda_fp16.h>

#include <cstdint>

#include "tqcache/cuda/copy_async.cuh"

namespace tqcache::cuda {

// Packed lines that a slot takes in shared memory: a power of two, so that swizzling works.
__host__ __device__ constexpr int slot_lines(int bits) { return bits <= 2 ? 2 : bits <= 4 ? 4 : 8; }
__host__ __device__ constexpr int slot_bytes(int bits) { return slot_lines(bits) * 64; }

// Entries of the table: pairs of codes up to 4 bits, otherwise single codes. With 3 bits the entry
// is a byte in which two bits mean nothing, because clearing them would cost more than the table
// does.
__host__ __device__ constexpr int table_entries(int bits) {
  return bits == 3 ? 256 : bits <= 4 ? 1 << (2 * bits) : 1 << bits;
}
constexpr int kTableRow = 256;  // bytes: an entry for each lane of keys, then one of values

// 16-byte chunks of a 128-byte row change places by the row's number, so that the rows which a
// quarter of a warp reads at once stand in different banks.
__device__ __forceinline__ std::uint32_t swizzled(std::uint32_t at) {
  return at ^ (((at >> 7) & 3u) << 5);
}

// Pairs of codes of four register lanes. Up to 4 bits byte j of `low` is the pair's entry;
// otherwise byte j of `low` is code 8t + j and that of `high` code 8t + 4 + j.
struct Pairs {
  std::uint32_t low[4];
  std::uint32_t high[4];
};

// Where a thread reads slots first, first + kStride, ...: its place in slot u is at[line][u %
// kPeriod] + u kStride slot_bytes(kBits), because swizzling repeats itself every 512 bytes.
template <int kBits, int kStride>
struct Places {
  static constexpr int kLines = kBits == 3 ? 3 : 1;
  static constexpr int kStep = kStride * slot_bytes(kBits);
  static constexpr int kPeriod = kStep < 512 ? 512 / kStep : 1;
  std::uint32_t at[kLines][kPeriod];

  // Of thread (g, t): lanes 4 * quad .. 4 * quad + 3 of the slot.
  __device__ __forceinline__ Places(int first, int t, int quad) {
    const int line = kBits == 2 ? t >> 1 : kBits == 3 ? (t == 3 ? 0 : t) : kBits == 4 ? t : 2 * t;
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
#pragma unroll
      for (int p = 0; p < kPeriod; ++p) {
        const int own = first * slot_bytes(kBits) + (i == 0 ? line : i) * 64 + quad * 16;
        at[i][p] = swizzled(static_cast<std::uint32_t>(own + p * kStep)) - p * kStep;
      }
    }
  }
};

__device__ __forceinline__ void unpack_chunk(const std::uint8_t* at, std::uint32_t (&words)[4]) {
  const uint4 chunk = *reinterpret_cast<const uint4*>(at);
  words[0] = chunk.x, words[1] = chunk.y, words[2] = chunk.z, words[3] = chunk.w;
}

// The pairs of thread (g, t) in slot u.
template <int kBits, int kStride>
__device__ __forceinline__ Pairs load_pairs(const std::uint8_t* tile,
                                            const Places<kBits, kStride>& places, int u, int t) {
  const auto at = [&](int line) {
    return tile + places.at[line][u % places.kPeriod] + u * places.kStep;
  };
  Pairs pairs;
  unpack_chunk(at(0), pairs.low);
  if constexpr (kBits == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs.low[i] = (pairs.low[i] >> (4 * (t & 1))) & 0x0f0f0f0fu;
  } else if constexpr (kBits == 3) {
    // Field 3 is cut: bits 7 and 6 of the three lines become bits 7 to 2 of the entry. All threads
    // read the second and third line, at the same addresses, because a branch would cost more.
    std::uint32_t second[4], third[4];
    unpack_chunk(at(1), second);
    unpack_chunk(at(2), third);
    const bool is_cut = t == 3;
    const std::uint32_t first_mask = is_cut ? 0xc0c0c0c0u : ~0u;
    const std::uint32_t two_mask = is_cut ? 0xf0f0f0f0u : ~0u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t two = (pairs.low[i] & first_mask) | (second[i] >> 2 & ~first_mask);
      pairs.low[i] = (two & two_mask) | (third[i] >> 4 & ~two_mask);
    }
  } else if constexpr (kBits == 8) {
    // The second line is 64 bytes on, which swizzling turns into a difference of bit 6.
    const auto second = reinterpret_cast<std::uintptr_t>(at(0)) ^ 64;
    unpack_chunk(reinterpret_cast<const std::uint8_t*>(second), pairs.high);
  } else {
    static_assert(kBits == 4);
  }
  return pairs;
}

// The table's entry of byte `j` of `word`, for this lane (lane4 = 4 * lane): row * 256 + 4 * lane
// is one permutation of bytes.
__device__ __forceinline__ std::uint32_t look_up(const std::uint8_t* table, std::uint32_t word,
                                                 int j, std::uint32_t lane4) {
  return *reinterpret_cast<const std::uint32_t*>(table +
                                                 __byte_perm(word, lane4, 0x5504 + (j << 4)));
}

// Centroids of pair j of register lane `row` (0..3) as two f16.
template <int kBits>
__device__ __forceinline__ std::uint32_t centroid_pair(const std::uint8_t* table,
                                                       const Pairs& pairs, int row, int j,
                                                       std::uint32_t lane4) {
  const std::uint32_t low = look_up(table, pairs.low[row], j, lane4);
  if constexpr (kBits <= 4) return low;
  return __byte_perm(low, look_up(table, pairs.high[row], j, lane4), 0x5410);
}

__device__ __forceinline__ std::uint32_t packed_pair(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// Fills the keys' (offset 0) or values' (offset 128) half of the table's rows.
template <int kBits, int kThreads>
__device__ __forceinline__ void fill_table(std::uint8_t* table, const float* centroids,
                                           int thread) {
  constexpr int kCodes = 1 << kBits;
  constexpr int kStores = table_entries(kBits) * 8;  // of 16 bytes
#pragma unroll 4
  for (int i = thread; i < kStores; i += kThreads) {
    const int entry = i / 8;
    const float low = __ldg(centroids + entry % kCodes);
    const float high = kBits <= 4 ? __ldg(centroids + entry / kCodes % kCodes) : low;
    const std::uint32_t pair = packed_pair(low, high);
    std::uint32_t last = pair;  // of threads with t = 3
    if constexpr (kBits == 3) {
      const int cut = entry >> 6 | (entry >> 4 & 3) << 2 | (entry >> 2 & 3) << 4;
      last = packed_pair(__ldg(centroids + cut % kCodes), __ldg(centroids + cut / kCodes));
    }
    *reinterpret_cast<uint4*>(table + entry * kTableRow + i % 8 * 16) =
        make_uint4(pair, pair, pair, last);
  }
}

// c += a b: 16 rows, 8 columns, 16 deep, f16 into f32.
__device__ __forceinline__ void multiply_add(float (&c)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The transpose of an 8 x 8 matrix of f16, two of a row in each thread.
__device__ __forceinline__ std::uint32_t transposed(std::uint32_t pair) {
  std::uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(out) : "r"(pair));
  return out;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace tqcache::cuda
