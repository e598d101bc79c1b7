#include "tqcache/model/layer_check.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "tqcache/base/result.h"

namespace tqcache::model {
namespace {

Result<void> check_shape(cache::HeadShape own, cache::HeadShape model) {
  if (own == model) return {};
  return mismatch(std::to_string(own.n_kv_heads) + " kv heads of " + std::to_string(own.head_dim) +
                  " components; the model has " + std::to_string(model.n_kv_heads) + " of " +
                  std::to_string(model.head_dim));
}

Result<void> check_full(const cache::Layer& layer, const ModelConfig& config) {
  const auto refuse = [](std::string_view kind) -> Result<void> {
    return invalid(std::string(kind) + " layer, which this model does not have");
  };
  return std::visit(Overload{[&](const cache::AttentionLayer& attention) {
                               return check_shape(attention.shape, config.head_shape());
                             },
                             [&](const cache::WindowLayer&) { return refuse("a rotating"); },
                             [&](const cache::StateLayer&) { return refuse("an arrays"); }},
                    layer);
}

// A window of the model's size, or of one token less: other programs do not count the token that
// is being computed.
Result<void> check_size(const cache::WindowLayer& layer, std::int64_t size,
                        const ModelConfig& config) {
  const cache::Window& window = layer.window;
  TQC_TRY(check_shape(layer.attention.shape, config.head_shape()));
  if (window.keep == 0 && (window.size == size || window.size + 1 == size)) return {};
  return mismatch("a window of " + std::to_string(window.size) + " tokens, " +
                  std::to_string(window.keep) + " of them the first ones; the model has one of " +
                  std::to_string(size));
}

Result<void> check_window(const cache::Layer& layer, std::int64_t size, const ModelConfig& config) {
  const auto refuse = [&](std::string_view kind) -> Result<void> {
    return mismatch(std::string(kind) + "; the model has a window of " + std::to_string(size) +
                    " tokens");
  };
  return std::visit(
      Overload{[&](const cache::AttentionLayer&) { return refuse("full attention"); },
               [&](const cache::WindowLayer& window) { return check_size(window, size, config); },
               [&](const cache::StateLayer&) { return refuse("an arrays layer"); }},
      layer);
}

Result<void> check_delta_net(const cache::Layer& layer) {
  const auto refuse = [](std::string_view kind) -> Result<void> {
    return mismatch(std::string(kind) + "; the model has a gated delta net");
  };
  return std::visit(
      Overload{[&](const cache::AttentionLayer&) { return refuse("full attention"); },
               [&](const cache::WindowLayer&) { return refuse("a rotating layer"); },
               [](const cache::StateLayer&) -> Result<void> { return {}; }},
      layer);
}

Result<void> check_layer(const cache::Layer& layer, const LayerConfig& wanted,
                         const ModelConfig& config) {
  if (wanted.kind == LayerKind::kDeltaNet) return check_delta_net(layer);
  if (wanted.window > 0) return check_window(layer, wanted.window, config);
  return check_full(layer, config);
}

Result<void> check_again(const cache::Layer& layer, const LayerConfig& wanted, std::int64_t first,
                         std::int64_t n_tokens) {
  if (wanted.kind == LayerKind::kDeltaNet) {
    return unsupported(
        "keeps the state behind the last token alone, which cannot be computed"
        " again; give a token to go on with");
  }
  if (wanted.window == 0) return {};
  const cache::Window& window = std::get<cache::WindowLayer>(layer).window;
  const std::int64_t oldest = std::max<std::int64_t>(first + 1 - wanted.window, 0);
  if (oldest >= cache::window_begin(window, n_tokens)) return {};
  return unsupported("keeps a window that has left what token " + std::to_string(first) +
                     " has seen; give a token to go on with");
}

template <class Check>
Result<void> for_layers(const cache::Cache& cache, const ModelConfig& config, const Check& check) {
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    auto checked = check(cache.layers[i], config.layer(static_cast<std::int64_t>(i)));
    if (!checked) return in_context("layer " + std::to_string(i), std::move(checked).error());
  }
  return {};
}

}  // namespace

Result<void> check_layers(const cache::Cache& cache, const ModelConfig& config) {
  const auto n_layers = static_cast<std::int64_t>(cache.layers.size());
  if (n_layers != config.n_layers) {
    return mismatch("cache of " + std::to_string(n_layers) + " layers; the model has " +
                    std::to_string(config.n_layers));
  }
  return for_layers(cache, config, [&](const cache::Layer& layer, const LayerConfig& wanted) {
    return check_layer(layer, wanted, config);
  });
}

Result<void> check_can_run_again(const cache::Cache& cache, std::int64_t first,
                                 const ModelConfig& config) {
  return for_layers(cache, config, [&](const cache::Layer& layer, const LayerConfig& wanted) {
    return check_again(layer, wanted, first, cache.n_tokens());
  });
}

}  // namespace tqcache::model
