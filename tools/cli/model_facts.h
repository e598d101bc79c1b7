#pragma once
// tools/cli/model_facts.h: The metadata of a model that conversions need.
//
// Identity, and the shapes of llama.cpp state files; also of models that the decoder does not run.

#include <memory>
#include <optional>
#include <string>

#include "tqcache/error.h"
#include "tqcache/interop/llama/llama_geometry.h"
#include "tqcache/model.h"

namespace tqcache::cli {

struct ModelFacts {
  std::unique_ptr<model::Model> model;             // none: no model, or one that is not run
  std::optional<Error> not_run;                    // why
  std::optional<interop::LlamaGeometry> geometry;  // of a GGUF file, or of a model that is run
};

// `path` may be empty: the result is empty then.
// Errors: those of loading, but for kUnsupported: see ModelFacts::not_run.
Result<ModelFacts> load_model_facts(const std::string& path);

}  // namespace tqcache::cli
