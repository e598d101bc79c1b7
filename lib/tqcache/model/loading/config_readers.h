#pragma once
// model/loading/config_readers.h: readers of a model's configuration in GGUF files and in
// config.json.
//
// Safe for untrusted input: every number is checked against a bound before anyone sizes by it.
// Settings that would change the arithmetic and are not implemented are refused, not ignored.
//
// Source: ggml docs/gguf.md; huggingface/transformers models/*/configuration_*.py.

#include <cstdint>
#include <map>
#include <string>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/model.h"
#include "tqcache/tensors/gguf.h"

namespace tqcache::model {

// Layers of a hybrid from one with full attention to the next, where a file does not say it.
inline constexpr std::int64_t kDefaultFullInterval = 4;

using GgufTensors = std::map<std::string, tensors::TensorView>;  // by name

// Errors: kUnsupported (another architecture, other RoPE scaling, and whatever else is not done
//         here, by the name of its key), and those of validate(); kCorrupt when a value is missing.
// The tensors are those of all files that the model stands in; without them those of `file`.
Result<ModelConfig> read_gguf_config(const tensors::Gguf& file);
Result<ModelConfig> read_gguf_config(const tensors::Gguf& file, const GgufTensors& tensors);
Result<ModelConfig> read_hf_config(ByteView config_json);

// A window as wide as the context is none.
void drop_wide_windows(ModelConfig& config);

// Checks every number against its bounds, and that the heads fit together.
// Errors: kCorrupt, kTooLarge; the message names the number.
Result<void> validate(const ModelConfig& config);

}  // namespace tqcache::model
