#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "tqcache/cuda/check.cuh"
#include "tqcache/cuda/codec_tables.h"
#include "tqcache/cuda/cuda_attention.h"
#include "tqcache/cuda/packed_tile.cuh"
#include "tqcache/cuda/sinusoids.h"

namespace tqcache::cuda {
namespace {

constexpr int kTile = 32;  // tokens of a tile
constexpr int kBlockTiles = kPageTokens / kTile;
constexpr int kColumns = 8;          // query heads that are multiplied at once
constexpr int kMaxSequences = 1024;  // of one call
constexpr int kDenseChunk = 64;      // tokens of a split of the dense tail
constexpr float kNoMaximum = -1e30f;
constexpr int kDenseBits = 16;  // stands for pages of dense f16
constexpr std::size_t kMostShared = 227 * 1024;

struct SideArgs {
  const std::uint8_t* data = nullptr;
  long long page_bytes = 0;
  const int* table = nullptr;
  const float* centroids = nullptr;
  const float* signs = nullptr;  // [rounds, head_dim]
  int rounds = 0;                // 0: not rotated
  int code_bytes = 0;            // of a kv head in a page
  int scales_at = 0;             // byte of the first scale in a page
  int row_bytes = 0;             // of the scales of a kv head
  const float* mean = nullptr;   // [n_kv_heads, head_dim]; null: none, or it turns
};

// The sinusoids that give scores a mean back that turns with RoPE.
struct SinusoidArgs {
  int n_steps = 0;  // of kStepRows rows; 0: no mean turns
  int n_pairs = 0;
  int n_fast = 0;
  const double* turns = nullptr;
  const float* joins = nullptr;
  const uint4* rows = nullptr;
  const float* mean = nullptr;  // [n_kv_heads, head_dim]
  uint2* factors = nullptr;     // [n_sequences, max_blocks, heads, n_steps, 32]: right factors, f16
};

struct AttendArgs {
  int n_sequences = 0;
  int n_query_heads = 0;
  int n_kv_heads = 0;
  int group = 0;  // query heads of a kv head
  int head_dim = 0;
  int n_columns = 0;  // column groups of a kv head: ceil(group / 8)
  int max_blocks = 0;
  float scale = 0;  // times log2(e)
  Dtype dtype = Dtype::kF16;
  const void* queries = nullptr;
  void* output = nullptr;
  const int* n_packed = nullptr;
  int n_sinks = 0;
  Dtype sink_dtype = Dtype::kF16;
  SideArgs k, v;
  SinusoidArgs sinusoids;
  DenseTail tail;
  int n_tail_chunks = 0;
  int n_dense_chunks = 0;  // of the tail and of the sinks, for each sequence and column group
  float* splits = nullptr;
  float* dense_splits = nullptr;
  int n_ctas = 0;
  bool can_overlap = false;
};

// A split's result: [8, head_dim] sums, [8] maxima, [8] sums of weights.
__host__ __device__ constexpr int split_floats(int head_dim) { return kColumns * head_dim + 16; }

__device__ __forceinline__ float load_value(const void* data, Dtype dtype, long long i) {
  if (dtype == Dtype::kF32) return static_cast<const float*>(data)[i];
  if (dtype == Dtype::kF16) return __half2float(static_cast<const __half*>(data)[i]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
}
__device__ __forceinline__ void store_value(void* data, Dtype dtype, long long i, float value) {
  if (dtype == Dtype::kF32) {
    static_cast<float*>(data)[i] = value;
  } else if (dtype == Dtype::kF16) {
    static_cast<__half*>(data)[i] = __float2half_rn(value);
  } else {
    static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value);
  }
}

// The kernels of a call overlap: each starts when all blocks of the one before have called
// allow_next_kernel(), and wait_for_previous_kernel() returns when that one is done.
__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

__device__ __forceinline__ int tiles_of(const AttendArgs& p, int sequence) {
  return (p.n_packed[sequence] + kTile - 1) / kTile;
}

// All tiles stand in one row, kv head after kv head, sequence after sequence. Every multiprocessor
// takes as many from it.
__device__ __forceinline__ int tiles_of_cta(const AttendArgs& p, int n_tiles) {
  return max(1, (n_tiles + p.n_ctas - 1) / p.n_ctas);
}

// prefix[s] = tiles of one head in the sequences before s, for s = 0 .. n_sequences. By one warp.
__device__ __forceinline__ void sum_tiles(const AttendArgs& p, int lane, int* prefix) {
  int total = 0;
  for (int first = 0; first < p.n_sequences; first += 32) {
    const int s = first + lane;
    int sum = s < p.n_sequences ? tiles_of(p, s) : 0;
    const int own = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    if (s < p.n_sequences) prefix[s] = total + sum - own;
    total += __shfl_sync(~0u, sum, 31);
  }
  if (lane == 0) prefix[p.n_sequences] = total;
}

// One warp's values of a vector: value i is lane i / (kDim / 32)'s. In place, unscaled.
template <int kDim>
__device__ __forceinline__ void hadamard(float (&x)[kDim / 32], int lane) {
  constexpr int kOwn = kDim / 32;
#pragma unroll
  for (int h = 1; h < kOwn; h *= 2) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if ((i & h) != 0) continue;
      const float a = x[i], b = x[i + h];
      x[i] = a + b;
      x[i + h] = a - b;
    }
  }
#pragma unroll
  for (int h = 1; h < 32; h *= 2) {
    const float sign = (lane & h) != 0 ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float other = __shfl_xor_sync(~0u, x[i], h);
      x[i] = fmaf(x[i], sign, other);
    }
  }
}

template <int kDim, int kKeyBits, int kValueBits>
struct Shape {
  static constexpr bool kDenseKeys = kKeyBits == kDenseBits;
  static constexpr int kUnits = kDim / 32;
  static constexpr int kKeyTile = kDenseKeys ? kTile * kDim * 2 : 2 * kUnits * slot_bytes(kKeyBits);
  static constexpr int kValueTile = 2 * kUnits * slot_bytes(kValueBits);
  static constexpr int kScales = kTile * 2;
  // Tiles of a warp in shared memory. Three where enough warps fit all the same; then their sums
  // are merged with half of the memory.
  static constexpr int kStages = kDim <= 128 && kKeyTile + kValueTile <= 4096 ? 3 : 2;
  static constexpr int kMergeColumns = kStages == 3 ? 2 : 4;
  static constexpr int kStage = kKeyTile + kValueTile + 2 * kScales;
  static constexpr int kKeyEntries = kDenseKeys ? 0 : table_entries(kKeyBits);
  static constexpr int kValueEntries = table_entries(kValueBits);
  static constexpr int kTable =
      (kKeyEntries > kValueEntries ? kKeyEntries : kValueEntries) * kTableRow;
  static constexpr int kQueries = kColumns * kDim * 2;
  static constexpr int kNumbers = 2 * kColumns * 4;  // query factors and constants
  static constexpr int kPrefix = (kMaxSequences + 4) * 4;
  static constexpr int kFixed = (kTable + kQueries + kNumbers + kPrefix + 127) / 128 * 128;
  // Sums that warps pass on at the end of a piece: some columns of half of the warps.
  static constexpr int merge_bytes(int warps) { return (warps + 1) / 2 * kMergeColumns * kDim * 4; }
  static constexpr int shared_bytes(int warps) {
    return kFixed + warps * (kStages * kStage + 2 * kColumns * 4) + merge_bytes(warps);
  }
  static constexpr bool fit(int warps) {
    return shared_bytes(warps) <= static_cast<int>(kMostShared);
  }
  static constexpr int kWarps = kDim <= 128 && fit(16)   ? 16
                                : kDim <= 128 && fit(12) ? 12
                                : fit(8)                 ? 8
                                : fit(6)                 ? 6
                                : fit(4)                 ? 4
                                                         : 3;
  static constexpr int kMaxima = 2 * kWarps * kColumns * 4;
  static constexpr int kMerge = merge_bytes(kWarps);
  static constexpr int kShared = shared_bytes(kWarps);
};

