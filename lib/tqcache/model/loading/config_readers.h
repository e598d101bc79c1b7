#pragma once
// model/loading/config_readers.h: readers of a model's configuration in GGUF files and in
// config.json.
//
// Safe for untrusted input: every number is checked against a bound before it determines a size.
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

// Distance between layers with full attention in a hybrid model, if the file does not state it.
inline constexpr std::int64_t kDefaultFullInterval = 4;

using GgufTensors = std::map<std::string, tensors::TensorView>;  // by name

// Errors: kUnsupported (another architecture, another RoPE scaling, and any other setting that is
//         not implemented, named by its key), and those of validate(); kCorrupt when a value is
//         missing. `tensors`: those of all files of the model; without them those of `file`.
Result<ModelConfig> read_gguf_config(const tensors::Gguf& file);
Result<ModelConfig> read_gguf_config(const tensors::Gguf& file, const GgufTensors& tensors);
Result<ModelConfig> read_hf_config(ByteView config_json);

// A window as wide as the context counts as no window.
void drop_wide_windows(ModelConfig& config);

// Checks the sizes of latent attention, as validate() does.
Result<void> validate_latents(const ModelConfig& config);

// Checks every number against its bounds, and that the numbers of heads are consistent.
// Errors: kCorrupt, kTooLarge; the message names the number.
Result<void> validate(const ModelConfig& config);

}  // namespace tqcache::model
