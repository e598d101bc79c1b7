#include "cli/model_facts.h"

#include <filesystem>

#include "cli/console.h"
#include "cli/terminal.h"
#include "tqcache/interop/llama/llama_geometry.h"

namespace tqcache::cli {
namespace {

interop::LlamaLayer recurrent_layer(const model::DeltaNetConfig& net) {
  return {.kind = interop::LlamaLayerKind::kRecurrent,
          .r_values = static_cast<std::uint64_t>((net.kernel - 1) * net.conv_size()),
          .s_values = static_cast<std::uint64_t>(net.value_size() * net.key_dim)};
}

// The shapes that llama.cpp would use for the model of a Hugging Face folder.
interop::LlamaGeometry geometry_of(const model::ModelConfig& config) {
  interop::LlamaGeometry geometry;
  const bool has_latents = config.latent.rank > 0;
  geometry.architecture = has_latents ? "deepseek2" : config.architecture;
  geometry.n_rot = config.rope.n_dims;
  const auto* known = interop::find_llama_architecture(geometry.architecture);
  const bool has_windows = known != nullptr && known->windows.period > 0;
  if (known != nullptr) {
    geometry.interleaved_keys = known->rope == interop::LlamaRope::kPairs;
    geometry.has_positions_2d = known->rope == interop::LlamaRope::kHalfSplitWith2d;
  }
  for (std::int64_t i = 0; i < config.n_cache_layers(); ++i) {
    const model::LayerConfig wanted = config.layer(i);
    if (wanted.kind == model::LayerKind::kDeltaNet) {
      geometry.layers.push_back(recurrent_layer(config.delta_net));
      continue;
    }
    interop::LlamaLayer layer;
    layer.n_kv_heads = wanted.heads.n_kv_heads;
    layer.k_head_dim = layer.v_head_dim = wanted.heads.head_dim;
    if (has_latents) layer.v_head_dim = config.latent.rotated;
    layer.is_latent = has_latents;
    if (wanted.window > 0 && has_windows) {
      layer.kind = interop::LlamaLayerKind::kSlidingWindow;
      geometry.window = wanted.window;
    }
    geometry.layers.push_back(layer);
  }
  return geometry;
}

}  // namespace

Result<std::unique_ptr<model::Model>> load_model(const Console& console, const std::string& path,
                                                 unsigned n_threads) {
  const EndsAtFirstSignal scope;
  if (interrupted()) return interrupted_error();
  TQC_TRY_ASSIGN(auto model,
                 in_file(path, model::load_model(path, n_threads, console.access.memory)));
  if (model->tokenizer.guesses_words()) {
    warn(path,
         "the file names no pre-tokenizer (tokenizer.ggml.pre): texts are cut into words as "
         "llama.cpp cuts them then, which may not be as the model learned them; a newer "
         "conversion of the model has the name");
  }
  return model;
}

Result<ModelFacts> load_model_facts(const Console& console, const std::string& path) {
  ModelFacts facts;
  if (path.empty()) return facts;
  auto model = load_model(console, path);
  if (!model && model.error().code != ErrorCode::kUnsupported) return std::move(model).error();
  if (model) {
    facts.model = std::move(model).value();
  } else {
    facts.not_run = std::move(model).error();
  }
  std::error_code absent;
  if (std::filesystem::is_directory(path, absent)) {
    if (facts.model) facts.geometry = geometry_of(facts.model->config);
    return facts;
  }
  TQC_TRY_ASSIGN(facts.geometry, in_file(path, interop::read_llama_geometry(path)));
  return facts;
}

}  // namespace tqcache::cli
