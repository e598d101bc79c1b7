#pragma once
// interop/llama/llama_states.h: recurrent state as llama.cpp stores it, made of any program's.

#include <span>
#include <string_view>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/interop.h"

namespace tqcache::interop {

// The R and S rows of a recurrent layer (docs/reference/interop.md, "Recurrent state").
struct LlamaStateRows {
  std::vector<float> r, s;
};

// Checks that llama_state_rows() can convert arrays of this description.
// Errors: kUnsupported (arrays of an unknown kind), kMismatch (sizes that differ from the model's).
Result<void> check_llama_state(const LlamaLayer& model, const cache::StateDesc& state);

// Converts the state of a gated delta net: llama.cpp's own rows, that of this project's decoder and
// of mlx-lm ("0", "1"), or that of transformers.
//
// Requires: check_llama_state() accepts the description; arrays[i] holds the values of array i.
LlamaStateRows llama_state_rows(std::string_view architecture, const cache::StateDesc& state,
                                std::span<const AlignedBytes> arrays);

}  // namespace tqcache::interop
