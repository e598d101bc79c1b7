#pragma once
// cuda/attention_args.cuh: arguments of the attention kernels, and what several of them need.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <atomic>
#include <cstdint>
#include <span>

#include "tqcache/cuda/codec_tables.h"
#include "tqcache/cuda/cuda_attention.h"

namespace tqcache::cuda {

constexpr int kTile = 32;  // tokens of a tile
constexpr int kBlockTiles = kPageTokens / kTile;
constexpr int kColumns = 8;          // query heads that are multiplied at once
constexpr int kMaxSequences = 1024;  // of one call
constexpr int kDenseChunk = 64;      // tokens of a split of the dense tail
constexpr float kNoMaximum = -1e30f;
constexpr int kDenseBits = 16;  // stands for pages of dense f16
constexpr int kEarlySteps = 4;  // of sinusoids: factors loaded early, rows in shared memory

struct TensorArgs {
  const std::uint8_t* data = nullptr;
  long long page_bytes = 0;
  const int* table = nullptr;
  const float* centroids = nullptr;
  const float* signs = nullptr;  // [rounds, head_dim]
  const float* cas = nullptr;    // [head_dim / its power of two]
  int rounds = 0;                // 0: not rotated
  int code_bytes = 0;            // of a kv head in a page
  int scales_at = 0;             // byte of the first scale in a page
  int row_bytes = 0;             // of the scales of a kv head
  const float* mean = nullptr;   // [n_kv_heads, head_dim]; null: none
  int first_still = 0;           // its components before this one turn
  // Of keys with factors: what queries are multiplied by, [n_kv_heads, head_dim]; null: none.
  const float* inverses = nullptr;
};

// The sinusoids that give scores a mean back that turns with RoPE.
struct SinusoidArgs {
  int n_steps = 0;  // of kStepRows rows; 0: no mean rotates
  int n_pairs = 0;
  int n_fast = 0;
  unsigned block_bytes = 0;  // of the factors of a block
  const double* turns = nullptr;
  const uint4* joins = nullptr;
  const uint4* rows = nullptr;
  uint2* factors = nullptr;  // [n_sequences, max_blocks, heads, n_steps, 32]: right factors, f16
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
  TensorArgs k, v;
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
__device__ __forceinline__ float as_float(float x) { return x; }
__device__ __forceinline__ float as_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }
// Calls `body` with a pointer of the type. Within it many numbers are on their way at once, where
// the branch of load_value() waits for each.
template <typename Body>
__device__ __forceinline__ void with_type(const void* data, Dtype dtype, const Body& body) {
  if (dtype == Dtype::kF32) {
    body(static_cast<const float*>(data));
  } else if (dtype == Dtype::kF16) {
    body(static_cast<const __half*>(data));
  } else {
    body(static_cast<const __nv_bfloat16*>(data));
  }
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

__device__ __forceinline__ void prefetch_line(const void* line) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(line));
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

// Sizes of the shared memory of a block of threads, from which the kernels of packed tiles are
// laid out: compute capability 9.0 and 10, 8.0 and 8.7, all others.
constexpr int kMemorySizes[] = {227 * 1024, 163 * 1024, 99 * 1024};

// Which of them code for a compute capability uses: 80 for 8.0.
constexpr int memory_size_of(int architecture) {
  if (architecture == 90 || (architecture >= 100 && architecture < 120)) return 0;
  return architecture == 80 || architecture == 87 ? 1 : 2;
}

using Kernel = void (*)(AttendArgs);

// The kernels of one head_dim and pair of widths.
struct Choice {
  struct Launch {
    int threads, shared;
  };
  struct Variant {
    Kernel kernel;
    Launch launches[3];  // for each of kMemorySizes
  };
  int head_dim, key_bits, value_bits;
  Variant variants[2];  // the second for keys whose mean rotates
  std::atomic<std::uint64_t>*
      allowed;  // devices whose limit of shared memory is raised, a bit each
};

// Each in a file of its own, so that they are compiled at the same time.
std::span<const Choice> choices_of_64();
std::span<const Choice> choices_of_96();
std::span<const Choice> choices_of_128();
std::span<const Choice> choices_of_256();
std::span<const Choice> dense_choices_of_64();
std::span<const Choice> dense_choices_of_128();
std::span<const Choice> dense_choices_of_256();

}  // namespace tqcache::cuda