// One warp's stream of tiles of one segment (a kv head of a sequence), from global to shared
// memory.
template <int kDim, int kKeyBits, int kValueBits>
class TileStream {
  using S = Shape<kDim, kKeyBits, kValueBits>;

 public:
  __device__ TileStream(const AttendArgs& p, std::uint8_t* ring, int lane)
      : p_(p), ring_(ring), lane_(lane) {}

  // Begins with tiles first, first + kWarps, ... below last. Requires: nothing of the ring is
  // needed.
  __device__ __forceinline__ void start(int sequence, int head, int first, int last) {
    sequence_ = sequence;
    head_ = head;
    first_ = first;
    n_ = first < last ? (last - first + S::kWarps - 1) / S::kWarps : 0;
#pragma unroll 1
    for (int i = 0; i < S::kStages; ++i) {
      copy_keys(i);
      copy_values(i);
    }
  }

  __device__ __forceinline__ int size() const { return n_; }
  __device__ __forceinline__ int tile(int i) const { return first_ + i * S::kWarps; }
  __device__ __forceinline__ const std::uint8_t* keys(int i) const {
    return ring_ + (i % S::kStages) * S::kStage;
  }
  __device__ __forceinline__ const std::uint8_t* values(int i) const {
    return keys(i) + S::kKeyTile;
  }
  __device__ __forceinline__ const __half* key_scales(int i) const {
    return reinterpret_cast<const __half*>(values(i) + S::kValueTile);
  }
  __device__ __forceinline__ const __half* value_scales(int i) const {
    return key_scales(i) + kTile;
  }

  // Begins to copy the keys of tile i. Called for i = 0, 1, 2, ...; values(i) follows each.
  __device__ __forceinline__ void copy_keys(int i) {
    if (i < n_) {
      if (i % 32 == 0) look_ahead(i);
      const std::uint8_t* const page = page_of(p_.k, key_pages_, i);
      std::uint8_t* const to = ring_ + (i % S::kStages) * S::kStage;
      const int place = tile(i) % kBlockTiles;
      if constexpr (S::kDenseKeys) {
        const std::uint8_t* const from =
            page + (static_cast<long long>(head_) * kPageTokens + place * kTile) * kDim * 2;
        constexpr int kRowChunks = kDim / 8;
#pragma unroll
        for (int c = lane_; c < kTile * kRowChunks; c += 32) {
          const int row = c / kRowChunks, chunk = c % kRowChunks;
          copy_async(to + row * kDim * 2 + (chunk ^ ((row >> 2 & 1) << 2)) * 16, from + c * 16);
        }
      } else {
        constexpr int kSlotChunks = kKeyBits * 4;
        constexpr int kChunks = 2 * S::kUnits * kSlotChunks;
        const std::uint8_t* const from =
            page + static_cast<long long>(head_) * p_.k.code_bytes + place * kChunks * 16;
#pragma unroll
        for (int c = lane_; c < kChunks; c += 32) {
          copy_async(to + swizzled(c / kSlotChunks * slot_bytes(kKeyBits) + c % kSlotChunks * 16),
                     from + c * 16);
        }
        copy_scales(p_.k, page, place, to + S::kKeyTile + S::kValueTile);
      }
    }
    commit_copies();
  }

  __device__ __forceinline__ void copy_values(int i) {
    if (i < n_) {
      const std::uint8_t* const page = page_of(p_.v, value_pages_, i);
      std::uint8_t* const to = ring_ + (i % S::kStages) * S::kStage + S::kKeyTile;
      const int place = tile(i) % kBlockTiles;
      constexpr int kSlotChunks = kValueBits * 4;
      constexpr int kChunks = 2 * S::kUnits * kSlotChunks;
      const std::uint8_t* const from =
          page + static_cast<long long>(head_) * p_.v.code_bytes + place * kSlotChunks * 16;
#pragma unroll
      for (int c = lane_; c < kChunks; c += 32) {
        const int group = c / kSlotChunks, chunk = c % kSlotChunks;
        copy_async(to + swizzled(group * slot_bytes(kValueBits) + chunk * 16),
                   from + (group * kBlockTiles * kSlotChunks + chunk) * 16);
      }
      copy_scales(p_.v, page, place, to + S::kValueTile + S::kScales);
    }
    commit_copies();
  }

 private:
  // The pages of tiles i .. i + 31, one a lane.
  __device__ __forceinline__ void look_ahead(int i) {
    const int at = i + lane_ < n_ ? i + lane_ : n_ - 1;
    const long long place =
        static_cast<long long>(sequence_) * p_.max_blocks + tile(at) / kBlockTiles;
    key_pages_ = p_.k.table == nullptr ? static_cast<int>(place) : p_.k.table[place];
    value_pages_ = p_.v.table == nullptr ? static_cast<int>(place) : p_.v.table[place];
  }
  __device__ __forceinline__ const std::uint8_t* page_of(const SideArgs& side, int pages, int i) {
    return side.data + __shfl_sync(~0u, pages, i % 32) * side.page_bytes;
  }
  __device__ __forceinline__ void copy_scales(const SideArgs& side, const std::uint8_t* page,
                                              int place, std::uint8_t* to) {
    if (lane_ >= S::kScales / 16) return;
    copy_async(to + lane_ * 16,
               page + side.scales_at + head_ * side.row_bytes + place * S::kScales + lane_ * 16);
  }

  const AttendArgs& p_;
  int sequence_ = 0, head_ = 0, first_ = 0, n_ = 0;
  std::uint8_t* ring_;
  int lane_;
  int key_pages_ = 0, value_pages_ = 0;
};

// The running softmax of a warp and the sums of values that belong to it. Columns are query heads:
// thread (g, t) has those of columns 2t and 2t + 1.
template <int kDim>
struct RunningSums {
  float maximum[2] = {kNoMaximum, kNoMaximum};
  float weight[2] = {0, 0};  // of this thread's rows
  float sums[kDim / 32][2][4] = {};
};

// Scores of a tile: rows (tokens) 4g + 2m and 4g + 2m + 1 are s[m][0..1] and s[m][2..3].
template <int kDim, int kKeyBits>
__device__ __forceinline__ void score_tile(const std::uint8_t* tile, const std::uint8_t* table,
                                           const uint4 (&queries)[kDim / 32], int g, int t,
                                           std::uint32_t lane4, float (&s)[2][4]) {
#pragma unroll
  for (int u = 0; u < kDim / 32; ++u) {
    if constexpr (kKeyBits == kDenseBits) {
      uint4 rows[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        rows[i] = *reinterpret_cast<const uint4*>(tile + (4 * g + i) * kDim * 2 +
                                                  ((u * 4 + t) ^ ((g & 1) << 2)) * 16);
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint4 a = rows[2 * m], b = rows[2 * m + 1];
        const std::uint32_t first[4] = {
            __byte_perm(a.x, a.z, 0x5410), __byte_perm(b.x, b.z, 0x5410),
            __byte_perm(a.x, a.z, 0x7632), __byte_perm(b.x, b.z, 0x7632)};
        const std::uint32_t second[4] = {
            __byte_perm(a.y, a.w, 0x5410), __byte_perm(b.y, b.w, 0x5410),
            __byte_perm(a.y, a.w, 0x7632), __byte_perm(b.y, b.w, 0x7632)};
        multiply_add(s[m], first, queries[u].x, queries[u].y);
        multiply_add(s[m], second, queries[u].z, queries[u].w);
      }
    } else {
      const Pairs pairs = load_pairs<kKeyBits>(tile, (g >> 2) * (kDim / 32) + u, t, g & 3);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const std::uint32_t a[4] = {
              centroid_pair<kKeyBits>(table, pairs, 2 * m, 2 * k, lane4),
              centroid_pair<kKeyBits>(table, pairs, 2 * m + 1, 2 * k, lane4),
              centroid_pair<kKeyBits>(table, pairs, 2 * m, 2 * k + 1, lane4),
              centroid_pair<kKeyBits>(table, pairs, 2 * m + 1, 2 * k + 1, lane4)};
          multiply_add(s[m], a, k == 0 ? queries[u].x : queries[u].z,
                       k == 0 ? queries[u].y : queries[u].w);
        }
      }
    }
  }
}

