#pragma once
// cuda/codec_args.cuh: arguments of the encoding and decoding kernels.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "tqcache/bytes.h"
#include "tqcache/cuda/codec_tables.h"
#include "tqcache/error.h"

namespace tqcache::cuda {

// A tile is 32 tokens of a kv head: they fill whole units of packed codes, of keys and of values.
inline constexpr int kTileTokens = 32;
inline constexpr int kPageTiles = kPageTokens / kTileTokens;

struct CodecArgs {
  PartTables part0;
  const PartTables* parts = nullptr;
  int n_parts = 0;
  int n_scale_rows = 0;
  int head_dim = 0;
  bool is_values = false;
  int code_bytes = 0;  // of a kv head in a page
  int tile_bytes = 0;  // of a token in a tile, a byte for each code

  void* rows = nullptr;
  Dtype dtype = Dtype::kF16;
  long long token_stride = 0;
  long long head_stride = 0;
  long long n_tokens = 0;
  int n_kv_heads = 0;
  int n_blocks = 0;
  int n_skipped = 0;
  const std::uint16_t* channel_order = nullptr;

  const float* mean = nullptr;  // of head 0 of block 0; null: none
  long long mean_stride = 0;    // from block to block: 0 when the mean does not rotate
  int n_pairs = 0;
  const float* cos = nullptr;
  const float* sin = nullptr;
  const float* factors = nullptr;   // [n_kv_heads, head_dim]; null: none
  const float* inverses = nullptr;  // likewise

  std::uint8_t* pages = nullptr;
  long long page_bytes = 0;
  const int* page_ids = nullptr;
  std::uint32_t* status = nullptr;
};

// One tile's place.
struct TilePlace {
  int block, head, tile;
  int first;    // token of the block
  int count;    // tokens, 0 to 32
  int skipped;  // of them
};

__device__ __forceinline__ TilePlace tile_place(const CodecArgs& p, int block, int head, int tile) {
  TilePlace at{block, head, tile, tile * kTileTokens, 0, 0};
  const long long left =
      p.n_tokens - static_cast<long long>(block) * kPageTokens - tile * kTileTokens;
  at.count = static_cast<int>(left < 0 ? 0 : left < kTileTokens ? left : kTileTokens);
  if (block == 0) {
    const int skipped = p.n_skipped - at.first;
    at.skipped = skipped < 0 ? 0 : skipped < at.count ? skipped : at.count;
  }
  return at;
}

__device__ __forceinline__ std::uint8_t* page_of(const CodecArgs& p, int block) {
  return p.pages + (p.page_ids == nullptr ? block : p.page_ids[block]) * p.page_bytes;
}
__device__ __forceinline__ std::uint8_t* codes_of(const CodecArgs& p, const TilePlace& at) {
  return page_of(p, at.block) + static_cast<long long>(at.head) * p.code_bytes;
}
// f16 bits of the tile's tokens in a row of scales or biases.
__device__ __forceinline__ std::uint16_t* scales_of(const CodecArgs& p, const TilePlace& at,
                                                    int row) {
  return reinterpret_cast<std::uint16_t*>(page_of(p, at.block) +
                                          static_cast<long long>(p.n_kv_heads) * p.code_bytes) +
         (static_cast<long long>(at.head) * p.n_scale_rows + row) * kPageTokens + at.first;
}
// Element of the dense rows at which the tile begins.
__device__ __forceinline__ long long row_of(const CodecArgs& p, const TilePlace& at) {
  return (static_cast<long long>(at.block) * kPageTokens + at.first) * p.token_stride +
         at.head * p.head_stride;
}

// A token number and what is wrong with it; the least wins.
__device__ __forceinline__ void refuse(const CodecArgs& p, const TilePlace& at, int token,
                                       bool is_unsupported) {
  const long long number = static_cast<long long>(at.block) * kPageTokens + at.first + token;
  atomicMin(p.status, static_cast<std::uint32_t>(number) * 2 + (is_unsupported ? 1 : 0));
}

// Kernels of mode mse with a Hadamard rotation, for one size of heads.
struct FastCodec {
  using Launch = Result<void> (*)(const CodecArgs&, int multiprocessors, cudaStream_t);
  int head_dim;
  Launch encode, decode;
};
// In files of their own, so that they are compiled at the same time.
std::span<const FastCodec> fast_codecs_whole();
std::span<const FastCodec> fast_codecs_parts_96();
std::span<const FastCodec> fast_codecs_parts_80();

// Kernels of everything.
Result<void> launch_encode(const CodecArgs& p, cudaStream_t stream);
Result<void> launch_decode(const CodecArgs& p, cudaStream_t stream);

}  // namespace tqcache::cuda
