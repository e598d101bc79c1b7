#pragma once
// interop/llama/llama_geometry.h: what a llama.cpp state file leaves to its model to know.
//
// Safe for untrusted input. Works for architectures that this project's decoder does not run: only
// shapes are asked of the GGUF file, never weights.

#include <cstdint>
#include <string>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/tensors/gguf.h"

namespace tqcache::interop {

enum class LlamaLayerKind : std::uint8_t { kAttention, kSlidingWindow, kRecurrent };

struct LlamaLayer {
  LlamaLayerKind kind = LlamaLayerKind::kAttention;
  std::int64_t n_kv_heads = 0;
  std::int64_t k_head_dim = 0;
  std::int64_t v_head_dim = 0;
  std::uint64_t r_values = 0;  // of a recurrent layer's two rows
  std::uint64_t s_values = 0;
};

struct LlamaGeometry {
  std::string architecture;
  std::vector<LlamaLayer> layers;
  std::int64_t window = 0;        // tokens; 0: no layer has one
  std::int64_t n_rot = 0;         // components of a key that RoPE turns
  bool interleaved_keys = false;  // llama.cpp keeps pairs side by side: (0, 1), (2, 3), ...
  bool has_positions_2d = false;  // M-RoPE: cells carry more than a position
};

// Errors: kCorrupt (a value missing or of another kind), kTooLarge, kUnsupported (MLA, and other
//         attention without one key and one value a token, by name).
Result<LlamaGeometry> read_llama_geometry(const tensors::Gguf& model);

}  // namespace tqcache::interop
