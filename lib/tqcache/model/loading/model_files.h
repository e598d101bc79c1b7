#pragma once
// model/loading/model_files.h: the tensors of a model, found and mapped. Safe for untrusted input.

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/tensors/tensor.h"

namespace tqcache::model {

struct ModelTensors {
  std::vector<MappedFile> files;
  std::map<std::string, tensors::TensorView> by_name;  // GGUF names; views into `files`
  std::string_view after_attention;                    // as in gguf_name()
};

// Maps model.safetensors of a Hugging Face folder, or the shards that
// model.safetensors.index.json lists. `after_attention`: as in gguf_name().
// Errors: kNotFound, kIo, those of the reader; kCorrupt (the index and the shards disagree),
//         kUnsupported (a tensor that no supported architecture has). The message names the file.
Result<ModelTensors> map_hf_tensors(const std::filesystem::path& folder,
                                    std::string_view after_attention);

// A small file of a folder, whole. Errors: kNotFound, kIo, kTooLarge; the message names the file.
Result<Bytes> read_folder_file(const std::filesystem::path& folder, const char* name);
// The same; empty when the file is not there.
Result<Bytes> read_folder_file_if_any(const std::filesystem::path& folder, const char* name);

}  // namespace tqcache::model
