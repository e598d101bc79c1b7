#pragma once
// tensors/tensor.h: a named array inside a foreign file, as a view of its bytes.

#include <cstdint>
#include <string>
#include <vector>

#include "tqcache/bytes.h"

namespace tqcache::tensors {

// Element types that a reader can size. Only some can be converted to f32 (see weights in model/).
enum class TensorType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kF64,
  kI8,
  kI16,
  kI32,
  kI64,
  kU8,
  kU16,
  kU32,
  kU64,
  kBool,
  kF8E4M3,  // 1 sign, 4 exponent, 3 fraction bits; no infinity, one NaN of each sign
  kF8E5M2,  // the upper half of an f16
  // GGUF's quantized GGML blocks (tensors/block_types.h).
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kIQ4_NL,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kMXFP4,
  kOther,  // sized and bounds-checked, but not readable here; `type_name` names it
};

struct TensorView {
  TensorType type = TensorType::kOther;
  std::string type_name;             // as the file calls it: "BF16", "Q8_0", "Q4_K"
  std::vector<std::uint64_t> shape;  // outermost first, innermost (contiguous) last; [] is a scalar

  // Exactly the bytes for `type` and `shape`, inside the file's memory, which the owner keeps
  // alive. A safetensors file may place them at any address, so copy values out by memcpy.
  ByteView bytes;
};

}  // namespace tqcache::tensors
