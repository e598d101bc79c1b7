#include "model_facts.h"

#include <filesystem>

#include "tqcache/base/file.h"
#include "tqcache/tensors/gguf.h"

namespace tqcache::cli {
namespace {

// The demo kind of model: every layer alike, and nothing but full attention.
interop::LlamaGeometry geometry_of(const model::ModelConfig& config) {
  interop::LlamaGeometry geometry;
  geometry.architecture = config.architecture;
  geometry.n_rot = config.rope.n_dims;
  geometry.interleaved_keys = config.rope.style == cache::RopeStyle::kInterleaved;
  interop::LlamaLayer layer;
  layer.n_kv_heads = config.n_kv_heads;
  layer.k_head_dim = layer.v_head_dim = config.head_dim;
  geometry.layers.assign(static_cast<std::size_t>(config.n_layers), layer);
  return geometry;
}

Result<interop::LlamaGeometry> geometry_of_file(const std::string& path) {
  TQC_TRY_ASSIGN(const MappedFile file, MappedFile::open(path));
  TQC_TRY_ASSIGN(const tensors::Gguf gguf, tensors::read_gguf(file.bytes()));
  return interop::read_llama_geometry(gguf);
}

}  // namespace

Outcome<ModelFacts> load_model_facts(const std::string& path) {
  ModelFacts facts;
  if (path.empty()) return facts;
  auto model = model::load_model(path);
  if (model) {
    facts.model = std::move(model).value();
    facts.geometry = geometry_of(facts.model->config);
    return facts;
  }
  if (model.error().code != ErrorCode::kUnsupported) {
    return Failure{std::move(model).error(), path, false};
  }
  facts.not_run = std::move(model).error();
  std::error_code absent;
  if (std::filesystem::is_directory(path, absent)) return facts;
  TQC_TRY_ASSIGN(facts.geometry, in_file(path, geometry_of_file(path)));
  return facts;
}

}  // namespace tqcache::cli
