#pragma once
// codec/kernels/kernels.h: one table of inner loops per instruction set, and its selection.
//
// The functions of all tables do the same; the scalar table is the definition. Encoding and
// decoding give the same bytes on every table; scores and sums agree within the bounds stated here,
// and do not depend on the number of threads.
//
// These are the raw loops: they do no checks. head_queries.h, block_codec.h, row_transform.h and
// trellis.h prepare their arguments.
//
// Threads: a table is immutable, and its functions keep no state.
// Spec:    docs/reference/codec.md, "Kernels".

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tqcache/bytes.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/codec/kernels/code_tables.h"
#include "tqcache/codec_spec.h"
#include "tqcache/error.h"

namespace tqcache::codec {

// The instruction sets with kernels, slowest first. Every program has the scalar kernels; the
// others depend on the build target and on the CPU.
enum class Isa : std::uint8_t { kScalar, kNeon, kAvx2, kAvx512 };

// The vector that is subtracted from head vectors before encoding: one per kv head and token block.
// After RoPE it is the same for every token. Before RoPE it rotates with the token: components i
// and i + n_pairs together, by an angle that depends only on i and on the token's position in the
// block (docs/reference/codec.md §8).
//
// A view: the caller keeps the memory.
struct Center {
  const float* mean = nullptr;  // [head_dim], at the block's first token; null: no center
  std::size_t n_pairs = 0;      // 0: it does not rotate
  const float* cos = nullptr;   // [256, n_pairs], by position in the block
  const float* sin = nullptr;   // likewise
};

struct RotationTables;  // codec/quantizer.h
struct SinusoidTable;   // codec/kernels/sinusoid_table.h
struct Sinusoids;       // codec/kernels/sinusoid_table.h
struct TrellisStep;     // codec/trellis/trellis_search.h
struct TrellisTask;     // codec/trellis/trellis_search.h

// One packed block of one kv head.
struct PackedBlock {
  BlockShape shape;
  const std::uint8_t* codes = nullptr;    // [shape.block_bytes()]
  const std::uint16_t* scales = nullptr;  // [256], f16 bits
  std::size_t n_tokens = 0;               // compute only the first n_tokens: 1 to 256
};

// One dense block of one kv head.
struct DenseBlock {
  Dtype dtype = Dtype::kF16;
  const std::byte* rows = nullptr;  // [n_tokens, head_dim] of dtype, at any alignment
  std::size_t head_dim = 0;
  std::size_t n_tokens = 0;  // 1 to 256
};

// The query heads that share a kv head, in the forms that the kernels multiply; made by QueryGroup.
// Rows are padded with zeros to `stride`, a multiple of 32.
struct QueryRows {
  std::size_t n_queries = 0;
  std::size_t stride = 0;
  const float* values = nullptr;  // [n_queries, stride]

  // The same as integers in bytes: query q is the sum of rows q * n_levels + level, each times its
  // multiplier.
  std::size_t n_levels = 1;            // 1 or 2
  const std::int8_t* bytes = nullptr;  // [n_queries * n_levels, stride]
  const float* multipliers = nullptr;  // [n_queries * n_levels]
  const std::int32_t* sums = nullptr;  // [n_queries * n_levels]: sum of each row of `bytes`
};

// The softmax weights of those query heads for the tokens of a block: [n_queries, stride].
struct WeightRows {
  std::size_t n_queries = 0;
  std::size_t stride = 0;  // n_tokens or more
  const float* values = nullptr;
};

// The destination of results: row q begins at values + q * stride.
struct OutputRows {
  float* values = nullptr;
  std::size_t stride = 0;
};

// Head vectors to encode, or decoded ones: row i begins at rows + i * stride bytes.
struct VectorRows {
  Dtype dtype = Dtype::kF32;
  const std::byte* rows = nullptr;
  std::size_t stride = 0;
};
struct MutableVectorRows {
  Dtype dtype = Dtype::kF32;
  std::byte* rows = nullptr;
  std::size_t stride = 0;
};

// Head vectors after a transform, before the inverse transform to the values of the cache.
struct TransformedRows {
  const float* rows = nullptr;  // [n, head_dim]
  std::size_t n = 0;
  std::size_t head_dim = 0;
  bool rotates = false;  // from before RoPE: they rotate like the center
};

// A product of small matrices: out[r][i] = sum over j of in(r, j) * matrix[j][i], where in(r, j) is
// at r * row_stride + j * depth_stride.
struct RowTransformTask {
  const float* in = nullptr;
  std::size_t row_stride = 0;
  std::size_t depth_stride = 0;
  const float* matrix = nullptr;  // [depth, dim]
  float* out = nullptr;           // [n, dim]
  std::size_t n = 0;
  std::size_t depth = 0;
  std::size_t dim = 0;
  bool is_lower = false;  // entries above the diagonal are not needed
};

// Trellis codes (codec/trellis/trellis_search.h). Bytes: identical on every table.
struct TrellisKernels {
  // Viterbi search. Returns the first vector with a component that is not finite, or n_vectors.
  std::size_t (*search)(const TrellisTask&);
  // One component of up to 256 vectors: symbols to codes, and codes to symbols.
  void (*to_codes)(const TrellisStep&);
  void (*to_symbols)(const TrellisStep&);
};

// Long loops of f64 with independent elements (codec/trellis/symmetric_eigen.h).
// Bytes: identical on every table.
struct DoubleLoops {
  // to[j] += factor * from[j]
  void (*add_multiple)(const double* from, double factor, std::size_t n, double* to);
  // to[j] -= a * v[j] + b * w[j]
  void (*subtract_two)(double a, const double* v, double b, const double* w, std::size_t n,
                       double* to);
  // (first[j], second[j]) = (c * first[j] - s * second[j], s * first[j] + c * second[j])
  void (*rotate)(double c, double s, std::size_t n, double* first, double* second);
};

struct Kernels {
  Isa isa;
  const char* name;  // for display and for TQCACHE_ISA: "scalar", "neon", "avx2", "avx512"

