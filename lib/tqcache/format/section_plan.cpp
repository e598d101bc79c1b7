#include "tqcache/format/section_plan.h"

#include <algorithm>

#include "tqcache/base/integers.h"

namespace tqcache::format {
namespace {

std::uint64_t to_u64(std::int64_t n) { return static_cast<std::uint64_t>(n); }

std::uint64_t array_bytes(const ArrayInfo& array) {
  return element_count(array.shape).value() * dtype_size(array.dtype);
}

const ArrayInfo& array_of(const LayerInfo& layer, const SectionKey& key) {
  return layer.arrays[static_cast<std::size_t>(key.block)];
}

std::uint64_t dense_bytes(const LayerInfo& layer, SideName side, std::int64_t n_tokens) {
  return to_u64(layer.shape.n_kv_heads * n_tokens * layer.shape.head_dim) *
         dtype_size(side_of(layer, side).dense_dtype);
}

// [n_layers]; of layers without sides a block that no cache has.
std::vector<std::int64_t> first_blocks(const std::vector<LayerInfo>& layers,
                                       std::int64_t n_tokens) {
  std::vector<std::int64_t> blocks;
  for (const LayerInfo& layer : layers) {
    blocks.push_back(has_sides(layer) ? first_block(layer, n_tokens)
                                      : cache::block_count(cache::kMaxTokens));
  }
  return blocks;
}

}  // namespace

std::uint64_t count_sections(const std::vector<LayerInfo>& layers, std::int64_t n_tokens) {
  std::uint64_t count = 0;
  for (const LayerInfo& layer : layers) {
    count += has_sides(layer)
                 ? 2 * to_u64(cache::block_count(n_tokens) - first_block(layer, n_tokens))
                 : layer.arrays.size();
  }
  return count;
}

std::vector<SectionKey> plan_sections(const std::vector<LayerInfo>& layers, std::int64_t n_tokens) {
  const auto n_layers = static_cast<std::int64_t>(layers.size());
  std::vector<SectionKey> keys;
  keys.reserve(count_sections(layers, n_tokens));
  const std::vector<std::int64_t> begins = first_blocks(layers, n_tokens);
  const std::int64_t first = begins.empty() ? 0 : std::ranges::min(begins);
  for (std::int64_t block = first; block < cache::block_count(n_tokens); ++block) {
    for (std::int64_t layer = 0; layer < n_layers; ++layer) {
      if (block < begins[static_cast<std::size_t>(layer)]) continue;
      keys.push_back({layer, SideName::kKeys, block});
      keys.push_back({layer, SideName::kValues, block});
    }
  }
  for (std::int64_t layer = 0; layer < n_layers; ++layer) {
    const auto n_arrays =
        static_cast<std::int64_t>(layers[static_cast<std::size_t>(layer)].arrays.size());
    for (std::int64_t i = 0; i < n_arrays; ++i) keys.push_back({layer, SideName::kArray, i});
  }
  return keys;
}

std::size_t number_bytes(const LayerInfo& layer, const SectionKey& key) {
  if (key.side == SideName::kArray) return dtype_size(array_of(layer, key).dtype);
  return dtype_size(side_of(layer, key.side).dense_dtype);
}

codec::BlockShape block_shape(const codec::PartSpec& part, SideName side) {
  return {part.quantizer.head_dim, part.quantizer.bits, order_of(side)};
}

PackedLayout packed_layout(cache::HeadShape shape, const SideInfo& side, const SectionKey& key) {
  PackedLayout layout;
  for (const codec::PartSpec& part : side.parts) {
    layout.head_code_bytes += block_shape(part, key.side).block_bytes();
    layout.n_scale_rows += part.has_bias ? 2 : 1;
  }
  layout.n_sinks = key.block == 0 ? to_u64(side.n_sinks) : 0;
  const std::uint64_t n_heads = to_u64(shape.n_kv_heads);
  const std::uint64_t row_bytes = to_u64(cache::kTokenBlock) * sizeof(std::uint16_t);
  layout.scales_at = n_heads * layout.head_code_bytes;
  layout.sinks_at = layout.scales_at + n_heads * layout.n_scale_rows * row_bytes;
  layout.raw_bytes = layout.sinks_at + n_heads * layout.n_sinks * to_u64(shape.head_dim) *
                                           dtype_size(side.dense_dtype);
  return layout;
}

std::uint64_t raw_bytes(const LayerInfo& layer, const SectionKey& key, bool packed,
                        std::int64_t n_tokens) {
  if (key.side == SideName::kArray) return array_bytes(array_of(layer, key));
  if (packed) return packed_layout(layer.shape, side_of(layer, key.side), key).raw_bytes;
  return dense_bytes(layer, key.side, cache::tokens_in_block(n_tokens, key.block));
}

std::uint64_t memory_bytes(const LayerInfo& layer, const SectionKey& key, bool packed) {
  const std::int64_t room_for_all = (key.block + 1) * cache::kTokenBlock;
  const std::uint64_t bytes = raw_bytes(layer, key, packed, room_for_all);
  if (!packed) return bytes;
  // Keys that are mapped before RoPE stand decoded beside their codes.
  const SideInfo& side = side_of(layer, key.side);
  const bool is_decoded = !side.transforms.empty() && side.centering == cache::Centering::kPreRope;
  return is_decoded ? bytes + dense_bytes(layer, key.side, cache::kTokenBlock) : bytes;
}

}  // namespace tqcache::format
