#pragma once
// interop/llama/llama_geometry.h: the layer shapes of a model, which llama.cpp state files omit.
//
// Safe for untrusted input. Also works for architectures that this project's decoder cannot run:
// only shapes are read from the GGUF file, never weights.
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
  kPairs,            // NORM; the converter has reordered the rows of q and k
  kPairsNotKnown,    // NORM; not verified with a real file whether the converter reorders
  kHalfSplitWith2d,  // MROPE and IMROPE: half-split for text; cells have extra coordinates
};

// Sliding-window layers: all but the last of each `period`, unless the file lists them.
struct LlamaWindows {
  std::int64_t period = 0;          // 0: the architecture has no windows, whatever the file says
  std::int64_t default_window = 0;  // 0: without the key no layer has a window
};

struct LlamaArchitecture {
  std::string_view name;
  LlamaRope rope = LlamaRope::kHalfSplit;
  LlamaWindows windows = {};
  bool has_recurrent_layers = false;  // Gated DeltaNet
};

// nullptr: the cache of this architecture is not known here.
const LlamaArchitecture* find_llama_architecture(std::string_view name);

// Errors: kCorrupt (a value that is missing or has another type), kTooLarge, kUnsupported (MLA and
//         other attention without one key and one value per token; the message names it).
Result<LlamaGeometry> read_llama_geometry(const tensors::Gguf& model);

}  // namespace tqcache::interop
