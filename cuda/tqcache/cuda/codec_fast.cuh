#pragma once
// cuda/codec_fast.cuh: encoding and decoding of mode mse with a Hadamard rotation, for sizes of
// heads that are multiples of 16, at the speed of memory; every file that includes it makes
// kernels.
//
// A warp works on one tile. Four threads share a head vector, eight vectors at a time. Thread t of
// the four has runs of `kRun` neighboring components: 4 kRun c + kRun t + e is its value kRun c +
// e. So all butterflies but two are within a thread. Encoding takes runs of 4, because then each of
// the sixteen sums of an inner product belongs to one thread; decoding runs of 8, 16 bytes of f16,
// of powers of two.
//
// A block of threads works on tiles of one place in their token blocks, so that the angles of RoPE
// are read once.

#include <array>

#include "tqcache/cuda/check.cuh"
#include "tqcache/cuda/codec_args.cuh"
#include "tqcache/cuda/codec_tile.cuh"

namespace tqcache::cuda {

using codec::ScaleRule;

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kPassTokens = 8;
constexpr int kPasses = kTileTokens / kPassTokens;
constexpr std::uint16_t kF16Infinity = 0x7c00;
constexpr int kMostBinBytes = 64 * 1024;  // of bins with a copy for each lane of half a warp

__host__ __device__ constexpr int words_of(int dim) { return (dim + 127) / 128 * 32; }
__host__ __device__ constexpr int run_of(int dim, bool encodes) {
  return encodes || (dim & (dim - 1)) != 0 ? 4 : 8;
}
// Floats of a token's cosines: padded, so that two tokens' rows are in different banks.
__host__ __device__ constexpr int angle_row(int dim, int run) {
  return run == 8 ? dim / 2 + 4 : (dim / 2 + 15) / 32 * 32 + 16;
}

// The factors that mix the parts of a vector; of part 0 they are 1.
template <int kDim>
struct Mixing {
  static constexpr int kParts = kDim / kPartSize<kDim>;
  float cas[kParts];
  __device__ explicit Mixing(const float* from) {
#pragma unroll
    for (int i = 1; i < kParts; ++i) cas[i] = __ldg(from + i);
    cas[0] = 1;
  }
};

// Codes of a warp's tile. Columns change places so that reading, writing and packing are free of
// bank conflicts, or nearly.
template <int kDim, int kRun>
struct Words {
  std::uint32_t* words;
  __device__ __forceinline__ std::uint32_t& operator()(int token, int column) const {
    const int low = kRun == 8 ? token >> 2 & 7 : (token >> 2 & 1) << 2 | (token >> 3 & 3);
    return words[token * words_of(kDim) + (column ^ ((token & 3) << 3 | low))];
  }
  // Columns t, t + 4, t + 8, ... of a token: column 4i + t is first[4 i ^ rest], where `rest` is
  // the number of the first in its row of columns.
  __device__ __forceinline__ void store_own(int token, int t, const std::uint32_t* own) const {
    std::uint32_t* const first = &(*this)(token, t);
    const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(first));
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(at ^ (16 * i)), "r"(own[i]) : "memory");
    }
  }
};

// Butterflies of distance h in a thread's own values.
template <int kOwn>
__device__ __forceinline__ void own_stage(float (&x)[kOwn], int h) {
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if ((i & h) != 0) continue;
    const float a = x[i], b = x[i + h];
    x[i] = __fadd_rn(a, b);
    x[i + h] = __fsub_rn(a, b);
  }
}

// The transform of four threads' vector, not scaled: the Walsh-Hadamard transform of its parts,
// stages in ascending order, from distance `kFirst` on; then the parts are mixed (codec.md §2).
template <int kDim, int kRun, int kFirst = 1>
__device__ __forceinline__ void hadamard(float (&x)[kDim / 4], const Mixing<kDim>& mixing, int t) {
#pragma unroll
  for (int h = kFirst; h < kRun; h *= 2) own_stage<kDim / 4>(x, h);
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const float sign = (t & bit) != 0 ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < kDim / 4; ++i) {
      x[i] = __fmaf_rn(x[i], sign, __shfl_xor_sync(~0u, x[i], bit));  // the product is exact
    }
  }
#pragma unroll
  for (int h = kRun; h < kPartSize<kDim> / 4; h *= 2) own_stage<kDim / 4>(x, h);
  constexpr int kParts = Mixing<kDim>::kParts, kOwn = kPartSize<kDim> / 4;
  if constexpr (kParts > 1) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      float from[kParts];
