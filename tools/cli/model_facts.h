#pragma once
// tools/cli/model_facts.h: what converting caches asks of a model: whose they are, and what shapes
// a llama.cpp state file has. Also of models that the decoder does not run.

#include <memory>
#include <optional>
#include <string>

#include "tqcache/base/result.h"
#include "tqcache/interop/llama/llama_geometry.h"
#include "tqcache/model/loading/model.h"

namespace tqcache::cli {

struct ModelFacts {
  std::unique_ptr<model::Model> model;             // none: no model, or one that is not run
  std::optional<Error> not_run;                    // why
  std::optional<interop::LlamaGeometry> geometry;  // of a GGUF file, or of a model that is run
};

// `path` may be empty: nothing is known then.
// Errors: those of loading, but for kUnsupported: see ModelFacts::not_run.
Result<ModelFacts> load_model_facts(const std::string& path);

}  // namespace tqcache::cli
