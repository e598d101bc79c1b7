#pragma once
// tools/cli/model_facts.h: the metadata of a model that conversions need.
//
// Identity and the shapes of llama.cpp state files, also of models that the decoder does not
// support.

#include <memory>
#include <optional>
#include <string>

#include "tqcache/error.h"
#include "tqcache/interop/llama/llama_geometry.h"
#include "tqcache/model.h"

namespace tqcache::cli {

struct ModelFacts {
  std::unique_ptr<model::Model> model;             // null: no model, or an unsupported one
  std::optional<Error> not_run;                    // why it is unsupported
  std::optional<interop::LlamaGeometry> geometry;  // of a GGUF file, or of a supported model
};

// `path` may be empty; then the result is empty, too.
//
// Errors: those of loading except kUnsupported: see ModelFacts::not_run.
Result<ModelFacts> load_model_facts(const std::string& path);

}  // namespace tqcache::cli
