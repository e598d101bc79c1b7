#include <utility>

#include "tqcache/cache.h"

namespace tqcache::cache {
namespace {

TensorDesc describe(const Tensor& tensor) {
  if (const auto* turbo = std::get_if<TurboTensor>(&tensor)) return turbo->codec.describe();
  return {dense_dtype(tensor), {}};
}

AttentionDesc describe(const AttentionLayer& layer) {
  return {layer.shape, describe(layer.k), describe(layer.v), layer.value_dim};
}

StateDesc describe(const StateLayer& layer) {
  StateDesc desc;
  for (const NamedArray& array : layer.arrays) {
    desc.arrays.push_back({array.name, array.dtype, array.shape});
  }
  return desc;
}

}  // namespace

const AttentionLayer* attention_of(const Layer& layer) {
  using Found = const AttentionLayer*;
  return std::visit(Overload{[](const AttentionLayer& attention) -> Found { return &attention; },
                             [](const WindowLayer& window) -> Found { return &window.attention; },
                             [](const StateLayer&) -> Found { return nullptr; }},
                    layer);
}

AttentionLayer* attention_of(Layer& layer) {
  return const_cast<AttentionLayer*>(attention_of(std::as_const(layer)));
}

std::int64_t first_token(const Layer& layer, std::int64_t n_tokens) {
  return std::visit(
      Overload{[](const AttentionLayer&) { return std::int64_t{0}; },
               [&](const WindowLayer& window) { return window_begin(window.window, n_tokens); },
               [](const StateLayer&) { return std::int64_t{0}; }},
      layer);
}

LayerDesc describe(const Layer& layer) {
  return std::visit(
      Overload{[](const AttentionLayer& attention) -> LayerDesc { return describe(attention); },
               [](const WindowLayer& window) -> LayerDesc {
                 return WindowDesc{describe(window.attention), window.window};
               },
               [](const StateLayer& state) -> LayerDesc { return describe(state); }},
      layer);
}

}  // namespace tqcache::cache