// sums += values of a tile, rows 32 G + 4g + 2m and the next in sums[G][m]. b: weights of the
// tokens as the right factor.
template <int kDim, int kValueBits>
__device__ __forceinline__ void add_values(const std::uint8_t* tile, const std::uint8_t* table,
                                           const std::uint32_t (&b)[2][2], int g, int t,
                                           std::uint32_t lane4, float (&sums)[kDim / 32][2][4]) {
#pragma unroll
  for (int u = 0; u < kDim / 32; ++u) {
    const Pairs pairs = load_pairs<kValueBits>(tile, 2 * u + (g >> 2), t, g & 3);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const std::uint32_t a[4] = {
            centroid_pair<kValueBits>(table, pairs, 2 * m, 2 * k, lane4),
            centroid_pair<kValueBits>(table, pairs, 2 * m + 1, 2 * k, lane4),
            centroid_pair<kValueBits>(table, pairs, 2 * m, 2 * k + 1, lane4),
            centroid_pair<kValueBits>(table, pairs, 2 * m + 1, 2 * k + 1, lane4)};
        multiply_add(sums[u][m], a, b[k][0], b[k][1]);
      }
    }
  }
}

// Scores to weights, which are added to the running sums; the sums are rescaled when there is a new
// maximum.
template <int kDim>
__device__ __forceinline__ void to_weights(float (&s)[2][4], RunningSums<kDim>& run) {
  const float most[2] = {fmaxf(fmaxf(s[0][0], s[0][2]), fmaxf(s[1][0], s[1][2])),
                         fmaxf(fmaxf(s[0][1], s[0][3]), fmaxf(s[1][1], s[1][3]))};
  if (__any_sync(~0u, most[0] > run.maximum[0] || most[1] > run.maximum[1])) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float maximum = fmaxf(most[c], run.maximum[c]);
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, step));
      }
      const float factor = exp2_fast(run.maximum[c] - maximum);
      run.maximum[c] = maximum;
      run.weight[c] *= factor;
#pragma unroll
      for (int u = 0; u < kDim / 32; ++u) {
#pragma unroll
        for (int m = 0; m < 2; ++m) run.sums[u][m][c] *= factor, run.sums[u][m][2 + c] *= factor;
      }
    }
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[m][i] = exp2_fast(s[m][i] - run.maximum[i % 2]);
      run.weight[i % 2] += s[m][i];
    }
  }
}

// f16 numbers 4g .. 4g + 3.
__device__ __forceinline__ void load_scales(const __half* scales, int g, float (&out)[4]) {
  const uint2 bits = reinterpret_cast<const uint2*>(scales)[g];
  const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&bits.x));
  const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&bits.y));
  out[0] = low.x, out[1] = low.y, out[2] = high.x, out[3] = high.y;
}

constexpr int kFactorHeads = 8;   // query heads of a block of make_factors
constexpr int kFactorBlocks = 4;  // token blocks of it
constexpr int kFactorThreads = kFactorHeads * kStepRows;

// Factors of the sinusoids of four blocks of a sequence for eight query heads. Pairs of a query and
// the mean give amplitudes, turned to the middle of each block; those of slow pairs are joined to
// factors of polynomials (codec.md §8).
__global__ void __launch_bounds__(kFactorThreads)
    make_factors(const __grid_constant__ AttendArgs p) {
  __shared__ float2 phasors[kFactorBlocks][kMostPairs];
  // Of each pair; later of the fast pairs, and factors of two polynomials each.
  __shared__ float2 amplitudes[kFactorBlocks][kFactorHeads][kMostPairs + 9];
  __shared__ __align__(16) float joins[kMostPairs * kJoinRow];
  allow_next_kernel();
  const SinusoidArgs& w = p.sinusoids;
  const int first_block = static_cast<int>(blockIdx.x) * kFactorBlocks;
  const int sequence = static_cast<int>(blockIdx.z);
  const int n_blocks =
      min(kFactorBlocks, (p.n_packed[sequence] + kPageTokens - 1) / kPageTokens - first_block);
  if (n_blocks <= 0) return;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int first = static_cast<int>(blockIdx.y) * kFactorHeads;
  const int n = min(kFactorHeads, p.n_query_heads - first);
  const int head_dim = p.head_dim;
  const long long queries = (static_cast<long long>(sequence) * p.n_query_heads + first) * head_dim;
  const int n_slow = w.n_pairs - w.n_fast;
#pragma unroll 4
  for (int i = thread; i < n_slow * kJoinRow / 4; i += kFactorThreads) {
    reinterpret_cast<float4*>(joins)[i] = __ldg(reinterpret_cast<const float4*>(w.joins) + i);
  }
  static_assert(kFactorThreads / 32 == kFactorBlocks);
  for (int pair = lane; pair < w.n_pairs; pair += 32) {
    const double middle = (first_block + warp) * static_cast<double>(kPageTokens) + 127.5;
    const double turns = w.turns[pair] * middle;
    float2 at;
    sincospif(2 * static_cast<float>(turns - rint(turns)), &at.y, &at.x);
    phasors[warp][pair] = at;
  }
  __syncthreads();
  for (int head = warp; head < n; head += kFactorThreads / 32) {
    const float* const mean = w.mean + (first + head) / p.group * head_dim;
    for (int pair = lane; pair < w.n_pairs; pair += 32) {
      const long long query = queries + head * head_dim + pair;
      const float q0 = load_value(p.queries, p.dtype, query) * p.scale;
      const float q1 = load_value(p.queries, p.dtype, query + w.n_pairs) * p.scale;
      const float m0 = __ldg(mean + pair), m1 = __ldg(mean + pair + w.n_pairs);
      const float a = q0 * m0 + q1 * m1, b = q1 * m0 - q0 * m1;
#pragma unroll
      for (int block = 0; block < kFactorBlocks; ++block) {
        const float2 at = phasors[block][pair];
        amplitudes[block][head][pair] = make_float2(a * at.x + b * at.y, b * at.x - a * at.y);
      }
    }
  }
  __syncthreads();
  const int head = thread / kStepRows, degree = thread % kStepRows;
  float sums[kFactorBlocks] = {};
  if (head < n) {
    float constant = 0;
    if (degree == 0) {  // what does not turn
      for (int i = 2 * w.n_pairs; i < head_dim; ++i) {
        constant += load_value(p.queries, p.dtype, queries + head * head_dim + i) * p.scale *
                    __ldg(w.mean + (first + head) / p.group * head_dim + i);
      }
    }
#pragma unroll
    for (float& sum : sums) sum = constant;
      // Even polynomials take the cosines' amplitudes, odd ones the sines'.
#pragma unroll 4
    for (int i = 0; i < n_slow; ++i) {
      const float join = joins[i * kJoinRow + degree];
#pragma unroll
      for (int block = 0; block < kFactorBlocks; ++block) {
        const float* const pair = &amplitudes[block][head][w.n_fast + i].x;
        sums[block] = fmaf(pair[degree % 2], join, sums[block]);
      }
    }
  }
  __syncthreads();
  if (head >= n) return;
#pragma unroll
  for (int block = 0; block < kFactorBlocks; ++block) {
    (&amplitudes[block][head][w.n_fast].x)[degree] = sums[block];  // 0 for degrees 14 and 15
  }
  __syncwarp();
  const int query_head = first + head, of_group = query_head % p.group;
  const int column_head = query_head / p.group * p.n_columns + of_group / kColumns;
  const int n_heads = p.n_kv_heads * p.n_columns;
  // Rows 2i and 2i + 1 as two f16; a factor beyond f16 becomes the largest.
  const auto pair_at = [&](int block, int i) {
    if (i >= w.n_fast + kStepRows / 2) return 0u;
    const float2 at = amplitudes[block][head][i];
    return packed_pair(fminf(fmaxf(at.x, -65504.0f), 65504.0f),
                       fminf(fmaxf(at.y, -65504.0f), 65504.0f));
  };
  for (int block = 0; block < n_blocks; ++block) {
    uint2* const factors =
        w.factors +
        ((static_cast<long long>(sequence) * p.max_blocks + first_block + block) * n_heads +
         column_head) *
            w.n_steps * 32 +
        of_group % kColumns * 4;
    for (int i = thread % kStepRows; i < w.n_steps * 4; i += kStepRows) {
      const int pair = i / 4 * (kStepRows / 2) + i % 4;
      factors[i / 4 * 32 + i % 4] = make_uint2(pair_at(block, pair), pair_at(block, pair + 4));
    }
  }
}