#pragma unroll
      for (int k = 0; k < kParts; ++k) from[k] = x[k * kOwn + i];
#pragma unroll
      for (int j = 0; j < kParts; ++j) {
        float sum = from[0];
#pragma unroll
        for (int k = 1; k < kParts; ++k) {
          const float by = mixing.cas[j * k % kParts];
          sum = __fadd_rn(sum, j == 0 ? from[k] : __fmul_rn(by, from[k]));
        }
        x[j * kOwn + i] = sum;
      }
    }
  }
}

// The same of x[i] * signs[i]: products with 1 or -1 are exact, so the first stage may fuse them.
template <int kDim, int kRun>
__device__ __forceinline__ void signed_hadamard(float (&x)[kDim / 4],
                                                const float (&signs)[kDim / 4],
                                                const Mixing<kDim>& mixing, int t) {
#pragma unroll
  for (int i = 0; i < kDim / 4; i += 2) {
    const float a = __fmul_rn(x[i], signs[i]), b = x[i + 1];
    x[i] = __fmaf_rn(b, signs[i + 1], a);
    x[i + 1] = __fmaf_rn(b, -signs[i + 1], a);
  }
  hadamard<kDim, kRun, 2>(x, mixing, t);
}

// This thread's components of a row.
template <int kDim, int kRun>
__device__ __forceinline__ void load_own(float (&x)[kDim / 4], const float* row, int t) {
#pragma unroll
  for (int i = 0; i < kDim / 4; i += 4) {
    const float4 four =
        *reinterpret_cast<const float4*>(row + i / kRun * 4 * kRun + kRun * t + i % kRun);
    x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
  }
}

// x[i] *= this thread's components of a row in global memory.
template <int kDim, int kRun>
__device__ __forceinline__ void multiply_own(float (&x)[kDim / 4], const float* row, int t) {
#pragma unroll
  for (int i = 0; i < kDim / 4; i += 4) {
    const float4 by =
        __ldg(reinterpret_cast<const float4*>(row + i / kRun * 4 * kRun + kRun * t + i % kRun));
    x[i] = __fmul_rn(x[i], by.x), x[i + 1] = __fmul_rn(x[i + 1], by.y);
    x[i + 2] = __fmul_rn(x[i + 2], by.z), x[i + 3] = __fmul_rn(x[i + 3], by.w);
  }
}

// apply(i, component i of the mean at this token).
template <int kDim, int kRun, class Apply>
__device__ __forceinline__ void for_mean(const float* mean, const float* cos, const float* sin,
                                         int t, const Apply& apply) {
  const auto load = [&](const float* row, int i) {
    return *reinterpret_cast<const float4*>(row + i / kRun * 4 * kRun + kRun * t + i % kRun);
  };
  if (cos == nullptr) {
#pragma unroll
    for (int i = 0; i < kDim / 4; i += 4) {
      const float4 m = load(mean, i);
      apply(i, m.x), apply(i + 1, m.y), apply(i + 2, m.z), apply(i + 3, m.w);
    }
    return;
  }
  constexpr int kHalf = kDim / 8;
  if constexpr (kHalf % kRun != 0) {  // the other component of a pair is another thread's
#pragma unroll
    for (int i = 0; i < kDim / 4; i += 4) {
      const int own = i / kRun * 4 * kRun + kRun * t + i % kRun;
      const bool is_low = own < kDim / 2;
      const int other = is_low ? own + kDim / 2 : own - kDim / 2, pair = is_low ? own : other;
      const auto at = [](const float* row, int k) {
        return *reinterpret_cast<const float4*>(row + k);
      };
      const float4 a = at(mean, own), b = at(mean, other), c = at(cos, pair), s = at(sin, pair);
      const auto turned = [&](int k, float x, float y, float by_cos, float by_sin) {
        const float product = __fmul_rn(y, by_sin);
        apply(k, __fadd_rn(__fmul_rn(x, by_cos), is_low ? -product : product));
      };
      turned(i, a.x, b.x, c.x, s.x), turned(i + 1, a.y, b.y, c.y, s.y);
      turned(i + 2, a.z, b.z, c.z, s.z), turned(i + 3, a.w, b.w, c.w, s.w);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kHalf; i += 4) {
      const float4 low = load(mean, i), high = load(mean, i + kHalf), c = load(cos, i),
                   s = load(sin, i);
      const auto pair = [&](int k, float a, float b, float by_cos, float by_sin) {
        apply(k, __fsub_rn(__fmul_rn(a, by_cos), __fmul_rn(b, by_sin)));
        apply(k + kHalf, __fadd_rn(__fmul_rn(b, by_cos), __fmul_rn(a, by_sin)));
      };
      pair(i, low.x, high.x, c.x, s.x);
      pair(i + 1, low.y, high.y, c.y, s.y);
      pair(i + 2, low.z, high.z, c.z, s.z);
      pair(i + 3, low.w, high.w, c.w, s.w);
    }
  }
}

