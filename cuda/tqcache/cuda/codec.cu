#include <algorithm>
#include <string>

#include "tqcache/cuda/check.cuh"
#include "tqcache/cuda/codec_args.cuh"
#include "tqcache/cuda/cuda_codec.h"

namespace tqcache::cuda {
namespace {

// Sine and cosine by additions and multiplications alone, as the CPU computes them (codec.md §8).
constexpr int kTerms = 9;
constexpr double kTwoPi = 6.283185307179586;

struct Phasor {
  double cos, sin;
};

__device__ Phasor phasor(double turns) {
  const double quarters = round(4 * turns);
  const double angle = __dmul_rn(__dsub_rn(turns, quarters / 4), kTwoPi);
  const double square = __dmul_rn(angle, angle);
  double cos_terms[kTerms], sin_terms[kTerms];
  double factor = 1;
#pragma unroll
  for (int i = 0; i < kTerms; ++i) {
    cos_terms[i] = factor;
    sin_terms[i] = __ddiv_rn(factor, 2 * i + 1);
    factor = __ddiv_rn(factor, -(2 * i + 1) * (2 * i + 2));
  }
  double cos = 0, sin = 0;
#pragma unroll
  for (int i = kTerms - 1; i >= 0; --i) {
    cos = __dadd_rn(__dmul_rn(cos, square), cos_terms[i]);
    sin = __dadd_rn(__dmul_rn(sin, square), sin_terms[i]);
  }
  sin = __dmul_rn(sin, angle);
  switch (static_cast<int>(quarters - 4 * floor(quarters / 4))) {
    case 0:
      return {cos, sin};
    case 1:
      return {-sin, cos};
    case 2:
      return {-cos, -sin};
    default:
      return {sin, -cos};
  }
}

// out[block, head]: the mean turned to the first token of the block, rounded once.
__global__ void turn_means(const float* mean, const double* turns, int n_pairs, int n_kv_heads,
                           int head_dim, long long first_block, float* out) {
  const long long position = (first_block + blockIdx.x) * kPageTokens;
  out += static_cast<long long>(blockIdx.x) * n_kv_heads * head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < n_pairs; i += static_cast<int>(blockDim.x)) {
    const Phasor at = phasor(__dmul_rn(static_cast<double>(position), turns[i]));
    for (int head = 0; head < n_kv_heads; ++head) {
      const double a = mean[head * head_dim + i], b = mean[head * head_dim + n_pairs + i];
      out[head * head_dim + i] =
          static_cast<float>(__dsub_rn(__dmul_rn(a, at.cos), __dmul_rn(b, at.sin)));
      out[head * head_dim + n_pairs + i] =
          static_cast<float>(__dadd_rn(__dmul_rn(b, at.cos), __dmul_rn(a, at.sin)));
    }
  }
  const int rest = head_dim - 2 * n_pairs;
  for (int i = static_cast<int>(threadIdx.x); i < rest * n_kv_heads;
       i += static_cast<int>(blockDim.x)) {
    const int at = i / rest * head_dim + 2 * n_pairs + i % rest;
    out[at] = mean[at];
  }
}

std::int64_t blocks_of(const TokenRun& run) {
  return (run.n_tokens + kPageTokens - 1) / kPageTokens;
}

bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

Result<CodecArgs> make_args(const DeviceCodec& codec, const DenseRows& rows, const TokenRun& run,
                            const Centering& center, const PackedPages& pages) {
  const CodecTables& tables = codec.tables();
  if (run.n_tokens < 0 || run.n_kv_heads < 1 || run.first_block < 0 || run.n_skipped < 0 ||
      run.n_skipped > kPageTokens) {
    return invalid("codec: numbers of tokens, heads or blocks");
  }
  // A status word holds a token's number and a bit; grids are counted in 31 bits.
  if (run.n_tokens >= std::int64_t{1} << 30 || blocks_of(run) * run.n_kv_heads >= std::int64_t{1}
                                                                                      << 27) {
    return unsupported("codec: so many tokens at once");
  }
  if (!is_aligned(rows.data) || !is_aligned(pages.data) || pages.page_bytes % 16 != 0 ||
      pages.page_bytes < codec.page_bytes(run.n_kv_heads)) {
    return invalid("codec: alignment of rows or pages, or pages that are too small");
  }
  const auto size = static_cast<std::int64_t>(dtype_size(rows.dtype));
  if (rows.token_stride * size % 16 != 0 || rows.head_stride * size % 16 != 0) {
    return invalid("codec: strides that are no multiples of 16 bytes");
  }
  if (center.n_pairs < 0 || 2 * center.n_pairs > tables.head_dim ||
      (center.mean != nullptr && center.n_pairs > 0 &&
       (center.turns == nullptr || center.cos == nullptr || center.sin == nullptr))) {
    return invalid("codec: pairs of a mean that turns");
  }
  if ((center.factors == nullptr) != (center.inverses == nullptr) || !is_aligned(center.factors) ||
      !is_aligned(center.inverses)) {
    return invalid("codec: factors without their inverses, or not aligned to 16 bytes");
  }
  CodecArgs p;
  p.part0 = tables.part0;
  p.parts = tables.parts;
  p.n_parts = tables.n_parts;
  p.n_scale_rows = tables.n_scale_rows;
  p.head_dim = tables.head_dim;
  p.is_values = tables.is_values;
  p.code_bytes = tables.code_bytes;
  p.tile_bytes = tables.tile_bytes;
  p.rows = rows.data;
  p.dtype = rows.dtype;
  p.token_stride = rows.token_stride;
  p.head_stride = rows.head_stride;
  p.n_tokens = run.n_tokens;
  p.n_kv_heads = run.n_kv_heads;
  p.n_blocks = static_cast<int>(blocks_of(run));
  p.n_skipped = run.n_skipped;
  p.channel_order = run.channel_order;
  p.mean = center.mean;
  p.n_pairs = center.mean == nullptr ? 0 : center.n_pairs;
  p.cos = center.cos;
  p.sin = center.sin;
  p.factors = center.factors;
  p.inverses = center.inverses;
  p.pages = reinterpret_cast<std::uint8_t*>(pages.data);
  p.page_bytes = pages.page_bytes;
  p.page_ids = pages.page_ids;
  return p;
}

// Turns the means into the workspace, if they turn.
Result<void> prepare_means(CodecArgs& p, const Centering& center, const TokenRun& run,
                           void* workspace, cudaStream_t stream) {
  if (p.n_pairs == 0) return {};
  auto* const means = static_cast<float*>(workspace);
  turn_means<<<static_cast<unsigned>(p.n_blocks), 128, 0, stream>>>(
      center.mean, center.turns, p.n_pairs, p.n_kv_heads, p.head_dim, run.first_block, means);
  p.mean = means;
  p.mean_stride = static_cast<long long>(p.n_kv_heads) * p.head_dim;
  return check_launch("turn_means");
}

// Null: these arguments have none.
const FastCodec* find_fast(const CodecArgs& p) {
  if (p.n_parts != 1 || p.part0.has_bias || p.channel_order != nullptr ||
      p.part0.transform != codec::TransformKind::kHadamard ||
      p.part0.scale == codec::ScaleRule::kPeak || p.part0.n_bins == 0 ||
      (p.n_pairs != 0 && 2 * p.n_pairs != p.head_dim)) {
    return nullptr;
  }
  for (const auto codecs : {fast_codecs_whole(), fast_codecs_parts_96(), fast_codecs_parts_80()}) {
    for (const FastCodec& one : codecs) {
      if (one.head_dim == p.head_dim) return &one;
    }
  }
  return nullptr;
}

Result<int> multiprocessors() {
  int device = 0, n = 0;
  TQC_TRY(check(cudaGetDevice(&device), "cudaGetDevice"));
  TQC_TRY(check(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device),
                "cudaDeviceGetAttribute"));
  return n;
}

}  // namespace

