#pragma once
// cuda/packed_attention.cuh: attention on packed tiles; every file that includes it makes kernels.

#include "tqcache/cuda/attention_args.cuh"
#include "tqcache/cuda/packed_tile.cuh"
#include "tqcache/cuda/sinusoids.h"
#include "tqcache/cuda/tile_stream.cuh"

namespace tqcache::cuda {

// One warp's values of a vector: value i is component 32 i + lane. In place, unscaled.
template <int kDim>
__device__ __forceinline__ void hadamard(float (&x)[kDim / 32], const float* cas, int lane) {
  constexpr int kOwn = kDim / 32, kPartOwn = kPartSize<kDim> / 32, kParts = kOwn / kPartOwn;
#pragma unroll
  for (int h = 1; h < 32; h *= 2) {
    const float sign = (lane & h) != 0 ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float other = __shfl_xor_sync(~0u, x[i], h);
      x[i] = fmaf(x[i], sign, other);
    }
  }
#pragma unroll
  for (int h = 1; h < kPartOwn; h *= 2) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if ((i & h) != 0) continue;
      const float a = x[i], b = x[i + h];
      x[i] = a + b;
      x[i + h] = a - b;
    }
  }
  if constexpr (kParts > 1) {
#pragma unroll
    for (int i = 0; i < kPartOwn; ++i) {
      float from[kParts];
#pragma unroll
      for (int k = 0; k < kParts; ++k) from[k] = x[k * kPartOwn + i];
#pragma unroll
      for (int j = 0; j < kParts; ++j) {
        float sum = from[0];
#pragma unroll
        for (int k = 1; k < kParts; ++k) sum = fmaf(__ldg(cas + j * k % kParts), from[k], sum);
        x[j * kPartOwn + i] = sum;
      }
    }
  }
}

// The running softmax of a warp and the sums of values that belong to it. Columns are query heads:
// thread (g, t) has those of columns 2t and 2t + 1.
template <int kDim>
struct RunningSums {
  float maximum[2] = {kNoMaximum, kNoMaximum};
  float weight[2] = {0, 0};  // of this thread's rows
  float sums[kDim / 32][2][4] = {};
};

// Dense keys have none.
template <int kKeyBits>
using KeyPlaces = Places<kKeyBits == kDenseBits ? 4 : kKeyBits, 1>;

// Scores of a tile: rows (tokens) 4g + 2m and 4g + 2m + 1 are s[m][0..1] and s[m][2..3].
template <int kDim, int kKeyBits>
__device__ __forceinline__ void score_tile(const std::uint8_t* tile,
                                           const KeyPlaces<kKeyBits>& places,
                                           const std::uint8_t* table,
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
      const Pairs pairs = load_pairs(tile, places, u, t);
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
__device__ __forceinline__ void add_values(const std::uint8_t* tile,
                                           const Places<kValueBits, 2>& places,
                                           const std::uint8_t* table,
                                           const std::uint32_t (&b)[2][2], int t,
                                           std::uint32_t lane4, float (&sums)[kDim / 32][2][4]) {
#pragma unroll
  for (int u = 0; u < kDim / 32; ++u) {
    const Pairs pairs = load_pairs(tile, places, u, t);
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
// s += the sinusoids of a tile: products of the tile's rows and the block's factors. early: the
// factors of the first steps.
__device__ __forceinline__ void add_sinusoids(const uint4* rows, int n_steps, const uint2* factors,
                                              const uint2 (&early)[kEarlySteps], bool is_there,
                                              float (&s)[2][4]) {
  const auto add = [&](int step, uint2 factor) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const uint4 chunk = rows[step * 64 + m * 32];
      const std::uint32_t a[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
      multiply_add(s[m], a, factor.x, factor.y);
    }
  };
#pragma unroll
  for (int step = 0; step < kEarlySteps; ++step) {
    if (step < n_steps) add(step, early[step]);
  }
#pragma unroll 1
  for (int step = kEarlySteps; step < n_steps; ++step) {
    add(step, is_there ? __ldcg(factors + step * 32) : make_uint2(0, 0));
  }
}

// What every multiprocessor reads soon, one line of memory a thread.
__device__ __forceinline__ void prefetch_small(const AttendArgs& p, int head_dim, int thread) {
  const int size = p.dtype == Dtype::kF32 ? 4 : 2;
  const int n_lines = p.n_sequences * p.n_query_heads * head_dim * size / 128;
  if (thread < n_lines) prefetch_line(static_cast<const char*>(p.queries) + thread * 128);
  const int last = head_dim * 4 / 128;
  if (thread < last && p.k.signs != nullptr) prefetch_line(p.k.signs + thread * 32);
  if (thread >= 32 && thread < 32 + last) prefetch_line(p.v.signs + (thread - 32) * 32);
  if (thread == 64) prefetch_line(p.v.centroids);
  if (thread == 96 && p.k.centroids != nullptr) prefetch_line(p.k.centroids);
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
    with_type(p.queries, p.dtype, [&](const auto* all) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        x[i] = is_there ? as_float(all[row + 32 * i + lane]) * p.scale : 0.0f;
      }
    });
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (p.k.mean != nullptr && 32 * i + lane >= p.k.first_still) {
        constant += x[i] * __ldg(p.k.mean + head * kDim + 32 * i + lane);
      }
    }
    if constexpr (!kIsDense) {
      if (p.k.inverses != nullptr) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) x[i] *= __ldg(p.k.inverses + head * kDim + 32 * i + lane);
      }
      for (int round = 0; round < p.k.rounds; ++round) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) x[i] *= __ldg(p.k.signs + round * kDim + 32 * i + lane);
        hadamard<kDim>(x, p.k.cas, lane);
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
      const int component = 32 * i + lane;
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