// What all warps of a block share.
struct SharedPlan {
  int bins = 0;  // bytes; of encoding
  int table = 0;
  int signs = 0;
  int angles = 0;
  int words = 0;
  int means = 0;  // of each warp's kv head and block
  int total = 0;
  bool bins_for_lanes = false;
};

template <int kDim, bool kEncodes>
__host__ __device__ SharedPlan shared_plan(const CodecArgs& p) {
  constexpr int kRun = run_of(kDim, kEncodes);
  SharedPlan plan;
  const int codes = 1 << p.part0.bits;
  plan.table = codes * (kEncodes ? 128 : 256);
  if (kEncodes) {
    plan.bins_for_lanes = p.part0.n_bins * 128 <= kMostBinBytes;
    plan.bins = (p.part0.n_bins * (plan.bins_for_lanes ? 128 : 8) + 255) / 256 * 256;
  }
  plan.signs = (p.part0.rounds * kDim * 4 + 255) / 256 * 256;  // rows of words are aligned
  plan.angles = p.n_pairs == 0 ? 0 : 2 * kTileTokens * angle_row(kDim, kRun) * 4;
  plan.words = kWarps * kTileTokens * words_of(kDim) * 4;
  plan.means = p.mean == nullptr ? 0 : kWarps * kDim * 4;
  plan.total = plan.table + plan.bins + plan.signs + plan.angles + plan.words + plan.means;
  return plan;
}

// Fills the tables of signs and angles; of signs times `factor`.
template <int kDim, int kRun>
__device__ void fill_signs_and_angles(const CodecArgs& p, int tile, float factor, float* signs,
                                      float* angles, int thread) {
  for (int i = thread; i < p.part0.rounds * kDim; i += kThreads) {
    signs[i] = p.part0.signs[i] * factor;
  }
  if (p.n_pairs == 0) return;
  constexpr int kRow = angle_row(kDim, kRun);
  for (int i = thread; i < kTileTokens * kDim / 2; i += kThreads) {
    const int token = i / (kDim / 2), pair = i % (kDim / 2);
    const int from = (tile * kTileTokens + token) * p.n_pairs + pair;
    angles[token * kRow + pair] = p.cos[from];
    angles[(kTileTokens + token) * kRow + pair] = p.sin[from];
  }
}

// The mean of a tile's kv head and block to shared memory, by one warp. Every pass reads it there:
// in the L1 cache it would not survive the rows.
template <int kDim>
__device__ __forceinline__ void copy_mean(const CodecArgs& p, const TilePlace& at, int lane,
                                          float* to) {
  if (p.mean == nullptr) return;
  const float* const from = p.mean + at.block * p.mean_stride + at.head * kDim;
#pragma unroll
  for (int i = 4 * lane; i < kDim; i += 128) {
    *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<const float4*>(from + i);
  }
  __syncwarp();
}

