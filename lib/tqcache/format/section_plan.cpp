#include "tqcache/format/section_plan.h"

#include "tqcache/base/shape.h"

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

}  // namespace

std::uint64_t count_sections(const std::vector<LayerInfo>& layers, std::int64_t n_tokens) {
  std::uint64_t count = 0;
  for (const LayerInfo& layer : layers) {
    count += is_attention(layer) ? 2 * to_u64(cache::block_count(n_tokens)) : layer.arrays.size();
  }
  return count;
}

std::vector<SectionKey> plan_sections(const std::vector<LayerInfo>& layers, std::int64_t n_tokens) {
  const auto n_layers = static_cast<std::int64_t>(layers.size());
  std::vector<SectionKey> keys;
  keys.reserve(count_sections(layers, n_tokens));
  for (std::int64_t block = 0; block < cache::block_count(n_tokens); ++block) {
    for (std::int64_t layer = 0; layer < n_layers; ++layer) {
      if (!is_attention(layers[static_cast<std::size_t>(layer)])) continue;
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

codec::BlockShape block_shape(const codec::CodecSpec& codec, SideName side) {
  return {codec.head_dim, codec.bits,
          side == SideName::kKeys ? codec::BlockOrder::kKeys : codec::BlockOrder::kValues};
}

PackedLayout packed_layout(cache::HeadShape shape, const codec::BlockShape& block) {
  PackedLayout layout;
  layout.code_bytes = to_u64(shape.n_kv_heads) * block.block_bytes();
  layout.raw_bytes =
      layout.code_bytes + to_u64(shape.n_kv_heads * cache::kTokenBlock) * sizeof(std::uint16_t);
  return layout;
}

std::uint64_t raw_bytes(const LayerInfo& layer, const SectionKey& key, bool packed,
                        std::int64_t n_tokens) {
  if (key.side == SideName::kArray) return array_bytes(array_of(layer, key));
  if (packed)
    return packed_layout(layer.shape, block_shape(*side_of(layer, key.side).codec, key.side))
        .raw_bytes;
  return dense_bytes(layer, key.side, cache::tokens_in_block(n_tokens, key.block));
}

std::uint64_t memory_bytes(const LayerInfo& layer, const SectionKey& key, bool packed) {
  const std::int64_t room_for_all = (key.block + 1) * cache::kTokenBlock;
  return raw_bytes(layer, key, packed, room_for_all);
}

}  // namespace tqcache::format