// kTurns: the keys' mean rotates with RoPE.
template <int kDim, int kKeyBits, int kValueBits, bool kTurns>
__global__ void __launch_bounds__(Shape<kDim, kKeyBits, kValueBits, kTurns>::kWarps * 32, 1)
    attend_packed(const __grid_constant__ AttendArgs p) {
  using S = Shape<kDim, kKeyBits, kValueBits, kTurns>;
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
  const int n_steps = kTurns ? p.sinusoids.n_steps : 0;
  auto* const own_rows = reinterpret_cast<uint4*>(shared + S::kShared - S::kRows);
  if (S::kRows != 0 && n_steps <= kEarlySteps) {
#pragma unroll 4
    for (int i = thread; i < n_steps * kBlockTiles * 64; i += S::kWarps * 32) {
      own_rows[i] = __ldg(p.sinusoids.rows + i);
    }
  }
  __syncthreads();

  const int n_heads = p.n_kv_heads * p.n_columns;
  const int n_tiles = prefix[p.n_sequences] * n_heads, per_cta = tiles_of_cta(p, n_tiles);
  const int cta = static_cast<int>(blockIdx.x);
  int at = cta * per_cta;  // below 2^31: see make_plan()
  const int end = min(n_tiles, at + per_cta);

  // A piece: this multiprocessor's tiles of one kv head of a sequence.
  int sequence = 0, column_head = 0;
  const KeyPlaces<kKeyBits> key_places((g >> 2) * (kDim / 32), t, g & 3);
  const Places<kValueBits, 2> value_places(g >> 2, t, g & 3);
  TileStream<S> stream(p, rings + warp * S::kStages * S::kStage, lane);
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
    const auto load_queries = [&] {
#pragma unroll
      for (int u = 0; u < S::kUnits; ++u) {
        q[u] = *reinterpret_cast<const uint4*>(queries + g * kDim + u * 32 + t * 8);
      }
    };
    if constexpr (!S::kReloadsQueries) load_queries();
    const float factor[2] = {factors[2 * t], factors[2 * t + 1]};
    const float constant[2] = {constants[2 * t], constants[2 * t + 1]};
    const int n_tokens = p.n_packed[sequence];
    const auto* const wave_factors = reinterpret_cast<const std::uint8_t*>(
        p.sinusoids.factors +
        (static_cast<long long>(sequence) * p.max_blocks * n_heads + column_head) * n_steps * 32 +
        lane);
    if constexpr (kTurns) wait_for_previous_kernel();

    run = RunningSums<kDim>();
    for (int i = 0; i < stream.size(); ++i) {
      uint2 early[kEarlySteps] = {};
      const unsigned tile = static_cast<unsigned>(stream.tile(i));
      const auto* const own_factors = reinterpret_cast<const uint2*>(
          wave_factors + static_cast<std::uint64_t>(tile / kBlockTiles) * p.sinusoids.block_bytes);
      if constexpr (kTurns) {
#pragma unroll
        for (int step = 0; step < kEarlySteps; ++step) {
          if (step < n_steps && g < columns) early[step] = __ldcg(own_factors + step * 32);
        }
      }
      wait_copies<2 * S::kStages - 1>();
      __syncwarp();
      if constexpr (S::kReloadsQueries) load_queries();
      float s[2][4] = {};
      score_tile<kDim, kKeyBits>(stream.keys(), key_places, table, q, g, t, lane4, s);
      float scales[4] = {1, 1, 1, 1};
      if constexpr (!S::kDenseKeys) load_scales(stream.key_scales(), g, scales);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          s[m][c] = fmaf(s[m][c] * scales[2 * m + c / 2], factor[c % 2], constant[c % 2]);
        }
      }
      if constexpr (kTurns) {
        const unsigned row = tile % kBlockTiles * n_steps * 64 + lane;
        if (S::kRows != 0 && n_steps <= kEarlySteps) {
          add_sinusoids(own_rows + row, n_steps, own_factors, early, g < columns, s);
        } else {
          add_sinusoids(p.sinusoids.rows + row, n_steps, own_factors, early, g < columns, s);
        }
      }
      const int token = static_cast<int>(tile) * kTile;
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
      load_scales(stream.value_scales(), g, scales);
      std::uint32_t b[2][2];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float scale = scales[2 * m + h];
          b[m][h] = transposed(packed_pair(s[m][2 * h] * scale, s[m][2 * h + 1] * scale));
        }
      }
      add_values<kDim, kValueBits>(stream.values(), value_places, table + 128, b, t, lane4,
                                   run.sums);
      __syncwarp();
      stream.copy_values(i + S::kStages);
      stream.advance();
    }
  }
  if constexpr (kTurns) wait_for_previous_kernel();  // also where there was no tile
}