template <Dtype kDtype>
__device__ __forceinline__ float2 unpack_pair(std::uint32_t bits) {
  if constexpr (kDtype == Dtype::kBF16) {
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&bits));
  }
}
template <Dtype kDtype>
__device__ __forceinline__ std::uint32_t pack_pair(float low, float high) {
  if constexpr (kDtype == Dtype::kBF16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}

// --- Decoding

template <int kDim, Dtype kDtype>
__global__ void __launch_bounds__(kThreads, kDim <= 128 ? 2 : 1)
    decode_fast(const __grid_constant__ CodecArgs p) {
  constexpr int kRun = run_of(kDim, false);
  constexpr int kOwn = kDim / 4;
  extern __shared__ __align__(256) std::uint8_t shared[];
  const SharedPlan plan = shared_plan<kDim, false>(p);
  const Mixing<kDim> mixing(p.part0.cas);
  std::uint8_t* const table = shared;
  auto* const signs = reinterpret_cast<float*>(shared + plan.table);
  auto* const angles = reinterpret_cast<float*>(shared + plan.table + plan.signs);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int g = lane / 4, t = lane % 4;
  const Words<kDim, kRun> words{
      reinterpret_cast<std::uint32_t*>(shared + plan.table + plan.signs + plan.angles) +
      warp * kTileTokens * words_of(kDim)};
  float* const own_mean = reinterpret_cast<float*>(shared + plan.total - plan.means) + warp * kDim;
  const int tile = static_cast<int>(blockIdx.x) % kPageTiles;

  for (int i = thread; i < (1 << p.part0.bits) * 32; i += kThreads) {
    *reinterpret_cast<float*>(table + i / 32 * 256 + i % 32 * 4) = p.part0.centroids[i / 32];
  }
  fill_signs_and_angles<kDim, kRun>(p, tile, p.part0.factor, signs, angles, thread);
  __syncthreads();
  float first_signs[kOwn];  // times the factor
  load_own<kDim, kRun>(first_signs, signs, t);

  const std::uint32_t lane4 = lane * 4;
  const int n_items = p.n_blocks * p.n_kv_heads;
  const int stride = static_cast<int>(gridDim.x) / kPageTiles * kWarps;
  for (int item = static_cast<int>(blockIdx.x) / kPageTiles * kWarps + warp; item < n_items;
       item += stride) {
    const TilePlace at = tile_place(p, item / p.n_kv_heads, item % p.n_kv_heads, tile);
    if (at.count == at.skipped) continue;
    copy_mean<kDim>(p, at, lane, own_mean);
    unpack_tile(TileLines(p.part0, p.is_values, tile), codes_of(p, at), words, lane, 32);
    const std::uint16_t own_scale = scales_of(p, at, 0)[lane];
    __syncwarp();
#pragma unroll 1
    for (int pass = 0; pass < kPasses; ++pass) {
      const int token = pass * kPassTokens + g;
      const float scale = __half2float(__ushort_as_half(
          static_cast<std::uint16_t>(__shfl_sync(~0u, static_cast<unsigned>(own_scale), token))));
      float x[kOwn];
#pragma unroll
      for (int i = 0; i < kOwn; i += 4) {
        const std::uint32_t word = words(token, i / kRun * kRun + kRun / 4 * t + i % kRun / 4);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float c =
              *reinterpret_cast<const float*>(table + __byte_perm(word, lane4, 0x5504 + (j << 4)));
          x[i + j] = __fmul_rn(scale, c);
        }
      }
      for (int round = p.part0.rounds - 1; round > 0; --round) {
        hadamard<kDim, kRun>(x, mixing, t);
        float more_signs[kOwn];
        load_own<kDim, kRun>(more_signs, signs + round * kDim, t);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) x[i] = __fmul_rn(x[i], more_signs[i]);
      }
      hadamard<kDim, kRun>(x, mixing, t);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) x[i] = __fmul_rn(x[i], first_signs[i]);
      if (p.inverses != nullptr) multiply_own<kDim, kRun>(x, p.inverses + at.head * kDim, t);
      if (p.mean != nullptr) {
        const float* const cos = p.n_pairs == 0 ? nullptr : angles + token * angle_row(kDim, kRun);
        for_mean<kDim, kRun>(own_mean, cos, cos + kTileTokens * angle_row(kDim, kRun), t,
                             [&](int i, float m) { x[i] = __fadd_rn(x[i], m); });
      }
      if (token < at.skipped || token >= at.count) continue;
      const long long row = row_of(p, at) + token * p.token_stride + kRun * t;
      if constexpr (kDtype == Dtype::kF32) {
        float* const to = static_cast<float*>(p.rows) + row;
#pragma unroll
        for (int i = 0; i < kOwn; i += 4) {
          *reinterpret_cast<float4*>(to + i / kRun * 4 * kRun + i % kRun) =
              make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
        }
      } else {
        auto* const to = static_cast<std::uint16_t*>(p.rows) + row;
        const auto pair = [&](int i) { return pack_pair<kDtype>(x[i], x[i + 1]); };
#pragma unroll
        for (int i = 0; i < kOwn; i += kRun) {
          if constexpr (kRun == 8) {
            *reinterpret_cast<uint4*>(to + 4 * i) =
                make_uint4(pair(i), pair(i + 2), pair(i + 4), pair(i + 6));
          } else {
            *reinterpret_cast<uint2*>(to + 4 * i) = make_uint2(pair(i), pair(i + 2));
          }
        }
      }
    }
    __syncwarp();
  }
}

