#include "tqcache/format/section_plan.h"

#include <algorithm>

#include "tqcache/base/integers.h"
#include "tqcache/cache/kv_codec.h"

namespace tqcache::format {
namespace {

using cache::AttentionDesc;
using cache::LayerDesc;
using cache::StateDesc;
using cache::Window;
using cache::WindowDesc;

std::uint64_t to_u64(std::int64_t n) { return static_cast<std::uint64_t>(n); }

std::uint64_t array_bytes(const cache::ArrayDesc& array) {
  return element_count(array.shape).value() * dtype_size(array.dtype);
}

std::uint64_t dense_bytes(const LayerDesc& layer, SideName side, std::int64_t n_tokens) {
  const cache::HeadShape shape = cache::attention_of(layer)->shape;
  return to_u64(shape.n_kv_heads * n_tokens * shape.head_dim) *
         dtype_size(side_of(layer, side).dtype);
}

// Bytes of an array of a layer.
std::uint64_t array_bytes(const LayerDesc& layer, std::int64_t index, std::int64_t n_tokens) {
  return std::visit(
      Overload{[](const AttentionDesc&) { return std::uint64_t{0}; },
               [&](const WindowDesc& window) {
                 const auto side = static_cast<SideName>(index);
                 return dense_bytes(window, side, cache::window_tokens(window.window, n_tokens));
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
                 return std::int64_t{cache::is_quantized(window.attention) ? 0 : 2};
               },
               [](const StateDesc& state) { return std::ssize(state.arrays); }},
      layer);
}

// [n_layers]; of layers that are not in token blocks a block that no cache has.
std::vector<std::int64_t> first_blocks(const std::vector<LayerDesc>& layers,
                                       std::int64_t n_tokens) {
  std::vector<std::int64_t> blocks;
  for (const LayerDesc& layer : layers) {
    blocks.push_back(cache::is_in_token_blocks(layer) ? cache::first_block(layer, n_tokens)
                                                      : cache::block_count(cache::kMaxTokens));
  }
  return blocks;
}

}  // namespace

std::uint64_t count_sections(const std::vector<LayerDesc>& layers, std::int64_t n_tokens) {
  std::int64_t count = 0;
  for (const LayerDesc& layer : layers) {
    count += cache::is_in_token_blocks(layer)
                 ? 2 * (cache::block_count(n_tokens) - cache::first_block(layer, n_tokens))
                 : array_count(layer);
  }
  return to_u64(count);
}

std::vector<SectionKey> plan_sections(const std::vector<LayerDesc>& layers, std::int64_t n_tokens) {
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
    const std::int64_t n_arrays = array_count(layers[static_cast<std::size_t>(layer)]);
    for (std::int64_t i = 0; i < n_arrays; ++i) keys.push_back({layer, SideName::kArray, i});
  }
  return keys;
}

std::size_t number_bytes(const LayerDesc& layer, const SectionKey& key) {
  if (key.side != SideName::kArray) return dtype_size(side_of(layer, key.side).dtype);
  if (const auto* state = std::get_if<StateDesc>(&layer)) {
    return dtype_size(state->arrays[static_cast<std::size_t>(key.block)].dtype);
  }
  return dtype_size(side_of(layer, static_cast<SideName>(key.block)).dtype);
}

std::uint64_t raw_bytes(const LayerDesc& layer, const SectionKey& key, bool packed,
                        std::int64_t n_tokens) {
  if (key.side == SideName::kArray) return array_bytes(layer, key.block, n_tokens);
  if (packed) {
    return cache::packed_layout(side_of(layer, key.side), cache::attention_of(layer)->shape,
                                order_of(key.side), key.block)
        .bytes();
  }
  return dense_bytes(layer, key.side, cache::tokens_in_block(n_tokens, key.block));
}

std::uint64_t memory_bytes(const LayerDesc& layer, const SectionKey& key, bool packed,
                           std::int64_t n_tokens) {
  if (key.side == SideName::kArray) {
    const auto* window = std::get_if<WindowDesc>(&layer);
    if (window == nullptr) return array_bytes(layer, key.block, n_tokens);
    const Window& size = window->window;
    std::int64_t n_blocks =
        cache::block_count(n_tokens) - cache::first_window_block(size, n_tokens);
    n_blocks += std::min(cache::block_count(size.keep), cache::first_window_block(size, n_tokens));
    return dense_bytes(layer, static_cast<SideName>(key.block), n_blocks * cache::kTokenBlock);
  }
  const std::int64_t room_for_all = (key.block + 1) * cache::kTokenBlock;
  const std::uint64_t bytes = raw_bytes(layer, key, packed, room_for_all);
  if (!packed) return bytes;
  // Keys that are mapped before RoPE stand decoded beside their codes.
  const cache::QuantSpec& quant = *side_of(layer, key.side).quant;
  const bool is_decoded = !quant.transforms.empty() && quant.centering == cache::Centering::kPreRope;
  return is_decoded ? bytes + dense_bytes(layer, key.side, cache::kTokenBlock) : bytes;
}

}  // namespace tqcache::format
