#pragma once
// cuda/attention_parts.cuh: the kernels around attend_packed: factors of sinusoids, dense tokens,
// and joining the splits. Of attention.cu only.

#include "tqcache/cuda/attention_args.cuh"
#include "tqcache/cuda/packed_tile.cuh"
#include "tqcache/cuda/sinusoids.h"

namespace tqcache::cuda {

constexpr int kFactorWarps = 4;   // of a block of make_factors
constexpr int kFactorBlocks = 2;  // token blocks of it
constexpr int kFactorThreads = kFactorWarps * 32;

// Column groups whose factors a warp makes: several where a kv head has few query heads.
__host__ __device__ constexpr int factor_heads(int group) {
  return group > 4 ? 1 : group > 2 ? 2 : group > 1 ? 4 : 8;
}

// Two f16; what is beyond f16 becomes the largest.
__device__ __forceinline__ std::uint32_t bounded_pair(float low, float high) {
  const __half2 most = __half2half2(__ushort_as_half(0x7bff));
  const __half2 pair = __hmin2(__hmax2(__floats2half2_rn(low, high), __hneg2(most)), most);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// Factors of the sinusoids of two blocks of a sequence. Pairs of a query and the mean give
// amplitudes, turned to the middle of each block; matrix units join those of slow pairs to factors
// of polynomials (codec.md §8). Thread (g, t) has pairs 2t and 2t + 1 of each step for column g.
template <int kDim>
__global__ void __launch_bounds__(kFactorThreads)
    make_factors(const __grid_constant__ AttendArgs p) {
  __shared__ float2 phasors[kFactorBlocks][kMostPairs];
  allow_next_kernel();
  const SinusoidArgs& w = p.sinusoids;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int sequence = static_cast<int>(blockIdx.z);
  const int n_direct = w.n_fast / kStepPairs, n_joined = w.n_steps - n_direct;
  // What is needed later, while the number of tokens is on its way.
  const int n_from = (w.n_pairs + kStepPairs - 1) / kStepPairs - n_direct;
  if (thread < n_from * n_joined * 4) prefetch_line(w.joins + thread * 8);
  if (const int line = thread * 32; line < kDim * p.n_kv_heads) prefetch_line(p.k.mean + line);
  const int first_block = static_cast<int>(blockIdx.x) * kFactorBlocks;
  const int n_blocks =
      min(kFactorBlocks, (p.n_packed[sequence] + kPageTokens - 1) / kPageTokens - first_block);
  if (n_blocks <= 0) return;
  const int g = lane / 4, t = lane % 4, n_heads = p.n_kv_heads * p.n_columns;
  const int heads = factor_heads(p.group), column = g % (kColumns / heads);
  const int column_head =
      (static_cast<int>(blockIdx.y) * kFactorWarps + warp) * heads + g / (kColumns / heads);
  const int head = min(column_head, n_heads - 1) / p.n_columns;
  const int of_group = column_head % p.n_columns * kColumns + column;
  const bool is_there = column_head < n_heads && of_group < p.group;
  const long long query =
      (static_cast<long long>(sequence) * p.n_query_heads + head * p.group + of_group) * kDim;
  const float* const mean = p.k.mean + head * kDim;
  constexpr int kSteps = kDim / 2 / kStepPairs;
  float2 amplitudes[kSteps][2];
  with_type(p.queries, p.dtype, [&](const auto* queries) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int pair = step * kStepPairs + 2 * t + i;
        const bool has_pair = is_there && pair < w.n_pairs;
        const float q0 = has_pair ? as_float(queries[query + pair]) * p.scale : 0.0f;
        const float q1 = has_pair ? as_float(queries[query + pair + w.n_pairs]) * p.scale : 0.0f;
        const float m0 = has_pair ? __ldg(mean + pair) : 0.0f;
        const float m1 = has_pair ? __ldg(mean + pair + w.n_pairs) : 0.0f;
        amplitudes[step][i] = make_float2(q0 * m0 + q1 * m1, q1 * m0 - q0 * m1);
      }
    }
  });
  for (int i = thread; i < kFactorBlocks * kDim / 2; i += kFactorThreads) {
    const int block = i / (kDim / 2), pair = i % (kDim / 2);
    const double middle = (first_block + block) * static_cast<double>(kPageTokens) + 127.5;
    const double turns = pair < w.n_pairs ? w.turns[pair] * middle : 0;
    sincospif(2 * static_cast<float>(turns - rint(turns)), &phasors[block][pair].y,
              &phasors[block][pair].x);
  }
  __syncthreads();
  if (column_head - g / (kColumns / heads) >= n_heads) return;  // the whole warp
  uint2* const factors =
      w.factors +
      ((static_cast<long long>(sequence) * p.max_blocks + first_block) * n_heads + column_head) *
          w.n_steps * 32 +
      column * 4 + t;
  const auto store = [&](int block, int step, uint2 factor) {
    if (block < n_blocks && is_there) {
      factors[(block * n_heads * w.n_steps + step) * 32] = factor;
    }
  };
  float joined[kFactorBlocks][kMostJoined][4] = {};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const bool is_direct = step < n_direct;
    const bool is_joined = !is_direct && step * kStepPairs < w.n_pairs;
    uint2 turned[kFactorBlocks];
#pragma unroll
    for (int block = 0; block < kFactorBlocks; ++block) {
      std::uint32_t pairs[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 at = phasors[block][step * kStepPairs + 2 * t + i], a = amplitudes[step][i];
        pairs[i] = bounded_pair(a.x * at.x + a.y * at.y, a.y * at.x - a.x * at.y);
      }
      turned[block] = make_uint2(pairs[0], pairs[1]);
      if (is_direct) store(block, step, turned[block]);
    }