constexpr int kEarlySteps = 4;  // whose factors are loaded before they are needed

__device__ __forceinline__ const uint2* factors_of(const AttendArgs& p, int sequence,
                                                   int column_head, int tile) {
  const long long block = static_cast<long long>(sequence) * p.max_blocks + tile / kBlockTiles;
  return p.sinusoids.factors +
         (block * p.n_kv_heads * p.n_columns + column_head) * p.sinusoids.n_steps * 32;
}

// waves += step `step` of the sinusoids of a tile. For a tile of the lower half of a block these
// are the sinusoids of the upper half's tokens in the opposite order, with odd rows negated.
__device__ __forceinline__ void add_step(const uint4* rows, int step, uint2 factor,
                                         std::uint32_t flip, float (&waves)[2][4]) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const uint4 chunk = __ldg(rows + step * 64 + m * 32);
    const std::uint32_t a[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
    multiply_add(waves[m], a, factor.x ^ flip, factor.y ^ flip);
  }
}

// s += the sinusoids of a tile. early: the factors of the first steps.
__device__ __forceinline__ void add_sinusoids(const AttendArgs& p, int tile, const uint2* factors,
                                              const uint2 (&early)[kEarlySteps], bool is_there,
                                              int lane, float (&s)[2][4]) {
  const int n_steps = p.sinusoids.n_steps, in_block = tile % kBlockTiles;
  const bool is_lower = in_block < kBlockTiles / 2;
  const int upper = is_lower ? kBlockTiles / 2 - 1 - in_block : in_block - kBlockTiles / 2;
  const uint4* const rows = p.sinusoids.rows + upper * n_steps * 64 + (is_lower ? lane ^ 28 : lane);
  const std::uint32_t flip = is_lower ? 0x80000000u : 0u;
  float waves[2][4] = {};
#pragma unroll
  for (int step = 0; step < kEarlySteps; ++step) {
    if (step < n_steps) add_step(rows, step, early[step], flip, waves);
  }
  for (int step = kEarlySteps; step < n_steps; ++step) {
    add_step(rows, step, is_there ? __ldcg(factors + step * 32) : make_uint2(0, 0), flip, waves);
  }
  // Token 4g + 2m + i is the opposite of token 4 (7 - g) + 2 (1 - m) + 1 - i.
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int c = 0; c < 4; ++c) s[m][c] += is_lower ? waves[1 - m][c ^ 2] : waves[m][c];
  }
}

// What every multiprocessor reads soon, one line of memory a thread.
__device__ __forceinline__ void prefetch_small(const AttendArgs& p, int head_dim, int thread) {
  const auto fetch = [](const void* line) {
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(line));
  };
  const int size = p.dtype == Dtype::kF32 ? 4 : 2;
  const int n_lines = p.n_sequences * p.n_query_heads * head_dim * size / 128;
  if (thread < n_lines) fetch(static_cast<const char*>(p.queries) + thread * 128);
  const int last = head_dim * 4 / 128;
  if (thread < last && p.k.signs != nullptr) fetch(p.k.signs + thread * 32);
  if (thread >= 32 && thread < 32 + last) fetch(p.v.signs + (thread - 32) * 32);
  if (thread == 64) fetch(p.v.centroids);
  if (thread == 96 && p.k.centroids != nullptr) fetch(p.k.centroids);
}

// The queries of a column group, rotated, as f16 in the order of matrix fragments; in `factors`
// what they were divided by, and in `constants` their product with the keys' mean.
template <int kDim, bool kIsDense>
__device__ __forceinline__ void prepare_queries(const AttendArgs& p, int sequence, int head,
                                                int column_group, int warp, int n_warps, int lane,
                                                __half* queries, float* factors, float* constants) {
  constexpr int kOwn = kDim / 32;
  for (int column = warp; column < kColumns; column += n_warps) {
    const int of_group = column_group * kColumns + column;
    const bool is_there = of_group < p.group;
    float x[kOwn];
    float constant = 0;
    const long long row =
        (static_cast<long long>(sequence) * p.n_query_heads + head * p.group + of_group) * kDim;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      x[i] = is_there ? load_value(p.queries, p.dtype, row + lane * kOwn + i) * p.scale : 0.0f;
      if (p.k.mean != nullptr) constant += x[i] * __ldg(p.k.mean + head * kDim + lane * kOwn + i);
    }
    if constexpr (!kIsDense) {
      for (int round = 0; round < p.k.rounds; ++round) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) x[i] *= __ldg(p.k.signs + round * kDim + lane * kOwn + i);
        hadamard<kDim>(x, lane);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) x[i] *= rsqrtf(static_cast<float>(kDim));
      }
    }
    float most = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) most = fmaxf(most, fabsf(x[i]));
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
      constant += __shfl_xor_sync(~0u, constant, step);
    }
    const float inverse = most > 0 ? 1.0f / most : 0.0f;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      // Component 32u + 8t + 4h + j is half 2j + h of chunk (u, t).
      const int component = lane * kOwn + i;
      const int place = component / 8 * 8 + component % 4 * 2 + component / 4 % 2;
      queries[column * kDim + place] = __float2half_rn(x[i] * inverse);
    }
    if (lane == 0) factors[column] = most, constants[column] = constant;
  }
}

// The warps' sums become one split. The upper half of the warps passes its sums to the lower half,
// some columns at a time, and all threads add those. `shared` has rows for half of the warps.
template <int kDim, int kWarps, int kMergeColumns>
__device__ __forceinline__ void merge_warps(const RunningSums<kDim>& run, const float* maxima,
                                            const float* weights, float* shared, float* split,
                                            int columns, int thread) {
  constexpr int kHalf = (kWarps + 1) / 2;
  const int warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
  float own[2];  // what brings this warp's sums to the maximum of all
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    float maximum = kNoMaximum;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) maximum = fmaxf(maximum, maxima[w * kColumns + 2 * t + c]);
    own[c] = exp2_fast(run.maximum[c] - maximum);
  }
  if (thread < columns) {
    float maximum = kNoMaximum, weight = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) maximum = fmaxf(maximum, maxima[w * kColumns + thread]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      weight += weights[w * kColumns + thread] * exp2_fast(maxima[w * kColumns + thread] - maximum);
    }
    split[kColumns * kDim + thread] = maximum;
    split[kColumns * kDim + kColumns + thread] = weight;
  }
