#pragma once
// model/loading/model.h: a model loaded from disk: configuration, weights, tokenizer, identity.

#include <filesystem>
#include <memory>
#include <vector>

#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/model/loading/config.h"
#include "tqcache/tokenizer/tokenizer.h"

namespace tqcache::model {

struct Weights;  // model/loading/weights.h

struct Model {
  ModelConfig config;
  std::shared_ptr<const Weights> weights;  // views into `files`
  tokenizer::Tokenizer tokenizer;
  cache::Identity identity;
  std::vector<MappedFile> files;
};

// Loads a GGUF file (of a split model the first part), or a Hugging Face folder (config.json,
// tokenizer.json, *.safetensors; the end of a turn also from tokenizer_config.json and
// generation_config.json, if there are any). The weights stay mapped: do not change the files while
// the model is in use.
//
// Errors: kNotFound, kIo, and those of the readers; the message names the file of a folder.
//         kCorrupt when the file is no GGUF, or the vocabulary is larger than the matrices;
//         kUnsupported when the model has more tensors than its architecture uses.
Result<std::unique_ptr<Model>> load_model(const std::filesystem::path& path);

// An empty cache for this model: dense, with a rotating layer for each layer with a window, and the
// state before the first token, in f32, for each without attention.
// Errors: those of cache::make_cache().
Result<cache::Cache> make_cache(const Model& model, Dtype dtype);
Result<cache::Cache> make_cache(const ModelConfig& config, cache::Identity identity, Dtype dtype);

}  // namespace tqcache::model
