#include "tqcache/cache/blocks.h"

#include <algorithm>
#include <cassert>
#include <memory>
#include <string>

#include "tqcache/base/integers.h"
#include "tqcache/kv_codec.h"

namespace tqcache::cache {
namespace {

std::uint64_t array_bytes(const ArrayDesc& array) {
  return element_count(array.shape).value() * dtype_size(array.dtype);
}

std::uint64_t dense_bytes(const LayerDesc& layer, TensorKind tensor, std::int64_t n_tokens) {
  const HeadShape shape = shape_of(layer, tensor);
  return to_u64(shape.n_kv_heads * n_tokens * shape.head_dim) *
         dtype_size(tensor_of(layer, tensor).dtype);
}

// Bytes of an array of a layer.
std::uint64_t array_bytes(const LayerDesc& layer, std::int64_t index, std::int64_t n_tokens) {
  return std::visit(Overload{[](const AttentionDesc&) { return std::uint64_t{0}; },
                             [&](const WindowDesc& window) {
                               const auto tensor = static_cast<TensorKind>(index);
                               return dense_bytes(window, tensor,
                                                  window_tokens(window.window, n_tokens));
                             },
                             [&](const StateDesc& state) {
                               return array_bytes(state.arrays[static_cast<std::size_t>(index)]);
                             }},
                    layer);
}

std::int64_t array_count(const LayerDesc& layer) {
  return std::visit(
      Overload{[](const AttentionDesc&) { return std::int64_t{0}; },
               [](const WindowDesc& window) {
                 return std::int64_t{is_quantized(window.attention) ? 0 : 2};
               },
               [](const StateDesc& state) -> std::int64_t { return std::ssize(state.arrays); }},
      layer);
}

// [n_layers]; for layers without token blocks, a block number that no cache has.
std::vector<std::int64_t> first_blocks(const std::vector<LayerDesc>& layers,
                                       std::int64_t n_tokens) {
  std::vector<std::int64_t> blocks;
  for (const LayerDesc& layer : layers) {
    blocks.push_back(is_in_token_blocks(layer) ? first_block(layer, n_tokens)
                                               : block_count(kMaxTokens));
  }
  return blocks;
}

}  // namespace

std::uint64_t count_blocks(const std::vector<LayerDesc>& layers, std::int64_t n_tokens) {
  std::int64_t count = 0;
  for (const LayerDesc& layer : layers) {
    count += is_in_token_blocks(layer) ? 2 * (block_count(n_tokens) - first_block(layer, n_tokens))
                                       : array_count(layer);
  }
  return to_u64(count);
}

std::vector<BlockKey> plan_blocks(const std::vector<LayerDesc>& layers, std::int64_t n_tokens) {
  const auto n_layers = static_cast<std::int64_t>(layers.size());
  std::vector<BlockKey> keys;
  keys.reserve(count_blocks(layers, n_tokens));
  const std::vector<std::int64_t> begins = first_blocks(layers, n_tokens);
  const std::int64_t first = begins.empty() ? 0 : std::ranges::min(begins);
  for (std::int64_t block = first; block < block_count(n_tokens); ++block) {
    for (std::int64_t layer = 0; layer < n_layers; ++layer) {
      if (block < begins[static_cast<std::size_t>(layer)]) continue;
      keys.push_back({layer, TensorKind::kKeys, block});
      keys.push_back({layer, TensorKind::kValues, block});
    }
  }
  for (std::int64_t layer = 0; layer < n_layers; ++layer) {
    const std::int64_t n_arrays = array_count(layers[static_cast<std::size_t>(layer)]);
    for (std::int64_t i = 0; i < n_arrays; ++i) keys.push_back({layer, TensorKind::kArray, i});
  }
  return keys;
}

std::size_t number_bytes(const LayerDesc& layer, const BlockKey& key) {
  if (key.tensor != TensorKind::kArray) return dtype_size(tensor_of(layer, key.tensor).dtype);
  if (const auto* state = std::get_if<StateDesc>(&layer)) {
    return dtype_size(state->arrays[static_cast<std::size_t>(key.block)].dtype);
  }
  return dtype_size(tensor_of(layer, static_cast<TensorKind>(key.block)).dtype);
}

std::uint64_t raw_bytes(const LayerDesc& layer, const BlockKey& key, bool packed,
                        std::int64_t n_tokens) {
  if (key.tensor == TensorKind::kArray) return array_bytes(layer, key.block, n_tokens);
  if (packed) {
    return packed_layout(tensor_of(layer, key.tensor), shape_of(layer, key.tensor),
                         order_of(key.tensor), key.block)
        .bytes();
  }
  return dense_bytes(layer, key.tensor, tokens_in_block(n_tokens, key.block));
}

std::uint64_t memory_bytes(const LayerDesc& layer, const BlockKey& key, bool packed,
                           std::int64_t n_tokens) {
  if (key.tensor == TensorKind::kArray) {
    const auto* window = std::get_if<WindowDesc>(&layer);
    if (window == nullptr) return array_bytes(layer, key.block, n_tokens);
    const Window& size = window->window;
    std::int64_t n_blocks = block_count(n_tokens) - first_window_block(size, n_tokens);
    n_blocks += std::min(block_count(size.keep), first_window_block(size, n_tokens));
    return dense_bytes(layer, static_cast<TensorKind>(key.block), n_blocks * kTokenBlock);
  }
  const std::int64_t room_for_all = (key.block + 1) * kTokenBlock;
  const std::uint64_t bytes = raw_bytes(layer, key, packed, room_for_all);
  if (!packed) return bytes;
  // Keys with transforms before RoPE are kept decoded beside their codes.
  const QuantSpec& quant = *tensor_of(layer, key.tensor).quant;
  const bool is_decoded = !quant.transforms.empty() && quant.centering == Centering::kPreRope;
  return is_decoded ? bytes + dense_bytes(layer, key.tensor, kTokenBlock) : bytes;
}

const TensorDesc& tensor_of(const LayerDesc& layer, TensorKind tensor) {
  assert(tensor != TensorKind::kArray);
  const AttentionDesc& attention = *attention_of(layer);
  return tensor == TensorKind::kKeys ? attention.k : attention.v;
}

HeadShape shape_of(const LayerDesc& layer, TensorKind tensor) {
  assert(tensor != TensorKind::kArray);
  const AttentionDesc& attention = *attention_of(layer);
  return tensor == TensorKind::kKeys ? attention.shape : attention.value_shape();
}

TensorDesc& tensor_of(LayerDesc& layer, TensorKind tensor) {
  return const_cast<TensorDesc&>(tensor_of(std::as_const(layer), tensor));
}

BlockInfo make_block(const CacheDesc& cache, const BlockKey& key, bool packed) {
  BlockInfo block{key.layer, key.tensor, key.block, packed};
  block.raw_bytes = raw_bytes(cache.layers[to_size(key.layer)], key, packed, cache.n_tokens());
  return block;
}

std::string block_place(std::size_t index, const BlockInfo& block) {
  const std::string layer =
      "section " + std::to_string(index) + " (layer " + std::to_string(block.layer);
  const std::string number = std::to_string(block.block) + ")";
  if (block.tensor == TensorKind::kArray) return layer + " array " + number;
  return layer + (block.tensor == TensorKind::kKeys ? " k, block " : " v, block ") + number;
}

BlockIndex::BlockIndex(const std::vector<BlockInfo>& blocks) {
  sorted_.reserve(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) sorted_.emplace_back(key_of(blocks[i]), i);
  std::ranges::sort(sorted_);
}

std::optional<std::size_t> BlockIndex::find(const BlockKey& key) const {
  const auto found =
      std::ranges::lower_bound(sorted_, key, {}, &std::pair<BlockKey, std::size_t>::first);
  if (found == sorted_.end() || found->first != key) return std::nullopt;
  return found->second;
}

Result<std::optional<StoredBlock>> CacheReader::stored(std::size_t /*block*/,
                                                       const Room& /*room*/) const {
  return std::optional<StoredBlock>();
}

Result<SharedBytes> CacheReader::share(std::size_t block) const {
  AlignedBytes raw;
  TQC_TRY(read(block, raw));
  return SharedBytes(std::move(raw));
}

}  // namespace tqcache::cache
