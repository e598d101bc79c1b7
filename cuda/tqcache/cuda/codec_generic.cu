// Encoding and decoding of every mode and head_dim: a warp for each head vector.

#include "tqcache/cuda/check.cuh"
#include "tqcache/cuda/codec_args.cuh"
#include "tqcache/cuda/codec_tile.cuh"

namespace tqcache::cuda {
namespace {

using codec::ScaleRule;
using codec::TransformKind;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kDotLanes = 16;
constexpr std::uint16_t kF16Infinity = 0x7c00;

// What a block of threads has in shared memory: codes of the tile, then three rows for each warp.
struct SharedLayout {
  int stride;  // words of a token's codes
  int row;     // floats of a row

  __host__ __device__ explicit SharedLayout(const CodecArgs& p)
      : stride(p.tile_bytes / 4 + 1), row((p.head_dim + 31) / 32 * 32) {}
  __host__ __device__ int code_words() const { return kTileTokens * stride; }
  __host__ __device__ int bytes() const { return (code_words() + kWarps * 3 * row) * 4; }
};

__device__ __forceinline__ float load_dense(const CodecArgs& p, long long i) {
  if (p.dtype == Dtype::kF32) return static_cast<const float*>(p.rows)[i];
  if (p.dtype == Dtype::kF16) return __half2float(static_cast<const __half*>(p.rows)[i]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(p.rows)[i]);
}
__device__ __forceinline__ void store_dense(const CodecArgs& p, long long i, float value) {
  if (p.dtype == Dtype::kF32) {
    static_cast<float*>(p.rows)[i] = value;
  } else if (p.dtype == Dtype::kF16) {
    static_cast<__half*>(p.rows)[i] = __float2half_rn(value);
  } else {
    static_cast<__nv_bfloat16*>(p.rows)[i] = __float2bfloat16_rn(value);
  }
}
__device__ __forceinline__ float half_bits(std::uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}

// Component i of the mean, turned to a token of its block.
__device__ __forceinline__ float mean_at(const CodecArgs& p, const float* mean, int token, int i) {
  if (i >= 2 * p.n_pairs) return mean[i];
  const int pair = i < p.n_pairs ? i : i - p.n_pairs;
  const float low = mean[pair], high = mean[pair + p.n_pairs];
  const float cos = p.cos[token * p.n_pairs + pair], sin = p.sin[token * p.n_pairs + pair];
  return i < p.n_pairs ? __fsub_rn(__fmul_rn(low, cos), __fmul_rn(high, sin))
                       : __fadd_rn(__fmul_rn(high, cos), __fmul_rn(low, sin));
}
__device__ __forceinline__ const float* mean_of(const CodecArgs& p, const TilePlace& at) {
  return p.mean == nullptr ? nullptr : p.mean + at.block * p.mean_stride + at.head * p.head_dim;
}

// The inner product of codec.md §4, in every lane. b(i): component i of the second vector.
template <class B>
__device__ __forceinline__ float lane_dot(const float* a, const B& b, int n, int lane) {
  float sum = 0;
  if (lane < kDotLanes) {
    for (int i = lane; i < n; i += kDotLanes) sum = __fadd_rn(sum, __fmul_rn(a[i], b(i)));
  }
#pragma unroll
  for (int half = kDotLanes / 2; half > 0; half /= 2) {
    sum = __fadd_rn(sum, __shfl_down_sync(~0u, sum, half));
  }
  __syncwarp();
  return __shfl_sync(~0u, sum, 0);
}

// The symmetric factor of a Hadamard rotation, in place. `spare` is overwritten.
__device__ void transform(const PartTables& part, float* v, float* spare, int lane) {
  for (int h = 1; h < part.part_size; h *= 2) {
    for (int pair = lane; pair < part.dim / 2; pair += 32) {
      const int j = pair / h * 2 * h + pair % h;
      const float a = v[j], b = v[j + h];
      v[j] = __fadd_rn(a, b);
      v[j + h] = __fsub_rn(a, b);
    }
    __syncwarp();
  }
  const int parts = part.dim / part.part_size;
  if (parts > 1) {
    for (int i = lane; i < part.dim; i += 32) spare[i] = v[i];
    __syncwarp();
    for (int i = lane; i < part.dim; i += 32) {
      const int j = i / part.part_size, t = i % part.part_size;
      float sum = spare[t];
      int turn = 0;
      for (int k = 1; k < parts; ++k) {
        turn += j;
        if (turn >= parts) turn -= parts;
        sum = __fadd_rn(sum, __fmul_rn(part.cas[turn], spare[k * part.part_size + t]));
      }
      v[i] = sum;
    }
    __syncwarp();
  }
  for (int i = lane; i < part.dim; i += 32) v[i] = __fmul_rn(v[i], part.factor);
  __syncwarp();
}

// y = R x; y and spare are other memory than x.
__device__ void rotate(const PartTables& part, const float* x, float* y, float* spare, int lane) {
  switch (part.transform) {
    case TransformKind::kHadamard:
      for (int round = 0; round < part.rounds; ++round) {
        const float* const from = round == 0 ? x : y;
        for (int i = lane; i < part.dim; i += 32) {
          y[i] = __fmul_rn(from[i], part.signs[round * part.dim + i]);
        }
        __syncwarp();
        transform(part, y, spare, lane);
      }
      break;
    case TransformKind::kNone:
      for (int i = lane; i < part.dim; i += 32) y[i] = x[i];
      break;
    default:
      for (int i = lane; i < part.dim; i += 32) {
        const float* const row = part.matrix + i * part.dim;
        float lanes[kDotLanes] = {};
        for (int first = 0; first < part.dim; first += kDotLanes) {
#pragma unroll
          for (int l = 0; l < kDotLanes; ++l) {
            if (first + l < part.dim) {
              lanes[l] = __fadd_rn(lanes[l], __fmul_rn(row[first + l], x[first + l]));
            }
          }
        }
#pragma unroll
        for (int half = kDotLanes / 2; half > 0; half /= 2) {
#pragma unroll
          for (int l = 0; l < half; ++l) lanes[l] = __fadd_rn(lanes[l], lanes[l + half]);
        }
        y[i] = lanes[0];
      }
  }
  __syncwarp();
}

// y = R^T y, in place.
__device__ void unrotate(const PartTables& part, float* y, float* spare, int lane) {
  if (part.transform == TransformKind::kNone) return;
  if (part.transform == TransformKind::kHadamard) {
    for (int round = part.rounds - 1; round >= 0; --round) {
      transform(part, y, spare, lane);
      for (int i = lane; i < part.dim; i += 32) {
        y[i] = __fmul_rn(y[i], part.signs[round * part.dim + i]);
      }
      __syncwarp();
    }
    return;
  }
  for (int j = lane; j < part.dim; j += 32) {
    float sum = 0;
    for (int i = 0; i < part.dim; ++i) {
      sum = __fadd_rn(sum, __fmul_rn(y[i], part.matrix[i * part.dim + j]));
    }
    spare[j] = sum;
  }
  __syncwarp();
  for (int j = lane; j < part.dim; j += 32) y[j] = spare[j];
  __syncwarp();
}

// y = R^T (scale c[codes])
__device__ void decode_part(const PartTables& part, const std::uint8_t* codes, std::uint16_t scale,
                            float* y, float* spare, int lane) {
  const float factor = half_bits(scale);
  for (int i = lane; i < part.dim; i += 32) y[i] = __fmul_rn(factor, part.centroids[codes[i]]);
  __syncwarp();
  unrotate(part, y, spare, lane);
}

__device__ int code_of(const PartTables& part, float y) {
  int code = 0;
  for (int step = 1 << (part.bits - 1); step > 0; step /= 2) {
    if (part.boundaries[code + step - 1] < y) code += step;
  }
  return code;
}

// Codes and the scale of x, which `y` and `spare` help with. False: refused.
__device__ bool encode_part(const PartTables& part, const float* x, float* y, float* spare,
                            std::uint8_t* codes, std::uint16_t& scale, int lane) {
  scale = 0;
  const float length = __fsqrt_rn(lane_dot(
      x, [&](int i) { return x[i]; }, part.dim, lane));
  for (int i = lane; i < (part.dim + 31) / 32 * 32; i += 32) codes[i] = 0;
  if (length == 0.0f) return true;
  rotate(part, x, y, spare, lane);
  float size = length;
  if (part.scale == ScaleRule::kPeak) {
    size = 0;
    for (int i = lane; i < part.dim; i += 32) size = fmaxf(size, fabsf(y[i]));
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      size = fmaxf(size, __shfl_xor_sync(~0u, size, step));
    }
  }
  const float inverse = __fdiv_rn(1.0f, size);
  for (int i = lane; i < part.dim; i += 32) {
    y[i] = __fmul_rn(y[i], inverse);
    const int code = code_of(part, y[i]);
    codes[i] = static_cast<std::uint8_t>(code);
    spare[i] = part.centroids[code];
  }
  __syncwarp();
  float value = size;
  if (part.scale == ScaleRule::kUnbiased) {
    value = __fdiv_rn(size, lane_dot(
                                y, [&](int i) { return spare[i]; }, part.dim, lane));
  } else if (part.scale == ScaleRule::kNorm) {
    value = __fdiv_rn(size, __fsqrt_rn(lane_dot(
                                spare, [&](int i) { return spare[i]; }, part.dim, lane)));
  }
  scale = __half_as_ushort(__float2half_rn(value));
  // Written so that NaN fails.
  if (!(length < INFINITY && value >= 0.0f && scale < kF16Infinity)) return false;
  if (scale == 0) {
    for (int i = lane; i < part.dim; i += 32) codes[i] = 0;
    __syncwarp();
  }
  return true;
}

// Takes the origin out of x. False: refused.
__device__ bool take_bias(const PartTables& part, float* x, std::uint16_t& bits, int lane) {
  float least = INFINITY, most = -INFINITY;
  for (int i = lane; i < part.dim; i += 32) {
    least = fminf(least, x[i]);
    most = fmaxf(most, x[i]);
  }
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    least = fminf(least, __shfl_xor_sync(~0u, least, step));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
  }
  __syncwarp();
  const float value = part.bias_is_smallest ? least : __fmul_rn(__fadd_rn(most, least), 0.5f);
  bits = __half_as_ushort(__float2half_rn(value));
  if ((bits & 0x7fff) == 0) bits = 0;
  if ((bits & 0x7fff) >= kF16Infinity) return false;
  const float bias = half_bits(bits);
  for (int i = lane; i < part.dim; i += 32) x[i] = __fsub_rn(x[i], bias);
  __syncwarp();
  return true;
}