#pragma unroll
    for (int m = 0; m < kMostJoined; ++m) {
      if (!is_joined || m >= n_joined) continue;
      const uint4 chunk = __ldg(w.joins + ((step - n_direct) * n_joined + m) * 32 + lane);
      const std::uint32_t left[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
      for (int block = 0; block < kFactorBlocks; ++block) {
        multiply_add(joined[block][m], left, turned[block].x, turned[block].y);
      }
    }
  }
#pragma unroll
  for (int block = 0; block < kFactorBlocks; ++block) {
#pragma unroll
    for (int m = 0; m < kMostJoined; ++m) {
      if (m >= n_joined) continue;
      const float(&sums)[4] = joined[block][m];
      store(block, n_direct + m,
            make_uint2(transposed(bounded_pair(sums[0], sums[1])),
                       transposed(bounded_pair(sums[2], sums[3]))));
    }
  }
}

// When a kernel is done, so is the one before it: one of its blocks of threads waits. The others
// leave their places on multiprocessors that the kernel before does not need.
__device__ __forceinline__ void end_behind_previous_kernel() {
  if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0) wait_for_previous_kernel();
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
    end_behind_previous_kernel();
    return;
  }
  const Dtype dtype = is_tail ? p.tail.dtype : p.sink_dtype;
  const void *keys = p.tail.keys, *values = p.tail.values;
  long long row =
      ((static_cast<long long>(sequence) * p.n_kv_heads + head) * p.tail.capacity + first) * kDim;
  if (!is_tail) {
    const auto sinks = [&](const TensorArgs& tensor) {
      const long long page = tensor.table == nullptr
                                 ? static_cast<long long>(sequence) * p.max_blocks
                                 : tensor.table[static_cast<long long>(sequence) * p.max_blocks];
      return tensor.data + page * tensor.page_bytes + tensor.scales_at +
             p.n_kv_heads * tensor.row_bytes;
    };
    keys = sinks(p.k);
    values = sinks(p.v);
    row = (static_cast<long long>(head) * p.n_sinks + first) * kDim;
  }
  with_type(p.queries, p.dtype, [&](const auto* all) {
    const long long first_query = (static_cast<long long>(sequence) * p.n_query_heads +
                                   head * p.group + column_group * kColumns) *
                                  kDim;
#pragma unroll
    for (int i = 0; i < kColumns * kDim / 128; ++i) {
      const int at = i * 128 + thread;
      if (at < columns * kDim) {
        queries[at / kDim][at % kDim] = as_float(all[first_query + at]) * p.scale;
      }
    }
  });
  __syncthreads();
  with_type(keys, dtype, [&](const auto* all) {
    constexpr int kAtOnce = kDim <= 128 ? 8 : 4;  // tokens of a warp
    for (int token = warp * kAtOnce; token < n; token += 4 * kAtOnce) {
      float x[kAtOnce][kDim / 32];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const long long at = row + static_cast<long long>(min(token + j, n - 1)) * kDim + lane;
#pragma unroll
        for (int i = 0; i < kDim / 32; ++i) x[j][i] = as_float(all[at + 32 * i]);
      }
      for (int c = 0; c < columns; ++c) {
        float sums[kAtOnce] = {};
#pragma unroll
        for (int i = 0; i < kDim / 32; ++i) {
          const float query = queries[c][lane + 32 * i];
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) sums[j] += x[j][i] * query;
        }
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) sums[j] += __shfl_xor_sync(~0u, sums[j], step);
        }
        if (lane == 0) {
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) {
            if (token + j < n) scores[c][token + j] = sums[j];
          }
        }
      }
    }
  });
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
  with_type(values, dtype, [&](const auto* all) {
    constexpr int kAtOnce = 16;  // tokens
    for (int d = thread; d < kDim; d += blockDim.x) {
      float sums[kColumns] = {};
      for (int token = 0; token < n; token += kAtOnce) {
        float x[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          x[j] = as_float(all[row + static_cast<long long>(min(token + j, n - 1)) * kDim + d]);
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (token + j >= n) break;
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            if (c < columns) sums[c] += scores[c][token + j] * x[j];
          }
        }
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (c < columns) split[c * kDim + d] = sums[c];
      }
    }
  });
  if (thread < columns) {
    split[kColumns * kDim + thread] = rows[0][thread];
    split[kColumns * kDim + kColumns + thread] = rows[1][thread];
  }
  end_behind_previous_kernel();
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

  constexpr int kPart = kDim & -kDim;  // the power of two in kDim
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
    for (int h = 32; h < kPart; h *= 2) {
      barrier_of<kDim>();
      row_of_sums[d] = x;
      barrier_of<kDim>();
      const float other = row_of_sums[d ^ h];
      x = (d & h) != 0 ? other - x : x + other;
    }
    if constexpr (kDim > kPart) {
      barrier_of<kDim>();
      row_of_sums[d] = x;
      barrier_of<kDim>();
      x = 0;
#pragma unroll
      for (int k = 0; k < kDim / kPart; ++k) {
        x = fmaf(__ldg(p.v.cas + d / kPart * k % (kDim / kPart)),
                 row_of_sums[k * kPart + d % kPart], x);
      }
    }
    x *= rsqrtf(static_cast<float>(kDim)) * sign[round];
  }
  x += weight[0] * mean;
  const float total = weight[0] + weight[1];
  const float result = total > 0 ? (x + sum[1]) / total : 0.0f;
  store_value(p.output, p.dtype,
              (static_cast<long long>(sequence) * p.n_query_heads + query_head) * kDim + d, result);
}
}  // namespace tqcache::cuda
