// KVCache of mlx-lm: dense keys and values.

#include <string>
#include <utility>

#include "migrations/v1_layers.h"
#include "migrations/v1_meta.h"
#include "migrations/v1_side.h"
#include "tqcache/base/result.h"

namespace tqcache::migrations {
namespace {

Result<cache::Side> side_of(const char* place, const V1Tensor& tensor, const DensePair& pair,
                            Context& context) {
  auto side = dense_side(tensor, pair.shape, pair.n_tokens, context);
  if (!side) return in_context(place, std::move(side).error());
  return cache::Side(std::move(side).value());
}

}  // namespace

Result<DensePair> dense_pair(const State& state, std::string_view keys, std::string_view values) {
  DensePair pair;
  TQC_TRY_ASSIGN(pair.keys, state.named(keys));
  TQC_TRY_ASSIGN(pair.values, state.named(values));
  TQC_TRY_ASSIGN(const Grid k, grid_of(*pair.keys));
  TQC_TRY_ASSIGN(const Grid v, grid_of(*pair.values));
  if (k.n_kv_heads < 1 || k.width < 1) return corrupt(describe(*pair.keys) + ": a size of 0");
  if (k.n_kv_heads != v.n_kv_heads || k.n_tokens != v.n_tokens) {
    return corrupt(describe(*pair.values) + ": unlike " + describe(*pair.keys));
  }
  if (k.width != v.width) {
    return Error{ErrorCode::kUnsupported, "keys of head_dim " + std::to_string(k.width) +
                                              " and values of " + std::to_string(v.width)};
  }
  pair.shape = {k.n_kv_heads, k.width};
  pair.n_tokens = k.n_tokens;
  return pair;
}

Result<MigratedLayer> dense_layer(const V1Entry& entry, Context& context) {
  const State state(entry.state);
  TQC_TRY(state.require_only({"keys", "values"}));
  TQC_TRY_ASSIGN(const DensePair pair, dense_pair(state, "keys", "values"));
  TQC_TRY_ASSIGN(const auto numbers, read_numbers(entry.meta_state));
  if (numbers.size() > 1 || (numbers.size() == 1 && numbers[0] != pair.n_tokens)) {
    return corrupt("meta_state: not the offset " + std::to_string(pair.n_tokens));
  }
  TQC_TRY_ASSIGN(cache::Side k, side_of("k", *pair.keys, pair, context));
  TQC_TRY_ASSIGN(cache::Side v, side_of("v", *pair.values, pair, context));
  return MigratedLayer{cache::AttentionLayer{pair.shape, std::move(k), std::move(v)},
                       pair.n_tokens};
}

}  // namespace tqcache::migrations
