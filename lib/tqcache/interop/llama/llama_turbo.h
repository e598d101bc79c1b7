#pragma once
// interop/llama/llama_turbo.h: rows of the types "turbo2", "turbo3" and "turbo4" of a fork of llama.cpp
// (not the codecs of this project: other signs, codebooks and norms).
//
// Spec:   docs/reference/interop.md, "llama.cpp".
// Source: TheTom/llama-cpp-turboquant ggml/src/ggml-common.h, ggml-turbo-quant.c,
//         ggml-cuda/turbo-wht.cu, as of May 2026.

#include <cstdint>
#include <span>
#include <string_view>

#include "tqcache/base/bytes.h"
#include "tqcache/base/result.h"

namespace tqcache::interop {

inline constexpr std::uint64_t kTurboBlock = 128;  // components; the last block of a head is padded

struct LlamaTurbo {
  std::string_view name;
  int bits;
  std::uint64_t block_bytes;
};

// nullptr: no such layout.
const LlamaTurbo* find_llama_turbo(std::string_view name);

// Bytes of a row of head vectors.
std::uint64_t turbo_row_bytes(const LlamaTurbo& turbo, std::int64_t n_heads, std::int64_t head_dim);

// One head vector: looked up, scaled, and turned back.
// Requires: `blocks` holds as many blocks as values.size() components fill or begin.
// Errors:   kUnsupported (turbo4 with a residual, as forks had it once: blocks of one size).
Result<void> decode_turbo_head(const LlamaTurbo& turbo, ByteView blocks, std::span<float> values);

}  // namespace tqcache::interop