// --- Encoding

// Adds the sixteen sums of codec.md §4 of which each thread has four; the result is in all four.
__device__ __forceinline__ float add_lanes(float (&sums)[4]) {
#pragma unroll
  for (int bit = 2; bit > 0; bit /= 2) {
#pragma unroll
    for (float& sum : sums) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, bit));
  }
  return __fadd_rn(__fadd_rn(sums[0], sums[2]), __fadd_rn(sums[1], sums[3]));
}

template <int kDim, Dtype kDtype>
__global__ void __launch_bounds__(kThreads, kDim <= 128 ? 2 : 1)
    encode_fast(const __grid_constant__ CodecArgs p) {
  constexpr int kRun = run_of(kDim, true);
  constexpr int kOwn = kDim / 4;
  constexpr bool kIsF32 = kDtype == Dtype::kF32;
  extern __shared__ __align__(256) std::uint8_t shared[];
  const SharedPlan plan = shared_plan<kDim, true>(p);
  const Mixing<kDim> mixing(p.part0.cas);
  std::uint8_t* const bins = shared;
  std::uint8_t* const table = shared + plan.bins;
  auto* const signs = reinterpret_cast<float*>(table + plan.table);
  auto* const angles = reinterpret_cast<float*>(table + plan.table + plan.signs);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int g = lane / 4, t = lane % 4;
  const Words<kDim, kRun> words{
      reinterpret_cast<std::uint32_t*>(table + plan.table + plan.signs + plan.angles) +
      warp * kTileTokens * words_of(kDim)};
  float* const own_mean = reinterpret_cast<float*>(shared + plan.total - plan.means) + warp * kDim;
  const int tile = static_cast<int>(blockIdx.x) % kPageTiles;

  const int n_codes = 1 << p.part0.bits;
  for (int i = thread; i < n_codes * 32; i += kThreads) {
    *reinterpret_cast<float*>(table + i * 4) = p.part0.centroids[i / 32];
  }
  const int n_bins = p.part0.n_bins;
  const int copies = plan.bins_for_lanes ? 16 : 1;
  for (int i = thread; i < n_bins * copies; i += kThreads) {
    const int from = (i / copies + n_bins / 2) & (n_bins - 1);  // bins from -n_bins / 2 on
    reinterpret_cast<float2*>(bins)[i] = reinterpret_cast<const float2*>(p.part0.bins)[from];
  }
  fill_signs_and_angles<kDim, kRun>(p, tile, 1.0f, signs, angles, thread);
  __syncthreads();
  float first_signs[kOwn];
  load_own<kDim, kRun>(first_signs, signs, t);
  // Codes behind the last component, which fill the last unit.
  for (int column = kDim / 4; column < (kDim + 31) / 32 * 8; ++column) words(lane, column) = 0;

  const std::uint8_t* const own_table = table + lane * 4;
  // Adding kLifted rounds to whole numbers, which are then in the lowest bits.
  constexpr float kLifted = 12582912.0f;
  const std::uint32_t bin_bytes = plan.bins_for_lanes ? 128 : 8;
  std::uint32_t bin_zero = static_cast<std::uint32_t>(__cvta_generic_to_shared(bins)) +
                           (plan.bins_for_lanes ? lane % 16 * 8 : 0) +
                           (n_bins / 2 - __float_as_uint(kLifted)) * bin_bytes;
  asm("" : "+r"(bin_zero));  // or nvcc takes the sum apart again
  const float bins_per_unit = p.part0.bins_per_unit, factor = p.part0.factor;
  const auto code_of = [&](float y) {
    const std::uint32_t bin = __float_as_uint(__fmaf_rn(y, bins_per_unit, kLifted));
    float boundary;
    std::uint32_t code;
    asm("ld.shared.v2.b32 {%0, %1}, [%2];\n"
        : "=f"(boundary), "=r"(code)
        : "r"(bin * bin_bytes + bin_zero));
    asm("{\n"
        ".reg .pred above;\n"
        "setp.lt.f32 above, %1, %2;\n"
        "@above add.u32 %0, %0, 1;\n"
        "}\n"
        : "+r"(code)
        : "f"(boundary), "f"(y));
    return code;
  };

  const int n_items = p.n_blocks * p.n_kv_heads;
  const int stride = static_cast<int>(gridDim.x) / kPageTiles * kWarps;
  for (int item = static_cast<int>(blockIdx.x) / kPageTiles * kWarps + warp; item < n_items;
       item += stride) {
    const TilePlace at = tile_place(p, item / p.n_kv_heads, item % p.n_kv_heads, tile);
    const long long rows = row_of(p, at) + kRun * t;
    uint2 raw[kIsF32 ? 1 : kOwn / 4];  // of the next pass
    const auto* next = static_cast<const std::uint16_t*>(p.rows) + rows + g * p.token_stride;
    const auto load = [&](int token) {
#pragma unroll
      for (uint2& four : raw) four = make_uint2(0, 0);
      if (token >= at.skipped && token < at.count) {
#pragma unroll
        for (int i = 0; i < kOwn / 4; ++i) {
          raw[i] = __ldcs(reinterpret_cast<const uint2*>(next + 16 * i));
        }
      }
      next += kPassTokens * p.token_stride;
    };
    if constexpr (!kIsF32) load(g);
    copy_mean<kDim>(p, at, lane, own_mean);
    std::uint16_t own_scale = 0;
#pragma unroll 1
    for (int pass = 0; pass < kPasses; ++pass) {
      const int token = pass * kPassTokens + g;
      const bool is_there = token >= at.skipped && token < at.count;
      float x[kOwn];
      if constexpr (kIsF32) {
        const float* const from = static_cast<const float*>(p.rows) + rows + token * p.token_stride;
#pragma unroll
        for (int i = 0; i < kOwn; i += 4) {
          const float4 four =
              is_there ? *reinterpret_cast<const float4*>(from + 4 * i) : make_float4(0, 0, 0, 0);
          x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
        }
      } else {
#pragma unroll
        for (int i = 0; i < kOwn; i += 4) {
          const float2 low = unpack_pair<kDtype>(raw[i / 4].x);
          const float2 high = unpack_pair<kDtype>(raw[i / 4].y);
          x[i] = low.x, x[i + 1] = low.y, x[i + 2] = high.x, x[i + 3] = high.y;
        }
        if (pass + 1 < kPasses) load(token + kPassTokens);
      }
      if (p.mean != nullptr && is_there) {
        const float* const cos = p.n_pairs == 0 ? nullptr : angles + token * angle_row(kDim, kRun);
        for_mean<kDim, kRun>(own_mean, cos, cos + kTileTokens * angle_row(kDim, kRun), t,
                             [&](int i, float m) { x[i] = __fsub_rn(x[i], m); });
      }
      if (p.factors != nullptr) multiply_own<kDim, kRun>(x, p.factors + at.head * kDim, t);

      // Sums begin with their first product: adding it to 0 would change at most the sign of a
      // zero.
      float sums[4];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const float square = __fmul_rn(x[i], x[i]);
        sums[i % 4] = i < 4 ? square : __fadd_rn(sums[i % 4], square);
      }
      const float length = __fsqrt_rn(add_lanes(sums));
      // Below kTiny the scale is 0 whatever the codes are.
      constexpr float kTiny = 1e-12f;
      const bool is_usual = length >= kTiny && length < INFINITY;
      float divisor = length;
      if (__any_sync(~0u, !is_usual)) {
        bool is_finite = true;
#pragma unroll
        for (const float value : x) is_finite = is_finite && isfinite(value);
        const unsigned bad = __ballot_sync(~0u, !is_finite) >> (lane & 28) & 15u;
        if (!(length < INFINITY) && t == 0) refuse(p, at, token, bad == 0);
        // There are bins for |y| up to 1 only.
        if (!is_usual) {
          divisor = 1;
#pragma unroll
          for (float& value : x) value = 0;
        }
      }
      signed_hadamard<kDim, kRun>(x, first_signs, mixing, t);
      for (int round = 1; round < p.part0.rounds; ++round) {
        float more_signs[kOwn];
        load_own<kDim, kRun>(more_signs, signs + round * kDim, t);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) x[i] = __fmul_rn(__fmul_rn(x[i], factor), more_signs[i]);
        hadamard<kDim, kRun>(x, mixing, t);
      }

      const float inverse = __fdiv_rn(1.0f, divisor);
      std::uint32_t codes[kOwn / 4];
      const auto centroid = [&](std::uint32_t code) {
        return *reinterpret_cast<const float*>(own_table + code * 128);
      };
#pragma unroll
      for (int i = 0; i < kOwn; i += 4) {
        codes[i / 4] = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float y = __fmul_rn(__fmul_rn(x[i + j], factor), inverse);
          const std::uint32_t code = code_of(y);
          codes[i / 4] += code << (8 * j);
          const float product = __fmul_rn(y, centroid(code));
          sums[j] = i == 0 ? product : __fadd_rn(sums[j], product);
        }
      }
      float value = length;
      if (p.part0.scale == ScaleRule::kUnbiased) {
        value = __fdiv_rn(length, add_lanes(sums));
      } else if (p.part0.scale == ScaleRule::kNorm) {
#pragma unroll
        for (float& sum : sums) sum = 0;
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          const float c = centroid(codes[i / 4] >> (8 * (i % 4)) & 255u);
          sums[i % 4] = __fadd_rn(sums[i % 4], __fmul_rn(c, c));
        }
        value = __fdiv_rn(length, __fsqrt_rn(add_lanes(sums)));
      }
      std::uint16_t scale = 0;
      if (is_usual) {
        scale = __half_as_ushort(__float2half_rn(value));
        // Written so that NaN fails.
        if (!(value >= 0.0f && scale < kF16Infinity) && t == 0) refuse(p, at, token, true);
      }
      if (__any_sync(~0u, scale == 0)) {
#pragma unroll
        for (std::uint32_t& word : codes) word = scale == 0 ? 0 : word;
      }
      words.store_own(token, t, codes);
      if (pass == t) own_scale = scale;
    }
    __syncwarp();
    // Thread (g, t) has the scale of token 8t + g.
    scales_of(p, at, 0)[kPassTokens * t + g] = own_scale;
    pack_tile(TileLines(p.part0, p.is_values, tile), words, codes_of(p, at), lane, 32);
    __syncwarp();
  }
}