std::size_t codec_workspace_bytes(const DeviceCodec& codec, const Centering& center,
                                  const TokenRun& run) {
  if (center.mean == nullptr || center.n_pairs == 0) return 0;
  return static_cast<std::size_t>(blocks_of(run) * run.n_kv_heads * codec.tables().head_dim) *
         sizeof(float);
}

Result<void> encode_status(std::uint32_t word) {
  if (word == kNoneRefused) return {};
  const std::string token = "token " + std::to_string(word / 2);
  if (word % 2 == 0) return Error{ErrorCode::kCorrupt, token + ": a component is not finite"};
  return Error{ErrorCode::kUnsupported, token + ": scale or bias beyond f16"};
}

Result<void> encode(const DeviceCodec& codec, const DenseRows& rows, const TokenRun& run,
                    const Centering& center, const PackedPages& pages, void* workspace,
                    std::uint32_t* status, Stream stream) {
  TQC_TRY_ASSIGN(CodecArgs p, make_args(codec, rows, run, center, pages));
  if (p.n_blocks == 0) return {};
  p.status = status;
  TQC_TRY(prepare_means(p, center, run, workspace, stream));
  const FastCodec* const fast = find_fast(p);
  if (fast == nullptr) return launch_encode(p, stream);
  TQC_TRY_ASSIGN(const int n, multiprocessors());
  return fast->encode(p, n, stream);
}

Result<void> decode(const DeviceCodec& codec, const PackedPages& pages, const TokenRun& run,
                    const Centering& center, const DenseRows& rows, void* workspace,
                    Stream stream) {
  TQC_TRY_ASSIGN(CodecArgs p, make_args(codec, rows, run, center, pages));
  if (p.n_blocks == 0) return {};
  TQC_TRY(prepare_means(p, center, run, workspace, stream));
  const FastCodec* const fast = find_fast(p);
  if (fast == nullptr) return launch_decode(p, stream);
  TQC_TRY_ASSIGN(const int n, multiprocessors());
  return fast->decode(p, n, stream);
}

}  // namespace tqcache::cuda
