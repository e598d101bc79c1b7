#pragma once
// tests/interop/llama_models.h: what small models would leave to their state files to know.

#include <cstdint>
#include <vector>

#include "tqcache/interop/llama/llama_geometry.h"

namespace tqcache::test {

using interop::LlamaGeometry;
using interop::LlamaLayerKind;

inline LlamaGeometry model_of(const std::vector<LlamaLayerKind>& kinds,
                              std::int64_t head_dim = 32) {
  LlamaGeometry model;
  model.architecture = "test";
  model.window = 5;
  model.n_rot = head_dim;
  for (const LlamaLayerKind kind : kinds) {
    if (kind == LlamaLayerKind::kRecurrent) model.layers.push_back({kind, 0, 0, 0, 6, 10});
    if (kind != LlamaLayerKind::kRecurrent) model.layers.push_back({kind, 2, head_dim, head_dim});
  }
  return model;
}

inline LlamaGeometry plain_model(std::int64_t head_dim = 32) {
  return model_of({LlamaLayerKind::kAttention, LlamaLayerKind::kAttention}, head_dim);
}
inline LlamaGeometry window_model() {
  using enum LlamaLayerKind;
  return model_of({kSlidingWindow, kAttention, kSlidingWindow});
}
inline LlamaGeometry hybrid_model() {
  using enum LlamaLayerKind;
  return model_of({kRecurrent, kAttention, kRecurrent});
}

// One of each kind, small enough to fuzz: the first byte of an input takes one.
inline std::vector<LlamaGeometry> models_to_fuzz() {
  using enum LlamaLayerKind;
  std::vector<LlamaGeometry> models = {model_of({kAttention}, 2),
                                       model_of({kAttention}, 64),
                                       model_of({kSlidingWindow, kAttention}, 2),
                                       model_of({kRecurrent, kAttention}, 2),
                                       model_of({kRecurrent}),
                                       model_of({kSlidingWindow, kRecurrent}, 2)};
  models[0].interleaved_keys = true;
  models[1].interleaved_keys = true;
  models[1].n_rot = 32;
  return models;
}

}  // namespace tqcache::test
