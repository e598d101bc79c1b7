#pragma once
// migrations/v1_layers.h: a layer of each class of version 1 as a layer of a cache.
//
// Spec: docs/reference/format.md, "Version 1".

#include <cstdint>
#include <optional>
#include <string_view>

#include "migrations/v1_context.h"
#include "migrations/v1_file.h"
#include "migrations/v1_state.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/layer.h"

namespace tqcache::migrations {

struct MigratedLayer {
  cache::Layer layer;
  std::optional<std::int64_t> n_tokens;  // absent: the layer does not say
};

// Errors: as v1_to_v2().  `place` begins notes: "layer 3".
Result<MigratedLayer> dense_layer(const V1Entry& entry, Context& context);
Result<MigratedLayer> quantized_layer(const V1Entry& entry, std::string_view place,
                                      Context& context);
Result<MigratedLayer> rotating_layer(const V1Entry& entry, Context& context);
Result<MigratedLayer> arrays_layer(const V1Entry& entry, Context& context);
Result<MigratedLayer> turbo_layer(const V1Entry& entry, std::string_view place, Context& context);

// Two tensors [1, n_kv_heads, n_tokens, head_dim]: "keys" and "values", or those of calibration.
struct DensePair {
  const V1Tensor* keys = nullptr;
  const V1Tensor* values = nullptr;
  cache::HeadShape shape;
  std::int64_t n_tokens = 0;
};
// Errors: kCorrupt, and kUnsupported where keys and values differ in head_dim.
Result<DensePair> dense_pair(const State& state, std::string_view keys, std::string_view values);

// Groups as mlx-lm has them: the tensors NAME.packed, NAME.scales and NAME.biases.
struct AffineForm {
  std::int64_t bits = 0;
  std::int64_t group_size = 0;
};
// Errors: kCorrupt, kUnsupported (bits other than 1, 2, 4 and 8), kTooLarge.
Result<cache::Side> affine_side(const State& state, std::string_view name, AffineForm form,
                                cache::HeadShape shape, std::int64_t n_tokens,
                                codec::BlockOrder order, std::string_view place, Context& context);

}  // namespace tqcache::migrations