  // scores[q][t] = scale[t] * <query q, c[codes of t]>, for keys and rotated queries.
  //
  // exact: f32 throughout; within 1e-6 (root mean square, relative to |query| |key|) of the same
  //        sum in f64.
  // fast:  products of bytes, within 1e-2. Equal to exact if a CPU has no faster kernel for the
  //        width of the codes.
  using Score = void (*)(const PackedBlock&, const CodeTables&, const QueryRows&, OutputRows);
  Score score_exact;
  Score score_fast;

  // out[q][i] += sum over t of weights[q][t] * scale[t] * c[code i of t], for values; the sum must
  // still be rotated back. Bounds as above, relative to the root of the sum of (|weight|
  // |value|)^2.
  using Accumulate = void (*)(const PackedBlock&, const CodeTables&, const WeightRows&, OutputRows);
  Accumulate accumulate_exact;
  Accumulate accumulate_fast;

  // The same for dense keys and values, in f32.
  void (*score_dense)(const DenseBlock&, const QueryRows&, OutputRows);
  void (*accumulate_dense)(const DenseBlock&, const WeightRows&, OutputRows);

  // scores[q][t] += the sum of the sinusoids of q at token t of a block, for all 256 tokens.
  //
  // exact: f32 throughout.
  // fast:  16-bit integers, within 2e-4 (root mean square, relative to the length of the query's
  //        amplitudes). Equal to exact if a CPU has no faster kernel.
  using AddSinusoids = void (*)(const SinusoidTable&, const Sinusoids&, OutputRows);
  AddSinusoids add_sinusoids_exact;
  AddSinusoids add_sinusoids_fast;

  // out[i] = x[i] minus the center at token first_token + i of the block, in f32.
  // Shapes: out [n, head_dim]. Bytes: identical on every table.
  void (*center_rows)(VectorRows x, std::size_t n, std::size_t head_dim, const Center&,
                      std::size_t first_token, float* out);

  // The inverse: rows, rotated by the position of their token in the block if they rotate, plus the
  // center at token first_token + i, in f32; then rounded to the dtype of `out`.
  // Bytes: identical on every table.
  void (*restore_rows)(const TransformedRows&, const Center&, std::size_t first_token,
                       MutableVectorRows out);

  // Encodes up to sixteen head vectors, the lanes of a group of keys: lines of bytes in the layout
  // of block_layout.h, zero beyond head_dim and n, in whole units; and the scales. Returns a bit
  // for each vector that Quantizer::encode rejects.
  //
  // Shapes: lines [ceil(head_dim / 32) * 8, 64]; scales [n].
  // Bytes:  as Quantizer::encode on every table.
  std::uint32_t (*encode_lines)(const RotationTables&, VectorRows, std::size_t n,
                                std::uint8_t* lines, std::uint16_t* scales);

  // The inverse: lines of bytes of sixteen tokens to up to sixteen head vectors.
  // Bytes: as Quantizer::decode, rounded to the dtype, on every table.
  void (*decode_lines)(const RotationTables&, const std::uint8_t* lines,
                       const std::uint16_t* scales, std::size_t n, MutableVectorRows);

  // Converts sixteen components of sixteen tokens from the order of keys to that of values, or
  // back: transposes lane and position in the lane. Shapes: in, out [4, 64]; not the same memory.
  void (*transpose_lines)(const std::uint8_t* in, std::uint8_t* out);

  // The first components of all rows of a product, as many as fill whole registers. Returns their
  // number; row_transform.h computes the others. Bytes: identical on every table.
  std::size_t (*multiply_rows)(const RowTransformTask&);

  TrellisKernels trellis;
  DoubleLoops doubles;
};

// The tables that this program contains and this CPU can run, slowest first. The scalar table is
// always included.
std::span<const Kernels* const> all_kernels();

const Kernels& scalar_kernels();

// The default table, chosen once per process: the fastest of all_kernels(), or the one that the
// environment variable TQCACHE_ISA names. A name that find_kernels() rejects is ignored here;
// programs report it to their user.
const Kernels& best_kernels();

// The table of that name; for an empty name, the fastest.
// Errors: kInvalidArgument for an unknown name; kUnsupported for one that this CPU or this program
//         does not have. The message names the available ones.
Result<const Kernels*> find_kernels(std::string_view name);

}  // namespace tqcache::codec