#pragma unroll 1
  for (int first = 0; first < columns; first += kMergeColumns) {
    constexpr int kThreads = kMergeColumns / 2;  // of the four threads that share a row
    const bool has_columns = t / kThreads == first / kMergeColumns;
    float* const slot = shared + (warp % kHalf * kMergeColumns + t % kThreads * 2) * kDim + 4 * g;
    // First the upper half.
#pragma unroll 1
    for (int turn = 1; turn >= 0; --turn) {
      if (has_columns && warp / kHalf == turn) {
        const bool adds = turn == 0 && warp + kHalf < kWarps;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
#pragma unroll
          for (int u = 0; u < kDim / 32; ++u) {
            auto* const place = reinterpret_cast<float4*>(slot + c * kDim + u * 32);
            const float4 other = adds ? *place : make_float4(0, 0, 0, 0);
            *place = make_float4(fmaf(run.sums[u][0][c], own[c], other.x),
                                 fmaf(run.sums[u][0][2 + c], own[c], other.y),
                                 fmaf(run.sums[u][1][c], own[c], other.z),
                                 fmaf(run.sums[u][1][2 + c], own[c], other.w));
          }
        }
      }
      __syncthreads();
    }
#pragma unroll 1
    for (int i = thread; i < min(kMergeColumns, columns - first) * kDim; i += kWarps * 32) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kHalf; ++w) sum += shared[w * kMergeColumns * kDim + i];
      split[first * kDim + i] = sum;
    }
    __syncthreads();
  }
}

// kTurns: the keys' mean turns with RoPE.
template <int kDim, int kKeyBits, int kValueBits, bool kTurns>
__global__ void __launch_bounds__(Shape<kDim, kKeyBits, kValueBits>::kWarps * 32, 1)
    attend_packed(const __grid_constant__ AttendArgs p) {
  using S = Shape<kDim, kKeyBits, kValueBits>;
  extern __shared__ __align__(1024) std::uint8_t shared[];
  std::uint8_t* const table = shared;
  auto* const queries = reinterpret_cast<__half*>(shared + S::kTable);
  auto* const factors = reinterpret_cast<float*>(shared + S::kTable + S::kQueries);
  float* const constants = factors + kColumns;
  auto* const prefix = reinterpret_cast<int*>(constants + kColumns);
  auto* const maxima = reinterpret_cast<float*>(shared + S::kFixed);
  float* const weights = maxima + S::kWarps * kColumns;
  auto* const merge = reinterpret_cast<float*>(shared + S::kFixed + S::kMaxima);
  std::uint8_t* const rings = shared + S::kFixed + S::kMaxima + S::kMerge;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const std::uint32_t lane4 = lane * 4;

  allow_next_kernel();
  prefetch_small(p, kDim, thread);
  if (warp == 0) sum_tiles(p, lane, prefix);
  if constexpr (!S::kDenseKeys) {
    fill_table<kKeyBits, S::kWarps * 32>(table, p.k.centroids, thread);
  }
  fill_table<kValueBits, S::kWarps * 32>(table + 128, p.v.centroids, thread);
  __syncthreads();

  const int n_heads = p.n_kv_heads * p.n_columns;
  const int n_tiles = prefix[p.n_sequences] * n_heads, per_cta = tiles_of_cta(p, n_tiles);
  const int cta = static_cast<int>(blockIdx.x);
  int at = cta * per_cta;  // below 2^31: see make_plan()
  const int end = min(n_tiles, at + per_cta);

  // A piece: this multiprocessor's tiles of one kv head of a sequence.
  int sequence = 0, column_head = 0;
  TileStream<kDim, kKeyBits, kValueBits> stream(p, rings + warp * S::kStages * S::kStage, lane);
  const auto begin_piece = [&] {
    while (prefix[sequence + 1] * n_heads <= at) ++sequence;
    const int tiles = prefix[sequence + 1] - prefix[sequence];
    const int in_sequence = at - prefix[sequence] * n_heads;
    column_head = in_sequence / tiles;
    const int begin = in_sequence - column_head * tiles;
    const int stop = min(tiles, begin + (end - at));
    at += stop - begin;
    stream.start(sequence, column_head / p.n_columns, begin + warp, stop);
    prepare_queries<kDim, S::kDenseKeys>(p, sequence, column_head / p.n_columns,
                                         column_head % p.n_columns, warp, S::kWarps, lane, queries,
                                         factors, constants);
  };
  // Each turn begins to copy a piece, joins the warps' sums of the one before, and adds up the
  // piece.
  RunningSums<kDim> run;
  float* split = nullptr;
  int columns = 0;  // of the piece before; 0: there is none
  while (true) {
    if (columns != 0) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
          run.weight[c] += __shfl_xor_sync(~0u, run.weight[c], step);
        }
        if (g == 0) {
          maxima[warp * kColumns + 2 * t + c] = run.maximum[c];
          weights[warp * kColumns + 2 * t + c] = run.weight[c];
        }
      }
    }
    const bool is_last = at >= end;
    if (!is_last) begin_piece();
    __syncthreads();
    if (columns != 0) {
      merge_warps<kDim, S::kWarps, S::kMergeColumns>(run, maxima, weights, merge, split, columns,
                                                     thread);
    }
    if (is_last) break;

    split = p.splits +
            static_cast<long long>(cta + sequence * n_heads + column_head) * split_floats(kDim);
    columns = min(kColumns, p.group - column_head % p.n_columns * kColumns);
    uint4 q[S::kUnits];
#pragma unroll
    for (int u = 0; u < S::kUnits; ++u) {
      q[u] = *reinterpret_cast<const uint4*>(queries + g * kDim + u * 32 + t * 8);
    }
    const float factor[2] = {factors[2 * t], factors[2 * t + 1]};
    const float constant[2] = {constants[2 * t], constants[2 * t + 1]};
    const int n_tokens = p.n_packed[sequence];
    if constexpr (kTurns) wait_for_previous_kernel();

    run = RunningSums<kDim>();
    for (int i = 0; i < stream.size(); ++i) {
      uint2 early[kTurns ? kEarlySteps : 1];
      if constexpr (kTurns) {
        const uint2* const factors = factors_of(p, sequence, column_head, stream.tile(i)) + lane;
#pragma unroll
        for (int step = 0; step < kEarlySteps; ++step) {
          early[step] = step < p.sinusoids.n_steps && g < columns ? __ldcg(factors + step * 32)
                                                                  : make_uint2(0, 0);
        }
      }
      wait_copies<2 * S::kStages - 1>();
      __syncwarp();
      float s[2][4] = {};
      score_tile<kDim, kKeyBits>(stream.keys(i), table, q, g, t, lane4, s);
      float scales[4] = {1, 1, 1, 1};
      if constexpr (!S::kDenseKeys) load_scales(stream.key_scales(i), g, scales);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          s[m][c] = fmaf(s[m][c] * scales[2 * m + c / 2], factor[c % 2], constant[c % 2]);
        }
      }
      if constexpr (kTurns) {
        add_sinusoids(p, stream.tile(i),
                      factors_of(p, sequence, column_head, stream.tile(i)) + lane, early,
                      g < columns, lane, s);
      }
      const int token = stream.tile(i) * kTile;
      if (token + kTile > n_tokens || token < p.n_sinks) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int own = token + 4 * g + 2 * m + c / 2;
            if (own >= n_tokens || own < p.n_sinks) s[m][c] = -INFINITY;
          }
        }
      }
      __syncwarp();
      stream.copy_keys(i + S::kStages);
      to_weights(s, run);
      wait_copies<2 * S::kStages - 1>();
      __syncwarp();
      load_scales(stream.value_scales(i), g, scales);
      std::uint32_t b[2][2];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float scale = scales[2 * m + h];
          b[m][h] = transposed(packed_pair(s[m][2 * h] * scale, s[m][2 * h + 1] * scale));
        }
      }
      add_values<kDim, kValueBits>(stream.values(i), table + 128, b, g, t, lane4, run.sums);
      __syncwarp();
      stream.copy_values(i + S::kStages);
    }
  }
  if constexpr (kTurns) wait_for_previous_kernel();  // also where there was no tile
}

