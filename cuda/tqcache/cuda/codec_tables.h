#pragma once
// cuda/codec_tables.h: the tables of a codec as kernels see them. Of this module only.

#include <cstdint>

#include "tqcache/codec_spec.h"

namespace tqcache::cuda {

inline constexpr int kPageTokens = 256;
inline constexpr int kMaxBins = 8192;
// The power of two in head_dim, within which the Walsh-Hadamard transform is.
template <int kDim>
inline constexpr int kPartSize = kDim & -kDim;

// One part; all pointers are device pointers.
struct PartTables {
  int first = 0;  // channel
  int dim = 0;
  int bits = 0;
  codec::ScaleRule scale = codec::ScaleRule::kUnbiased;
  codec::TransformKind transform = codec::TransformKind::kNone;
  int rounds = 1;
  int part_size = 1;  // of kHadamard: the power of two in dim
  float factor = 1;   // of kHadamard: 1 / sqrt(dim)
  bool of_residual = false;
  bool has_bias = false;
  bool bias_is_smallest = false;
  int bias_row = 0;
  int code_offset = 0;  // bytes, in the codes of a kv head
  int block_bytes = 0;
  int tile_offset = 0;                // bytes, in a row of code bytes of a token
  const float* signs = nullptr;       // [rounds, dim]
  const float* cas = nullptr;         // [dim / part_size]
  const float* matrix = nullptr;      // [dim, dim]
  const float* centroids = nullptr;   // [2^bits]
  const float* boundaries = nullptr;  // [2^bits - 1]

  // Bins of equal width with at most one boundary each. The bin of y is rint(y * bins_per_unit),
  // and entry `bin mod n_bins` is its boundary (or infinity) and, as i32, the number of boundaries
  // in lower bins. For |y| up to 1, and a little more.
  int n_bins = 0;  // a power of two; 0: there is no such width
  float bins_per_unit = 0;
  const float* bins = nullptr;  // [n_bins, 2]
};

struct CodecTables {
  CodecTables() = default;
  CodecTables(const CodecTables&) = delete;
  CodecTables& operator=(const CodecTables&) = delete;
  ~CodecTables();

  int head_dim = 0;
  bool is_values = false;  // the order of codes
  codec::Mode mode = codec::Mode::kMse;
  int n_parts = 0;
  int n_scale_rows = 0;
  int code_bytes = 0;                 // of a kv head in a block
  int tile_bytes = 0;                 // code bytes of a token, parts padded to multiples of 32
  PartTables part0;                   // a copy, for kernels of a single part
  const PartTables* parts = nullptr;  // [n_parts]
  void* memory = nullptr;             // all of the above
};

}  // namespace tqcache::cuda
