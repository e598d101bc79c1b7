#pragma once
// tools/cli/model_facts.h: models, and the metadata of a model that conversions need.

#include <memory>
#include <optional>
#include <string>

#include "cli/console.h"
#include "tqcache/error.h"
#include "tqcache/interop/llama/llama_geometry.h"
#include "tqcache/model.h"

namespace tqcache::cli {

// Reads a model. A signal meanwhile ends the process at once: hostile tokenizers take seconds.
//
// Errors: those of model::load_model(), with the file; kInterrupted.
Result<std::unique_ptr<model::Model>> load_model(const Console& console, const std::string& path,
                                                 unsigned n_threads = 1);

// Identity and the shapes of llama.cpp state files, also of models that the decoder does not
// support.
struct ModelFacts {
  std::unique_ptr<model::Model> model;             // null: no model, or an unsupported one
  std::optional<Error> not_run;                    // why it is unsupported
  std::optional<interop::LlamaGeometry> geometry;  // of a GGUF file, or of a supported model
};

// `path` may be empty; then the result is empty, too.
//
// Errors: those of loading except kUnsupported: see ModelFacts::not_run.
Result<ModelFacts> load_model_facts(const Console& console, const std::string& path);

}  // namespace tqcache::cli