// Dense tokens: 64 of the tail or of the sinks, one kv head and column group, in f32.
template <int kDim>
__global__ void __launch_bounds__(128) attend_dense(const __grid_constant__ AttendArgs p) {
  __shared__ float queries[kColumns][kDim];
  __shared__ float scores[kColumns][kDenseChunk];
  __shared__ float rows[2][kColumns];  // maxima, weights
  allow_next_kernel();
  const int chunk = static_cast<int>(blockIdx.x), column_head = static_cast<int>(blockIdx.y);
  const int sequence = static_cast<int>(blockIdx.z), thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  const int head = column_head / p.n_columns, column_group = column_head % p.n_columns;
  const int columns = min(kColumns, p.group - column_group * kColumns);
  const bool is_tail = chunk < p.n_tail_chunks;
  const int first = (is_tail ? chunk : chunk - p.n_tail_chunks) * kDenseChunk;
  const int n_all = is_tail ? p.tail.n_tokens[sequence] : min(p.n_sinks, p.n_packed[sequence]);
  const int n = min(kDenseChunk, n_all - first);
  const int n_heads = p.n_kv_heads * p.n_columns;
  float* const split =
      p.dense_splits +
      (static_cast<long long>(sequence * n_heads + column_head) * p.n_dense_chunks + chunk) *
          split_floats(kDim);
  if (n <= 0) {
    if (thread < columns) {
      split[kColumns * kDim + thread] = kNoMaximum;
      split[kColumns * kDim + kColumns + thread] = 0;
    }
    for (int i = thread; i < columns * kDim; i += blockDim.x) split[i] = 0;
    wait_for_previous_kernel();  // when this kernel is done, so is that one
    return;
  }
  const Dtype dtype = is_tail ? p.tail.dtype : p.sink_dtype;
  const void *keys = p.tail.keys, *values = p.tail.values;
  long long row =
      ((static_cast<long long>(sequence) * p.n_kv_heads + head) * p.tail.capacity + first) * kDim;
  if (!is_tail) {
    const auto sinks = [&](const SideArgs& side) {
      const long long page = side.table == nullptr
                                 ? static_cast<long long>(sequence) * p.max_blocks
                                 : side.table[static_cast<long long>(sequence) * p.max_blocks];
      return side.data + page * side.page_bytes + side.scales_at + p.n_kv_heads * side.row_bytes;
    };
    keys = sinks(p.k);
    values = sinks(p.v);
    row = (static_cast<long long>(head) * p.n_sinks + first) * kDim;
  }
  for (int i = thread; i < columns * kDim; i += blockDim.x) {
    const long long query = static_cast<long long>(sequence) * p.n_query_heads + head * p.group +
                            column_group * kColumns + i / kDim;
    queries[i / kDim][i % kDim] = load_value(p.queries, p.dtype, query * kDim + i % kDim) * p.scale;
  }
  __syncthreads();
  for (int token = warp; token < n; token += 4) {
    float x[kDim / 32];
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) {
      x[i] = load_value(keys, dtype, row + static_cast<long long>(token) * kDim + lane + 32 * i);
    }
    for (int c = 0; c < columns; ++c) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) sum += x[i] * queries[c][lane + 32 * i];
#pragma unroll
      for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (lane == 0) scores[c][token] = sum;
    }
  }
  __syncthreads();
  for (int c = warp; c < columns; c += 4) {
    float most = kNoMaximum, weight = 0;
    for (int i = lane; i < n; i += 32) most = fmaxf(most, scores[c][i]);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    }
    for (int i = lane; i < n; i += 32) {
      scores[c][i] = exp2_fast(scores[c][i] - most);
      weight += scores[c][i];
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) weight += __shfl_xor_sync(~0u, weight, step);
    if (lane == 0) rows[0][c] = most, rows[1][c] = weight;
  }
  __syncthreads();
  for (int d = thread; d < kDim; d += blockDim.x) {
    float sums[kColumns] = {};
    for (int token = 0; token < n; ++token) {
      const float x = load_value(values, dtype, row + static_cast<long long>(token) * kDim + d);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (c < columns) sums[c] += scores[c][token] * x;
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (c < columns) split[c * kDim + d] = sums[c];
    }
  }
  if (thread < columns) {
    split[kColumns * kDim + thread] = rows[0][thread];
    split[kColumns * kDim + kColumns + thread] = rows[1][thread];
  }
  wait_for_previous_kernel();  // when this kernel is done, so is that one
}

// Of the first n threads of a block.
template <int n>
__device__ __forceinline__ void barrier_of() {
  asm volatile("bar.sync 1, %0;\n" ::"n"(n) : "memory");
}

// Joins the splits of one query head, and rotates the sum of values back. Threads (d, row): rows
// share the splits.
constexpr int kMostJoinRows = 8;

template <int kDim>
__global__ void __launch_bounds__(1024) join_splits(const __grid_constant__ AttendArgs p) {
  __shared__ int totals[2];  // tiles of one head: before this sequence, and of all
  __shared__ float sums[kMostJoinRows][2][kDim];
  __shared__ float numbers[kMostJoinRows][3];  // maximum, weights
  const int query_head = static_cast<int>(blockIdx.x), sequence = static_cast<int>(blockIdx.y);
  const int d = static_cast<int>(threadIdx.x), row = static_cast<int>(threadIdx.y);
  const int n_rows = static_cast<int>(blockDim.y);
  const int head = query_head / p.group, of_group = query_head % p.group;
  const int column_head = head * p.n_columns + of_group / kColumns, column = of_group % kColumns;
  const int n_heads = p.n_kv_heads * p.n_columns;
  if (row == 0 && d < 32) {
    int before = 0, all = 0;
    for (int s = d; s < p.n_sequences; s += 32) {
      const int tiles = tiles_of(p, s);
      all += tiles;
      if (s < sequence) before += tiles;
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      before += __shfl_xor_sync(~0u, before, step);
      all += __shfl_xor_sync(~0u, all, step);
    }
    if (d == 0) totals[0] = before, totals[1] = all;
  }
  const int tiles = tiles_of(p, sequence);
  float sign[3] = {1, 1, 1};  // at most three rounds
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    if (i < p.v.rounds) sign[i] = __ldg(p.v.signs + i * kDim + d);
  }
  const float mean = p.v.mean == nullptr ? 0.0f : __ldg(p.v.mean + head * kDim + d);
  __syncthreads();
  const int per_cta = tiles_of_cta(p, totals[1] * n_heads);
  const int begin = totals[0] * n_heads + column_head * tiles;
  const int first = begin / per_cta;
  const int n_splits = tiles == 0 ? 0 : (begin + tiles - 1) / per_cta - first + 1;
  const int n_all = n_splits + p.n_dense_chunks;
  const float* const splits =
      p.splits +
      static_cast<long long>(first + sequence * n_heads + column_head) * split_floats(kDim);
  const float* const dense =
      p.dense_splits + static_cast<long long>(sequence * n_heads + column_head) * p.n_dense_chunks *
                           split_floats(kDim);
  const auto split_of = [&](int i) {
    return i < n_splits ? splits + i * split_floats(kDim)
                        : dense + (i - n_splits) * split_floats(kDim);
  };
  wait_for_previous_kernel();

  float maximum = kNoMaximum;
  float sum[2] = {}, weight[2] = {};  // of packed and of dense tokens