// One head vector. Rows are shared memory of this warp; codes: of this token.
__device__ void encode_token(const CodecArgs& p, const TilePlace& at, int token,
                             const SharedLayout& layout, float* rows, std::uint8_t* codes,
                             int lane) {
  float *const x = rows, *const y = rows + layout.row, *const spare = rows + 2 * layout.row;
  __syncwarp();  // the rows of the token before are no longer read
  const bool is_there = token >= at.skipped && token < at.count;
  const std::uint16_t* const order =
      p.channel_order == nullptr ? nullptr : p.channel_order + at.head * p.head_dim;
  bool is_finite = true;
  for (int i = lane; i < p.head_dim; i += 32) {
    float value = 0;
    if (is_there) {
      const int channel = order == nullptr ? i : order[i];
      value = load_dense(p, row_of(p, at) + token * p.token_stride + channel);
      if (p.mean != nullptr) {
        value = __fsub_rn(value, mean_at(p, mean_of(p, at), at.first + token, channel));
      }
      if (p.factors != nullptr) {
        value = __fmul_rn(value, p.factors[at.head * p.head_dim + channel]);
      }
      is_finite = is_finite && isfinite(value);
    }
    x[i] = value;
  }
  __syncwarp();
  if (__any_sync(~0u, !is_finite)) {
    if (lane == 0) refuse(p, at, token, false);
    for (int i = lane; i < p.head_dim; i += 32) x[i] = 0;
    __syncwarp();
  }
  std::uint16_t scale = 0;
  for (int i = 0; i < p.n_parts; ++i) {
    const PartTables& part = p.parts[i];
    float* const own = x + part.first;
    if (part.of_residual) {
      const PartTables& before = p.parts[i - 1];
      decode_part(before, codes + before.tile_offset, scale, y, spare, lane);
      for (int k = lane; k < part.dim; k += 32) own[k] = __fsub_rn(own[k], y[k]);
      __syncwarp();
    }
    if (part.has_bias) {
      std::uint16_t bias;
      if (!take_bias(part, own, bias, lane) && lane == 0) refuse(p, at, token, true);
      if (lane == 0) scales_of(p, at, part.bias_row)[token] = bias;
    }
    if (!encode_part(part, own, y, spare, codes + part.tile_offset, scale, lane) && lane == 0) {
      refuse(p, at, token, true);
    }
    if (lane == 0) scales_of(p, at, i)[token] = scale;
  }
}

