#pragma once
// cache/blocks.h: the list of blocks of a cache, with their order and sizes.
//
// Everything follows from the layers and the number of tokens. So writers take the list from here,
// and readers of files compare the section table with it.
//
// Spec: docs/reference/format.md §4.5 and §6.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tqcache/codec/block_layout.h"
#include "tqcache/reader.h"

namespace tqcache::cache {

std::uint64_t count_blocks(const std::vector<LayerDesc>& layers, std::int64_t n_tokens);

// By token block, then by layer, keys before values; then all arrays. Quantized windows have the
// blocks that hold a token of the window. So a longer cache adds blocks after those of a shorter
// one, and lacks blocks that windows have left.
std::vector<BlockKey> plan_blocks(const std::vector<LayerDesc>& layers, std::int64_t n_tokens);

// K or V of a layer in token blocks. Requires: kKeys or kValues.
const TensorDesc& tensor_of(const LayerDesc& layer, TensorKind tensor);
TensorDesc& tensor_of(LayerDesc& layer, TensorKind tensor);

// The shape of K or V of a layer. Requires: kKeys or kValues.
HeadShape shape_of(const LayerDesc& layer, TensorKind tensor);

// The order in which codes of K or V are packed.
inline codec::BlockOrder order_of(TensorKind tensor) {
  return tensor == TensorKind::kKeys ? codec::BlockOrder::kKeys : codec::BlockOrder::kValues;
}

// Bytes per number in a block that is not packed: 2 or 4.
std::size_t number_bytes(const LayerDesc& layer, const BlockKey& key);

// Bytes of a block. Requires: validate_layers() accepts the layer; a packed block belongs to a
// quantized tensor.
std::uint64_t raw_bytes(const LayerDesc& layer, const BlockKey& key, bool packed,
                        std::int64_t n_tokens);

// Bytes of memory that the block takes when loaded. In memory a token block always has room for 256
// tokens, so it can be 256 times as large as in a file.
std::uint64_t memory_bytes(const LayerDesc& layer, const BlockKey& key, bool packed,
                           std::int64_t n_tokens);

// The block with this key, packed or not, with its size.
BlockInfo make_block(const CacheDesc& cache, const BlockKey& key, bool packed);

// Total bytes of some blocks (BlockInfo, or rows of a section table).
template <class Blocks>
std::uint64_t total_raw_bytes(const Blocks& blocks) {
  std::uint64_t total = 0;
  for (const BlockInfo& block : blocks) total += block.raw_bytes;
  return total;
}

// Bytes of memory that a whole cache with these blocks takes when loaded.
template <class Blocks>
std::uint64_t total_memory_bytes(const CacheDesc& cache, const Blocks& blocks) {
  std::uint64_t total = 0;
  for (const BlockInfo& block : blocks) {
    const LayerDesc& layer = cache.layers[static_cast<std::size_t>(block.layer)];
    total += memory_bytes(layer, key_of(block), block.packed, cache.n_tokens());
  }
  return total;
}

// The index of a block in blocks(); nullopt if no block has this key.
class BlockIndex {
 public:
  explicit BlockIndex(const std::vector<BlockInfo>& blocks);
  std::optional<std::size_t> find(const BlockKey& key) const;
  // Requires: the block exists.
  std::size_t at(const BlockKey& key) const { return find(key).value(); }

 private:
  std::vector<std::pair<BlockKey, std::size_t>> sorted_;
};

}  // namespace tqcache::cache
