#pragma once
// interop/llama/llama_geometry.h: the layer shapes of a model, which a llama.cpp state file does
// not contain.
//
// Safe for untrusted input. Works for architectures that this project's decoder does not run: only
// shapes are read from the GGUF file, never weights.
//
// Source: llama.cpp src/llama-arch.cpp (names), src/llama-model.cpp (load_hparams,
//         llama_model_rope_type).

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/interop.h"
#include "tqcache/tensors/gguf.h"

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

// Errors: kCorrupt (a value missing or of another kind), kTooLarge, kUnsupported (MLA, and other
//         attention without one key and one value a token, by name).
Result<LlamaGeometry> read_llama_geometry(const tensors::Gguf& model);

}  // namespace tqcache::interop
