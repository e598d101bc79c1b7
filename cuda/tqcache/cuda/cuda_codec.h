#pragma once
// cuda/cuda_codec.h: packed token blocks in the memory of a GPU, their encoding and decoding.
//
// The bytes are those of the CPU's codec: a page holds what a packed section of a file holds
// (docs/reference/format.md 6.2), so a section can be copied into a page and back as it is.
//
// All pointers in the structs below are device pointers. The functions enqueue work on the caller's
// stream and return at once: they allocate nothing, wait for nothing and keep no state. An error
// that only the data can show (a value that is not finite) goes to a word in device memory.
//
// Spec: docs/reference/codec.md.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tqcache/bytes.h"
#include "tqcache/codec/head_codec.h"
#include "tqcache/error.h"

struct CUstream_st;

namespace tqcache::cuda {

using Stream = CUstream_st*;  // cudaStream_t

struct CodecTables;  // cuda/codec_tables.h

// The tables of one codec in the memory of the current device.
//
// A value: copies share the same memory, which is freed with the last of them. It has to live until
// the work that uses it is done.
class DeviceCodec {
 public:
  // Copies the tables and waits for the copy.
  // Errors: kUnsupported for mode trellis; kIo when the CUDA runtime reports an error.
  static Result<DeviceCodec> make(const codec::HeadCodec& codec);

  const CodecTables& tables() const { return *tables_; }
  const codec::HeadCodec& codec() const { return codec_; }

  // Bytes of a page of n_kv_heads heads with n_sinks dense sink tokens.
  std::int64_t page_bytes(int n_kv_heads, int n_sinks = 0, Dtype dtype = Dtype::kF16) const;

 private:
  DeviceCodec(codec::HeadCodec codec, std::shared_ptr<const CodecTables> tables)
      : codec_(std::move(codec)), tables_(std::move(tables)) {}

  codec::HeadCodec codec_;
  std::shared_ptr<const CodecTables> tables_;
};

// The mean that is subtracted from K or V before encoding (docs/reference/codec.md §8), and the
// factors of what is left.
struct Centering {
  const float* mean = nullptr;  // [n_kv_heads, head_dim]; null: none
  int n_pairs = 0;  // pairs of components that RoPE rotates; 0: the mean does not rotate
  const double* turns = nullptr;  // [n_pairs]: full turns per token
  const float* cos = nullptr;     // [256, n_pairs], by place in the token block
  const float* sin = nullptr;     // likewise
  // Of keys whose codec has factors (docs/reference/codec.md §8, "Factors"): what a component is
  // multiplied by before it is coded, and the inverse. [n_kv_heads, head_dim]; null: none.
  const float* factors = nullptr;
  const float* inverses = nullptr;
};

// Dense head vectors. Components of a vector are contiguous; strides count elements.
// Requires: data and strides are multiples of 16 bytes.
struct DenseRows {
  void* data = nullptr;
  Dtype dtype = Dtype::kF16;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
};

// Pages of the blocks of a run of tokens.
// Requires: data is aligned to 16 bytes, page_bytes a multiple of 16.
struct PackedPages {
  std::byte* data = nullptr;
  std::int64_t page_bytes = 0;
  const std::int32_t* page_ids = nullptr;  // of each block; null: 0, 1, 2, ...
};

// Tokens of one sequence, from the first token of a block on.
struct TokenRun {
  std::int64_t n_tokens = 0;
  std::int64_t first_block = 0;  // its number in the sequence: the position of RoPE
  int n_kv_heads = 0;
  int n_skipped = 0;  // sink tokens of the run's first block: code and scale 0
  const std::uint16_t* channel_order = nullptr;  // [n_kv_heads, head_dim] of mode mixed, or null
};

// Bytes of workspace that encode() and decode() of such a run need.
std::size_t codec_workspace_bytes(const DeviceCodec& codec, const Centering& center,
                                  const TokenRun& run);

// Value of a status word when no vector was refused. Set it with cudaMemsetAsync(word, 0xff, 4).
inline constexpr std::uint32_t kNoneRefused = 0xffffffffu;

// Reads a status word that encode() wrote, once the caller has copied it to the host.
// Errors: as codec::HeadCodec::encode, for the first token that was refused.
Result<void> encode_status(std::uint32_t word);

// Encodes whole blocks. Tokens behind the last get code and scale 0.
//
// Shapes: rows: n_tokens tokens of n_kv_heads heads; pages: ceil(n_tokens / 256).
// Errors: kInvalidArgument for arguments that do not fit; kIo when a launch fails.
// Bytes:  as codec::HeadCodec::encode.
Result<void> encode(const DeviceCodec& codec, const DenseRows& rows, const TokenRun& run,
                    const Centering& center, const PackedPages& pages, void* workspace,
                    std::uint32_t* status, Stream stream);

// The inverse. Sink tokens are not decoded: their rows stay as they are.
// Bytes: as codec::HeadCodec::decode, the mean added, rounded to rows.dtype.
Result<void> decode(const DeviceCodec& codec, const PackedPages& pages, const TokenRun& run,
                    const Centering& center, const DenseRows& rows, void* workspace, Stream stream);

}  // namespace tqcache::cuda