#pragma unroll 4
  for (int i = row; i < n_all; i += n_rows) {
    const float* const split = split_of(i);
    const float own = split[kColumns * kDim + column];
    const float own_weight = split[kColumns * kDim + kColumns + column];
    const float value = split[column * kDim + d];
    const float before = maximum;
    maximum = fmaxf(maximum, own);
    const float factor = exp2_fast(own - maximum), rescale = exp2_fast(before - maximum);
    const bool is_dense = i >= n_splits;
    sum[0] = fmaf(sum[0], rescale, is_dense ? 0.0f : factor * value);
    sum[1] = fmaf(sum[1], rescale, is_dense ? factor * value : 0.0f);
    weight[0] = fmaf(weight[0], rescale, is_dense ? 0.0f : factor * own_weight);
    weight[1] = fmaf(weight[1], rescale, is_dense ? factor * own_weight : 0.0f);
  }
  if (n_rows > 1) {
#pragma unroll
    for (int i = 0; i < 2; ++i) sums[row][i][d] = sum[i];
    if (d == 0) {
      numbers[row][0] = maximum;
      numbers[row][1] = weight[0];
      numbers[row][2] = weight[1];
    }
    __syncthreads();
    if (row != 0) return;
    for (int r = 0; r < n_rows; ++r) maximum = fmaxf(maximum, numbers[r][0]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] = weight[i] = 0;
      for (int r = 0; r < n_rows; ++r) {
        const float factor = exp2_fast(numbers[r][0] - maximum);
        sum[i] = fmaf(sums[r][i][d], factor, sum[i]);
        weight[i] = fmaf(numbers[r][1 + i], factor, weight[i]);
      }
    }
  }

  float x = sum[0];
#pragma unroll
  for (int round = 2; round >= 0; --round) {
    if (round >= p.v.rounds) continue;
#pragma unroll
    for (int h = 1; h < 32; h *= 2) {
      const float other = __shfl_xor_sync(~0u, x, h);
      x = (d & h) != 0 ? other - x : x + other;
    }
    float* const row_of_sums = sums[0][0];
#pragma unroll
    for (int h = 32; h < kDim; h *= 2) {
      barrier_of<kDim>();
      row_of_sums[d] = x;
      barrier_of<kDim>();
      const float other = row_of_sums[d ^ h];
      x = (d & h) != 0 ? other - x : x + other;
    }
    x *= rsqrtf(static_cast<float>(kDim)) * sign[round];
  }
  x += weight[0] * mean;
  const float total = weight[0] + weight[1];
  const float result = total > 0 ? (x + sum[1]) / total : 0.0f;
  store_value(p.output, p.dtype,
              (static_cast<long long>(sequence) * p.n_query_heads + query_head) * kDim + d, result);
}

using Kernel = void (*)(AttendArgs);

struct Choice {
  int head_dim, key_bits, value_bits;
  Kernel kernels[2];  // the second for keys whose mean turns
  int threads, shared;
  std::atomic<std::uint64_t>*
      allowed;  // devices whose limit of shared memory is raised, a bit each
};

template <int kDim, int kKeyBits, int kValueBits>
Choice choice() {
  using S = Shape<kDim, kKeyBits, kValueBits>;
  static_assert(S::kShared <= static_cast<int>(kMostShared));
  static std::atomic<std::uint64_t> allowed{0};
  return {kDim,
          kKeyBits,
          kValueBits,
          {attend_packed<kDim, kKeyBits, kValueBits, false>,
           attend_packed<kDim, kKeyBits, kValueBits, kKeyBits != kDenseBits>},
          S::kWarps * 32,
          S::kShared,
          &allowed};
}

#ifndef TQCACHE_CUDA_FEW
#define TQCACHE_CUDA_CHOICES(dim)                                                         \
  choice<dim, 2, 2>(), choice<dim, 3, 3>(), choice<dim, 4, 4>(), choice<dim, 8, 8>(),     \
      choice<dim, 8, 4>(), choice<dim, 4, 3>(), choice<dim, 4, 2>(), choice<dim, 3, 4>(), \
      choice<dim, kDenseBits, 4>(), choice<dim, kDenseBits, 3>(), choice<dim, kDenseBits, 2>()
#else  // a quick build
#define TQCACHE_CUDA_CHOICES(dim) choice<dim, 4, 4>(), choice<dim, 3, 3>(), choice<dim, 2, 2>()
#endif

const Choice* find_choice(int head_dim, int key_bits, int value_bits) {
  static const Choice choices[] = {TQCACHE_CUDA_CHOICES(64), TQCACHE_CUDA_CHOICES(128),
                                   TQCACHE_CUDA_CHOICES(256)};
  for (const Choice& one : choices) {
    if (one.head_dim == head_dim && one.key_bits == key_bits && one.value_bits == value_bits) {
      return &one;
    }
  }
  return nullptr;
}

// What is asked for once for each device.
struct Device {
  std::once_flag once;
  cudaError_t error = cudaSuccess;
  int multiprocessors = 0;
  int shared = 0;            // bytes that a block may have
  bool can_overlap = false;  // kernels of one stream
};
constexpr int kMaxDevices = 64;

Result<int> current_device() {
  int device = 0;
  TQC_TRY(check(cudaGetDevice(&device), "cudaGetDevice"));
  if (device >= kMaxDevices) return unsupported("device " + std::to_string(device));
  return device;
}

Result<const Device*> find_device() {
  static Device devices[kMaxDevices];
  TQC_TRY_ASSIGN(const int number, current_device());
  Device& device = devices[number];
  std::call_once(device.once, [&] {
    int major = 0;
    device.error =
        cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, number);
    if (device.error != cudaSuccess) return;
    device.error =
        cudaDeviceGetAttribute(&device.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, number);
    if (device.error != cudaSuccess) return;
    device.error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, number);
    device.can_overlap = major >= 9;
  });
  TQC_TRY(check(device.error, "cudaDeviceGetAttribute"));
  return &device;
}

// Kernels that follow one with much shared memory start sooner if they do not change its size.
template <int kDim>
Result<void> keep_shared_size() {
  for (const Kernel kernel : {attend_dense<kDim>, join_splits<kDim>}) {
    TQC_TRY(check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                       cudaSharedmemCarveoutMaxShared),
                  "cudaFuncSetAttribute"));
  }
  return {};
}

// Once for each kernel and device.
Result<void> allow_shared(const Choice& choice) {
  TQC_TRY_ASSIGN(const int number, current_device());
  const std::uint64_t bit = std::uint64_t{1} << number;
  if ((choice.allowed->load(std::memory_order_relaxed) & bit) != 0) return {};
  for (const Kernel kernel : choice.kernels) {
    TQC_TRY(check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, choice.shared),
        "cudaFuncSetAttribute"));
  }
  TQC_TRY(choice.head_dim == 64    ? keep_shared_size<64>()
          : choice.head_dim == 128 ? keep_shared_size<128>()
                                   : keep_shared_size<256>());
  choice.allowed->fetch_or(bit, std::memory_order_relaxed);
  return {};
}

bool has_kernel(const CodecTables& tables, int head_dim) {
  const PartTables& part = tables.part0;
  return tables.n_parts == 1 && !part.has_bias && tables.head_dim == head_dim &&
         (part.transform == codec::TransformKind::kHadamard ||
          part.transform == codec::TransformKind::kNone);
}

Result<SideArgs> side_args(const AttentionPages& pages, const AttentionStep& step, bool is_values) {
  SideArgs side;
  side.data = reinterpret_cast<const std::uint8_t*>(pages.data);
  side.page_bytes = pages.page_bytes;
  side.table = pages.page_table;
  if (pages.codec == nullptr) {
    if (is_values) return unsupported("dense values");
    return side;
  }
  const CodecTables& tables = pages.codec->tables();
  if (!has_kernel(tables, step.head_dim) || tables.is_values != is_values) {
    return unsupported("attention: a codec other than mse of head_dim " +
                       std::to_string(step.head_dim));
  }
  const bool turns = pages.center.mean != nullptr && pages.center.n_pairs != 0;
  if (turns && is_values) return unsupported("attention: a mean of values that turns with RoPE");
  side.centroids = tables.part0.centroids;
  side.signs = tables.part0.signs;
  side.rounds = tables.part0.transform == codec::TransformKind::kHadamard ? tables.part0.rounds : 0;
  side.code_bytes = tables.code_bytes;
  side.scales_at = tables.code_bytes * step.n_kv_heads;
  side.row_bytes = tables.n_scale_rows * kPageTokens * 2;
  if (!turns) side.mean = pages.center.mean;
  return side;
}

