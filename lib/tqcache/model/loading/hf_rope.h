#pragma once
// model/loading/hf_rope.h: the RoPE of a config.json, in the forms that transformers has had for
// it. Safe for untrusted input.
//
// Not part of the public interface: it shows the JSON library.
//
// Source: huggingface/transformers modeling_rope_utils.py, models/gemma3 and models/phi3.

#include "tqcache/base/json.h"
#include "tqcache/base/result.h"
#include "tqcache/model/loading/architecture.h"
#include "tqcache/model/loading/config.h"

namespace tqcache::model {

// Fills in config.rope and config.rope_magnitude, and cuts config.context_length where RoPE
// changes beyond it. Requires: config.head_dim and config.context_length are set.
// Errors: kUnsupported (the kind of scaling), kCorrupt.
Result<void> read_hf_rope(const Json& root, const Architecture& family, ModelConfig& config);

// The RoPE of layers with a window: config.rope where the file has one for all.
Result<cache::Rope> read_hf_local_rope(const Json& root, const Architecture& family,
                                       const ModelConfig& config);

}  // namespace tqcache::model
