#pragma once
// interop/llama/llama_profile.h: the layouts that state files of llama.cpp have had. Several of them
// share a version number, so that only an attempt tells them apart.
//
// Source: ggml-org/llama.cpp pull requests 9294, 13194, 13706, 14363, 18862, 20132, 27762, 28498.

#include <cstdint>
#include <string>
#include <vector>

#include "tqcache/interop/llama/llama_geometry.h"
#include "tqcache/interop/llama/llama_state.h"

namespace tqcache::interop {

// What stands in a session between the name of the architecture and the cells.
enum class LlamaOutputs : std::uint8_t {
  kNone,
  kOutputs,        // logits and embeddings of the last batch
  kRngAndOutputs,  // the state of the sampler before them
};

struct LlamaProfile {
  LlamaOutputs outputs = LlamaOutputs::kNone;
  bool has_streams = true;        // cells are in streams, whose number comes first
  std::uint64_t cell_ext = 0;     // bytes in a cell between its sequences' number and their ids
  bool has_rotations = false;     // how rows are rotated stands before them
  bool windows_are_apart = true;  // sliding-window layers have a section of cells of their own
  std::string words = {};         // "outputs, cells in streams"
  bool operator==(const LlamaProfile&) const = default;
};

// The layouts that a file of this model may have, the latest first; such as do not differ for it
// are there once. Empty: no such version is known.
std::vector<LlamaProfile> llama_profiles(LlamaFile kind, std::uint32_t version,
                                         const LlamaGeometry& model);

}  // namespace tqcache::interop
