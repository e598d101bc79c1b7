#include "tqcache/eval/window_size.h"

#include <utility>

#include "tqcache/cache/convert.h"

namespace tqcache::eval {
namespace {

using cache::kTokenBlock;

// What one kind of side takes, over all layers.
struct SideSize {
  std::uint64_t bytes = 0;
  std::uint64_t values = 0;
  std::uint64_t packed_bytes = 0;
  std::uint64_t packed_values = 0;
};

std::uint64_t to_unsigned(std::int64_t n) { return static_cast<std::uint64_t>(n); }

void add_side(const cache::Side& side, cache::HeadShape shape, std::int64_t n_tokens,
              std::uint64_t dense_value_bytes, SideSize& size) {
  const std::uint64_t values_a_token = to_unsigned(shape.n_kv_heads * shape.head_dim);
  const auto* turbo = std::get_if<cache::TurboSide>(&side);
  const std::int64_t n_blocks = turbo == nullptr ? 0 : n_tokens / kTokenBlock;
  for (std::int64_t block = 0; block < n_blocks; ++block) {
    size.packed_bytes += cache::packed_block_bytes(*turbo, shape, block);
    size.bytes += cache::packed_block_bytes(*turbo, shape, block);
  }
  size.packed_values += to_unsigned(n_blocks * kTokenBlock) * values_a_token;
  size.values += to_unsigned(n_tokens) * values_a_token;
  size.bytes += to_unsigned(n_tokens - n_blocks * kTokenBlock) * values_a_token * dense_value_bytes;
}

double bits_a_value(std::uint64_t bytes, std::uint64_t values) {
  return values == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(values);
}

}  // namespace

Result<WindowSize> window_size(const cache::Cache& empty, const cache::Configuration& configuration,
                               std::int64_t n_tokens) {
  auto converted = cache::convert(empty, configuration.options);
  if (!converted) return in_context(configuration.name, std::move(converted).error());
  const std::uint64_t dense_value_bytes = configuration.is_dense() ? 4 : 2;
  SideSize k, v;
  for (const cache::Layer& each : converted->layers) {
    const cache::AttentionLayer* layer = cache::attention_of(each);
    if (layer == nullptr) continue;
    const std::int64_t n_held = cache::tokens_held(cache::describe(each), n_tokens);
    add_side(layer->k, layer->shape, n_held, dense_value_bytes, k);
    add_side(layer->v, layer->shape, n_held, dense_value_bytes, v);
  }
  WindowSize size;
  size.k_bytes = k.bytes;
  size.v_bytes = v.bytes;
  size.bits_per_value = bits_a_value(k.bytes + v.bytes, k.values + v.values);
  size.bits_per_packed_value =
      bits_a_value(k.packed_bytes + v.packed_bytes, k.packed_values + v.packed_values);
  size.k_bits = bits_a_value(k.packed_bytes, k.packed_values);
  size.v_bits = bits_a_value(v.packed_bytes, v.packed_values);
  return size;
}

}  // namespace tqcache::eval