template <int kDim, int kKeyBits, int kValueBits, bool kTurns, int kSize>
constexpr Choice::Launch launch_of() {
  using S = Shape<kDim, kKeyBits, kValueBits, kTurns, kSize>;
  static_assert(S::kShared <= kMemorySizes[kSize]);
  return {S::kWarps * 32, S::kShared};
}

template <int kDim, int kKeyBits, int kValueBits, bool kTurns>
constexpr Choice::Variant variant() {
  return {attend_packed<kDim, kKeyBits, kValueBits, kTurns>,
          {launch_of<kDim, kKeyBits, kValueBits, kTurns, 0>(),
           launch_of<kDim, kKeyBits, kValueBits, kTurns, 1>(),
           launch_of<kDim, kKeyBits, kValueBits, kTurns, 2>()}};
}

template <int kDim, int kKeyBits, int kValueBits>
Choice choice() {
  static std::atomic<std::uint64_t> allowed{0};
  return {kDim,
          kKeyBits,
          kValueBits,
          {variant<kDim, kKeyBits, kValueBits, false>(),
           variant<kDim, kKeyBits, kValueBits, kKeyBits != kDenseBits>()},
          &allowed};
}

template <int kDim>
std::span<const Choice> choices() {
  static const Choice packed[] = {choice<kDim, 2, 2>(), choice<kDim, 3, 3>(), choice<kDim, 4, 4>(),
                                  choice<kDim, 8, 8>(), choice<kDim, 8, 4>(), choice<kDim, 4, 3>(),
                                  choice<kDim, 4, 2>(), choice<kDim, 3, 4>()};
  return packed;
}
// Of dense keys, whose rows have to be a power of two of 16 bytes.
template <int kDim>
std::span<const Choice> dense_choices() {
  static const Choice dense[] = {choice<kDim, kDenseBits, 4>(), choice<kDim, kDenseBits, 3>(),
                                 choice<kDim, kDenseBits, 2>()};
  return dense;
}

}  // namespace tqcache::cuda
