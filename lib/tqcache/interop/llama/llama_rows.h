#pragma once
// interop/llama/llama_rows.h: rows of a llama.cpp KV cache: number formats (ggml's, and "turbo2",
// "turbo3", "turbo4" of a fork), order of components, Hadamard transform of quantized rows.
//
// The fork's types are not the codecs of this project: signs, codebooks and norms differ.
//
// Spec:   docs/reference/interop.md, "llama.cpp".
// Source: ggml src/ggml-quants.c, ggml-common.h; llama.cpp src/llama-kv-cache.cpp;
//         TheTom/llama-cpp-turboquant ggml/src/ggml-common.h, ggml-turbo-quant.c,
//         ggml-cuda/turbo-wht.cu, as of May 2026.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tqcache/bytes.h"
#include "tqcache/error.h"

namespace tqcache::interop {

// A type that rows of a KV cache may have.
struct LlamaRowType {
  std::uint32_t id;
  std::string_view name;       // "f16", "q8_0"
  std::uint64_t block_values;  // 1 for f32, f16, bf16; 32 for the others
  std::uint64_t block_bytes;
  std::optional<Dtype> dense;  // nullopt: a quantized type
};

// nullptr: unknown type. Type ids of forks are not known here.
const LlamaRowType* find_row_type(std::uint32_t id);
const LlamaRowType* find_row_type(std::string_view name);
std::span<const LlamaRowType> row_types();  // all that are known

// Bytes of `n_values`. Requires: block_values divides them.
std::uint64_t row_bytes(const LlamaRowType& type, std::uint64_t n_values);

// Converts between a row and f32 as ggml does (quantize_row_*_ref), bit-exact for finite values. On
// some CPUs llama.cpp encodes q8_0 differently, which can give the neighboring code where a value
// lies midway between two. Requires: `row` holds row_bytes(type, values.size()).
void decode_row(const LlamaRowType& type, ByteView row, std::span<float> values);
void encode_row(const LlamaRowType& type, std::span<const float> values, std::span<std::byte> row);

// x = H x for each run of `size` components, where H is the Walsh matrix in natural order divided
// by sqrt(size); it is its own inverse. llama.cpp multiplies by the matrix in f32, in a summation
// order that depends on the CPU; here sums are f64 and rounded once, which is as near as possible
// to every order.
// Requires: size is a power of two that divides x.size().
void hadamard(std::int64_t size, std::span<float> x);

// The run lengths that llama.cpp rotates: for keys the largest power of two, at least 64, that
// divides head_dim; for values 64. 0: head vectors of that size are not rotated.
std::int64_t key_rotation_size(std::int64_t head_dim);
std::int64_t value_rotation_size(std::int64_t head_dim);

// Reorders the first n_rot components from interleaved pairs (0, 1), (2, 3), ... to half-split
// order, and back. `x` is one head vector with `size` bytes per component.
// Requires: n_rot is even and at most the number of components; x has at most cache::kMaxHeadDim
//           components of at most 4 bytes.
void to_half_split(std::int64_t n_rot, std::size_t size, std::span<std::byte> x);
void to_interleaved(std::int64_t n_rot, std::size_t size, std::span<std::byte> x);

inline constexpr std::uint64_t kTurboBlock = 128;  // components; the last block of a head is padded

struct LlamaTurbo {
  std::string_view name;
  int bits;
  std::uint64_t block_bytes;
};

// nullptr: unknown layout.
const LlamaTurbo* find_llama_turbo(std::string_view name);

// Bytes of a row of head vectors.
std::uint64_t turbo_row_bytes(const LlamaTurbo& turbo, std::int64_t n_heads, std::int64_t head_dim);

// Decodes one head vector: looks up the centroids, scales, and undoes the rotation.
// Requires: `blocks` holds the blocks that values.size() components occupy, the last one possibly
//           in part.
// Errors:   kUnsupported (turbo4 with a residual, which forks once wrote in blocks of the same
//           size).
Result<void> decode_turbo_head(const LlamaTurbo& turbo, ByteView blocks, std::span<float> values);

}  // namespace tqcache::interop