template <int kDim, bool kEncodes>
Result<void> launch(void (*kernel)(CodecArgs), const CodecArgs& p, int multiprocessors,
                    cudaStream_t stream) {
  const int bytes = shared_plan<kDim, kEncodes>(p).total;
  TQC_TRY(check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                "cudaFuncSetAttribute"));
  int blocks = 0;
  TQC_TRY(check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kThreads,
                                                              static_cast<std::size_t>(bytes)),
                "cudaOccupancyMaxActiveBlocksPerMultiprocessor"));
  const int items = p.n_blocks * p.n_kv_heads;
  const int most = (items + kWarps - 1) / kWarps;
  const int wanted = blocks * multiprocessors / kPageTiles;
  const int columns = wanted < 1 ? 1 : wanted < most ? wanted : most;
  kernel<<<static_cast<unsigned>(columns * kPageTiles), kThreads, static_cast<std::size_t>(bytes),
           stream>>>(p);
  return check_launch("codec");
}

template <int kDim>
Result<void> launch_fast_encode(const CodecArgs& p, int multiprocessors, cudaStream_t stream) {
  const auto kernel = p.dtype == Dtype::kF32   ? encode_fast<kDim, Dtype::kF32>
                      : p.dtype == Dtype::kF16 ? encode_fast<kDim, Dtype::kF16>
                                               : encode_fast<kDim, Dtype::kBF16>;
  return launch<kDim, true>(kernel, p, multiprocessors, stream);
}

template <int kDim>
Result<void> launch_fast_decode(const CodecArgs& p, int multiprocessors, cudaStream_t stream) {
  const auto kernel = p.dtype == Dtype::kF32   ? decode_fast<kDim, Dtype::kF32>
                      : p.dtype == Dtype::kF16 ? decode_fast<kDim, Dtype::kF16>
                                               : decode_fast<kDim, Dtype::kBF16>;
  return launch<kDim, false>(kernel, p, multiprocessors, stream);
}

template <int... kDims>
constexpr std::array<FastCodec, sizeof...(kDims)> fast_codecs() {
  return {FastCodec{kDims, launch_fast_encode<kDims>, launch_fast_decode<kDims>}...};
}

}  // namespace tqcache::cuda
