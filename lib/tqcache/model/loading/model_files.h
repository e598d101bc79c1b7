#pragma once
// model/loading/model_files.h: the mapped files and tensors of a model. Safe for untrusted input.

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/access.h"
#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/model.h"
#include "tqcache/tensors/gguf.h"
#include "tqcache/tensors/tensor.h"

namespace tqcache::model {

struct ModelTensors {
  std::vector<MappedFile> files;
  std::map<std::string, tensors::TensorView> by_name;  // GGUF names; views into `files`
  std::vector<AlignedBytes> rearranged = {};           // other memory that `by_name` views
};

// Maps model.safetensors of a Hugging Face folder, or the shards listed in
// model.safetensors.index.json. Tensors of layers behind the last one, which predict further
// tokens, are left out if the configuration has such layers. Experts that WeightLayout calls
// transposed are copies.
// Errors: kNotFound, kIo, those of the reader; kCorrupt (the index and the shards disagree),
//         kUnsupported (a tensor that no supported architecture has). The message names the file.
Result<ModelTensors> map_hf_tensors(const std::filesystem::path& folder, const ModelConfig& config,
                                    const MemoryBudget& memory = {});

// Reads a small file of a folder. Errors: kNotFound, kIo, kTooLarge; the message names the file.
Result<Bytes> read_folder_file(const std::filesystem::path& folder, const char* name);
// As read_folder_file(); empty if the file does not exist.
Result<Bytes> read_folder_file_if_any(const std::filesystem::path& folder, const char* name);

// Split GGUF models
//
// A split model is named by its first part, NAME-00001-of-00003.gguf, which has the metadata; the
// others lie next to it. Every part states its index (split.no, from 0) and the number of parts
// (split.count); split.tensors.count is the total number of tensors.
//
// Source: llama.cpp src/llama-model-loader.cpp, tools/gguf-split.
//
// Maps the other parts of a model whose first part is mapped and read; does nothing if the model is
// not split.
//
// Errors: kInvalidArgument (`path` is not the first part, or does not have the name of one);
//         kNotFound, kIo and those of read_gguf (the message names the file); kCorrupt (parts that
//         contradict each other, a repeated tensor); kTooLarge (more than 1,024 parts).
Result<ModelTensors> map_gguf_parts(const std::filesystem::path& path, MappedFile mapped,
                                    const tensors::Gguf& first);

// GGUF's name of a Hugging Face tensor: "model.layers.3.self_attn.q_proj.weight" ->
// "blk.3.attn_q.weight"; empty if it is unknown. Parts that GGUF only names as a whole get composed
// names: "blk.3.ffn_gate.5.weight" for expert 5 alone. `after_attention` is GGUF's name of
// post_attention_layernorm, which depends on the family (WeightLayout::after_attention).
std::string gguf_name(std::string_view hf_name,
                      std::string_view after_attention = "ffn_norm.weight");

// Returns whether a tensor of a Hugging Face folder is not part of the language model or follows
// from the configuration: vision, prediction of further tokens, RoPE's angles.
bool is_unused_hf_tensor(std::string_view hf_name);

}  // namespace tqcache::model