// n_steps is 0 unless the keys' mean turns.
Result<SinusoidArgs> sinusoid_args(const AttentionStep& step) {
  SinusoidArgs args;
  const Centering& center = step.keys.center;
  if (step.keys.codec == nullptr || center.mean == nullptr || center.n_pairs == 0) return args;
  if (step.keys.sinusoids == nullptr)
    return invalid("attention: no sinusoids of a mean that turns");
  const SinusoidTables& tables = step.keys.sinusoids->tables();
  if (tables.n_pairs != center.n_pairs || 2 * center.n_pairs > step.head_dim) {
    return invalid("attention: sinusoids of other pairs than the mean's");
  }
  args.n_steps = tables.n_steps;
  args.n_pairs = tables.n_pairs;
  args.n_fast = tables.n_fast;
  args.turns = tables.turns;
  args.joins = tables.joins;
  args.rows = tables.rows;
  args.mean = center.mean;
  return args;
}

struct Plan {
  AttendArgs args;
  const Choice* choice = nullptr;
  std::size_t split_bytes = 0;
  std::size_t dense_bytes = 0;
  std::size_t factor_bytes = 0;
};

Result<Plan> make_plan(const AttentionStep& step) {
  if (step.n_sequences < 1 || step.n_kv_heads < 1 || step.n_query_heads < 1 ||
      step.n_query_heads % step.n_kv_heads != 0 || step.max_blocks < 0) {
    return invalid("attention: numbers of sequences, heads or blocks");
  }
  if (step.n_sequences > kMaxSequences) {
    return unsupported("attention: more than " + std::to_string(kMaxSequences) + " sequences");
  }
  const std::int64_t most_tiles =
      (std::int64_t{step.max_blocks} * kBlockTiles + 1) * step.n_sequences * step.n_query_heads;
  if (most_tiles >= std::int64_t{1} << 30) return unsupported("attention: so many tokens");
  Plan plan;
  AttendArgs& p = plan.args;
  TQC_TRY_ASSIGN(p.k, side_args(step.keys, step, false));
  TQC_TRY_ASSIGN(p.v, side_args(step.values, step, true));
  TQC_TRY_ASSIGN(p.sinusoids, sinusoid_args(step));
  p.head_dim = step.head_dim;
  const int key_bits =
      step.keys.codec == nullptr ? kDenseBits : step.keys.codec->tables().part0.bits;
  const int value_bits = step.values.codec->tables().part0.bits;
  plan.choice = find_choice(step.head_dim, key_bits, value_bits);
  if (plan.choice == nullptr) {
    return unsupported("attention: head_dim " + std::to_string(step.head_dim) + " with keys of " +
                       std::to_string(key_bits) + " and values of " + std::to_string(value_bits) +
                       " bits");
  }
  p.n_sequences = step.n_sequences;
  p.n_query_heads = step.n_query_heads;
  p.n_kv_heads = step.n_kv_heads;
  p.group = step.n_query_heads / step.n_kv_heads;
  p.n_columns = (p.group + kColumns - 1) / kColumns;
  p.max_blocks = step.max_blocks;
  p.scale = step.scale * 1.44269504088896341f;
  p.dtype = step.dtype;
  p.queries = step.queries;
  p.output = step.output;
  p.n_packed = step.n_packed;
  p.n_sinks = step.n_sinks;
  p.sink_dtype = step.sink_dtype;
  p.tail = step.tail;
  p.n_tail_chunks = (step.tail.capacity + kDenseChunk - 1) / kDenseChunk;
  p.n_dense_chunks = p.n_tail_chunks + (step.n_sinks + kDenseChunk - 1) / kDenseChunk;
  TQC_TRY_ASSIGN(const Device* const device, find_device());
  if (plan.choice->shared > device->shared) {
    return unsupported("attention on a GPU with less shared memory than compute capability 9.0");
  }
  p.n_ctas = device->multiprocessors;
  p.can_overlap = device->can_overlap;
  const std::size_t split = static_cast<std::size_t>(split_floats(step.head_dim)) * sizeof(float);
  const std::size_t segments = static_cast<std::size_t>(step.n_sequences) *
                               static_cast<std::size_t>(p.n_kv_heads) *
                               static_cast<std::size_t>(p.n_columns);
  plan.split_bytes = (segments + static_cast<std::size_t>(p.n_ctas)) * split;
  plan.dense_bytes = segments * static_cast<std::size_t>(p.n_dense_chunks) * split;
  plan.factor_bytes = segments * static_cast<std::size_t>(step.max_blocks) *
                      static_cast<std::size_t>(p.sinusoids.n_steps) * 32 * sizeof(uint2);
  return plan;
}

// A kernel that may start before the one before it in the stream is done.
Result<void> launch_behind(Kernel kernel, const AttendArgs& p, dim3 grid, dim3 block,
                           std::size_t shared, cudaStream_t stream) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = p.can_overlap ? 1 : 0;
  return check(cudaLaunchKernelEx(&config, kernel, p), "attention");
}

template <int kDim>
Result<void> launch_rest(const AttendArgs& p, cudaStream_t stream) {
  if (p.n_dense_chunks > 0) {
    const dim3 grid(static_cast<unsigned>(p.n_dense_chunks),
                    static_cast<unsigned>(p.n_kv_heads * p.n_columns),
                    static_cast<unsigned>(p.n_sequences));
    TQC_TRY(launch_behind(attend_dense<kDim>, p, grid, 128, 0, stream));
  }
  const dim3 grid(static_cast<unsigned>(p.n_query_heads), static_cast<unsigned>(p.n_sequences));
  // With few heads, many threads share the splits of one.
  const int blocks = p.n_query_heads * p.n_sequences;
  const int wanted = 2 * blocks <= p.n_ctas ? kMostJoinRows : blocks <= 2 * p.n_ctas ? 4 : 1;
  const auto rows = static_cast<unsigned>(std::min(wanted, 1024 / kDim));
  return launch_behind(join_splits<kDim>, p, grid, dim3(kDim, rows), 0, stream);
}

}  // namespace

Result<std::size_t> attention_workspace_bytes(const AttentionStep& step) {
  TQC_TRY_ASSIGN(const Plan plan, make_plan(step));
  return plan.split_bytes + plan.dense_bytes + plan.factor_bytes;
}

Result<void> attend(const AttentionStep& step, void* workspace, Stream stream) {
  TQC_TRY_ASSIGN(Plan plan, make_plan(step));
  AttendArgs& p = plan.args;
  p.splits = static_cast<float*>(workspace);
  p.dense_splits = p.splits + plan.split_bytes / sizeof(float);
  TQC_TRY(allow_shared(*plan.choice));
  const auto threads = static_cast<unsigned>(plan.choice->threads);
  const auto ctas = static_cast<unsigned>(p.n_ctas);
  const auto shared = static_cast<std::size_t>(plan.choice->shared);
  if (p.sinusoids.n_steps != 0 && p.max_blocks > 0) {
    p.sinusoids.factors =
        reinterpret_cast<uint2*>(p.dense_splits + plan.dense_bytes / sizeof(float));
    const dim3 grid(static_cast<unsigned>((p.max_blocks + kFactorBlocks - 1) / kFactorBlocks),
                    static_cast<unsigned>((p.n_query_heads + kFactorHeads - 1) / kFactorHeads),
                    static_cast<unsigned>(p.n_sequences));
    make_factors<<<grid, kFactorThreads, 0, stream>>>(p);
    TQC_TRY(check_launch("make_factors"));
    TQC_TRY(launch_behind(plan.choice->kernels[1], p, ctas, threads, shared, stream));
  } else {
    plan.choice->kernels[0]<<<ctas, threads, shared, stream>>>(p);
    TQC_TRY(check_launch("attend_packed"));
  }
  switch (step.head_dim) {
    case 64:
      return launch_rest<64>(p, stream);
    case 128:
      return launch_rest<128>(p, stream);
    default:
      return launch_rest<256>(p, stream);
  }
}

}  // namespace tqcache::cuda