__device__ __forceinline__ TilePlace place_of(const CodecArgs& p, unsigned index) {
  const int tile = static_cast<int>(index % kPageTiles),
            rest = static_cast<int>(index / kPageTiles);
  return tile_place(p, rest / p.n_kv_heads, rest % p.n_kv_heads, tile);
}

__global__ void __launch_bounds__(kThreads) encode_any(const __grid_constant__ CodecArgs p) {
  extern __shared__ std::uint32_t shared[];
  const SharedLayout layout(p);
  const TilePlace at = place_of(p, blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  float* const rows =
      reinterpret_cast<float*>(shared + layout.code_words()) + warp * 3 * layout.row;
  for (int token = warp; token < kTileTokens; token += kWarps) {
    encode_token(p, at, token, layout, rows,
                 reinterpret_cast<std::uint8_t*>(shared + token * layout.stride), lane);
  }
  __syncthreads();
  for (int i = 0; i < p.n_parts; ++i) {
    const PartTables& part = p.parts[i];
    pack_tile(TileLines(part, p.is_values, at.tile),
              PlainWords{shared + part.tile_offset / 4, layout.stride},
              codes_of(p, at) + part.code_offset, thread, kThreads);
  }
}

__global__ void __launch_bounds__(kThreads) decode_any(const __grid_constant__ CodecArgs p) {
  extern __shared__ std::uint32_t shared[];
  const SharedLayout layout(p);
  const TilePlace at = place_of(p, blockIdx.x);
  if (at.count == at.skipped) return;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  for (int i = 0; i < p.n_parts; ++i) {
    const PartTables& part = p.parts[i];
    unpack_tile(TileLines(part, p.is_values, at.tile), codes_of(p, at) + part.code_offset,
                PlainWords{shared + part.tile_offset / 4, layout.stride}, thread, kThreads);
  }
  __syncthreads();
  float* const x = reinterpret_cast<float*>(shared + layout.code_words()) + warp * 3 * layout.row;
  float *const y = x + layout.row, *const spare = y + layout.row;
  const std::uint16_t* const order =
      p.channel_order == nullptr ? nullptr : p.channel_order + at.head * p.head_dim;
  for (int token = at.skipped + warp; token < at.count; token += kWarps) {
    const auto* const codes = reinterpret_cast<const std::uint8_t*>(shared + token * layout.stride);
    for (int i = 0; i < p.n_parts; ++i) {
      const PartTables& part = p.parts[i];
      float* const own = x + part.first;
      decode_part(part, codes + part.tile_offset, scales_of(p, at, i)[token], y, spare, lane);
      for (int k = lane; k < part.dim; k += 32) {
        float value = part.of_residual ? __fadd_rn(own[k], y[k]) : y[k];
        if (part.has_bias) {
          value = __fadd_rn(value, half_bits(scales_of(p, at, part.bias_row)[token]));
        }
        own[k] = value;
      }
      __syncwarp();
    }
    for (int i = lane; i < p.head_dim; i += 32) {
      const int channel = order == nullptr ? i : order[i];
      float value = x[i];
      if (p.inverses != nullptr) {
        value = __fmul_rn(value, p.inverses[at.head * p.head_dim + channel]);
      }
      if (p.mean != nullptr) {
        value = __fadd_rn(value, mean_at(p, mean_of(p, at), at.first + token, channel));
      }
      store_dense(p, row_of(p, at) + token * p.token_stride + channel, value);
    }
    __syncwarp();
  }
}

Result<void> launch(void (*kernel)(CodecArgs), const CodecArgs& p, cudaStream_t stream) {
  const int bytes = SharedLayout(p).bytes();
  if (bytes > 48 * 1024) {
    TQC_TRY(check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                  "cudaFuncSetAttribute"));
  }
  const auto tiles = static_cast<unsigned>(p.n_blocks) * static_cast<unsigned>(p.n_kv_heads) *
                     static_cast<unsigned>(kPageTiles);
  kernel<<<tiles, kThreads, static_cast<std::size_t>(bytes), stream>>>(p);
  return check_launch("codec");
}

}  // namespace

Result<void> launch_encode(const CodecArgs& p, cudaStream_t stream) {
  return launch(encode_any, p, stream);
}
Result<void> launch_decode(const CodecArgs& p, cudaStream_t stream) {
  return launch(decode_any, p, stream);
}

}  // namespace tqcache::cuda
