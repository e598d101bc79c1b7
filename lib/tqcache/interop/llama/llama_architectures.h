#pragma once
// interop/llama/llama_architectures.h: what llama.cpp knows of an architecture by its name alone, as far
// as the shape of its KV cache goes.
//
// Source: llama.cpp src/llama-arch.cpp (names), src/llama-model.cpp (load_hparams,
//         llama_model_rope_type).

#include <cstdint>
#include <string_view>

namespace tqcache::interop {

enum class LlamaRope : std::uint8_t {
  kHalfSplit,        // NEOX
  kPairs,            // NORM, and the converter has reordered the rows of q and k
  kPairsNotKnown,    // NORM; whether the converter reorders was not looked at with a real file
  kHalfSplitWith2d,  // MROPE and IMROPE: half-split for text; cells have more than a position
};

// Layers with a sliding window: all but the last of each `period`, when the file says nothing.
struct LlamaWindows {
  std::int64_t period = 0;          // 0: the architecture has none, whatever the file says
  std::int64_t default_window = 0;  // 0: without the key no layer has a window
};

struct LlamaArchitecture {
  std::string_view name;
  LlamaRope rope = LlamaRope::kHalfSplit;
  LlamaWindows windows = {};
  bool has_recurrent_layers = false;  // Gated DeltaNet
};

// nullptr: not one whose cache is known here.
const LlamaArchitecture* find_llama_architecture(std::string_view name);

}  // namespace tqcache::interop
