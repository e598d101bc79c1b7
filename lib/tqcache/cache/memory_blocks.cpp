#include "tqcache/cache/memory_blocks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <variant>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/cache/window.h"
#include "tqcache/kv_codec.h"

namespace tqcache::cache {
namespace {

// K or V that a block belongs to; for an array, K or V of its window. Works for Cache& and const
// Cache&.
bool is_of_keys(const BlockInfo& block) {
  return block.tensor == TensorKind::kArray ? block.block == 0 : block.tensor == TensorKind::kKeys;
}

auto& tensor_of(auto& cache, const BlockInfo& block) {
  auto& layer = *attention_of(cache.layers[to_size(block.layer)]);
  return is_of_keys(block) ? layer.k : layer.v;
}

HeadShape shape_of(const Cache& cache, const BlockInfo& block) {
  const AttentionLayer& layer = *attention_of(cache.layers[to_size(block.layer)]);
  return is_of_keys(block) ? layer.shape : layer.value_shape();
}

// The rows of a dense block, kv head by kv head. In memory each head has room for 256 tokens, while
// a block's bytes hold only valid tokens.
struct DenseRows {
  std::size_t n_heads = 0;
  std::size_t memory_bytes = 0;  // of one head in memory
  std::size_t block_bytes = 0;   // of one head in the block's bytes

  bool same() const { return memory_bytes == block_bytes; }
};

DenseRows dense_rows(const Cache& cache, const BlockInfo& block) {
  const HeadShape shape = shape_of(cache, block);
  const std::size_t row =
      to_size(shape.head_dim) * dtype_size(dense_dtype(tensor_of(cache, block)));
  return {to_size(shape.n_kv_heads), to_size(kTokenBlock) * row,
          to_size(tokens_in_block(cache.n_tokens(), block.block)) * row};
}

AlignedBytes& dense_memory(Tensor& tensor, std::int64_t block) {
  return const_cast<AlignedBytes&>(dense_block(std::as_const(tensor), block));
}

void place_array(const BlockInfo& block, AlignedBytes raw, Cache& cache) {
  Layer& layer = cache.layers[to_size(block.layer)];
  if (auto* window = std::get_if<WindowLayer>(&layer)) {
    Tensor& tensor = tensor_of(cache, block);
    tensor = scatter_window(shape_of(cache, block), window->window, dense_dtype(tensor), raw,
                            cache.n_tokens());
    return;
  }
  std::get<StateLayer>(layer).arrays[to_size(block.block)].data = std::move(raw);
}

void copy_dense(const BlockInfo& block, ByteView raw, Cache& cache) {
  const DenseRows rows = dense_rows(cache, block);
  AlignedBytes& memory = dense_memory(tensor_of(cache, block), block.block);
  memory.resize(rows.n_heads * rows.memory_bytes);
  for (std::size_t head = 0; head < rows.n_heads; ++head) {
    std::copy_n(raw.data() + head * rows.block_bytes, rows.block_bytes,
                memory.data() + head * rows.memory_bytes);
  }
}

void place_packed(const BlockInfo& block, SharedBytes raw, Cache& cache) {
  auto& turbo = std::get<TurboTensor>(tensor_of(cache, block));
  turbo.packed[to_size(block.block)] = make_turbo_block(turbo.codec, block.block, std::move(raw));
}

// The number of packed token blocks, [layer][K, V], including those that a window has left, which
// were once packed.
std::vector<std::array<std::size_t, 2>> count_packed(const CacheDesc& cache,
                                                     const std::vector<BlockInfo>& blocks) {
  std::vector<std::array<std::size_t, 2>> counts;
  for (const LayerDesc& layer : cache.layers) {
    const std::size_t n_left = to_size(first_block(layer, cache.n_tokens()));
    counts.push_back({n_left, n_left});
  }
  for (const BlockInfo& block : blocks) {
    if (block.packed) ++counts[to_size(block.layer)][static_cast<std::size_t>(block.tensor)];
  }
  return counts;
}

// Windows in memory have an entry for each token block since the cache's first token.
Result<void> check_window_blocks(const CacheDesc& cache) {
  const std::int64_t n_windows = std::ranges::count_if(cache.layers, [](const LayerDesc& layer) {
    return std::holds_alternative<WindowDesc>(layer);
  });
  const std::int64_t n_blocks = 2 * n_windows * block_count(cache.n_tokens());
  if (n_blocks <= kMaxWindowBlocks) return {};
  return too_large("windows behind " + std::to_string(n_blocks) + " token blocks");
}

// Makes K and V with memory but without values.
class RoomMaker {
 public:
  RoomMaker(const CacheDesc& cache, const std::vector<BlockInfo>& blocks)
      : n_blocks_(to_size(block_count(cache.n_tokens()))),
        n_packed_(count_packed(cache, blocks)),
        tables_(cache.identity.rope) {}

  Result<AttentionLayer> make(const AttentionDesc& layer, std::size_t index) {
    TQC_TRY_ASSIGN(Tensor k,
                   make(layer.shape, layer.k, codec::BlockOrder::kKeys, n_packed_[index][0]));
    TQC_TRY_ASSIGN(Tensor v, make(layer.value_shape(), layer.v, codec::BlockOrder::kValues,
                                  n_packed_[index][1]));
    return AttentionLayer{layer.shape, std::move(k), std::move(v), layer.value_dim};
  }

 private:
  Result<Tensor> make(HeadShape shape, const TensorDesc& tensor, codec::BlockOrder order,
                      std::size_t n_packed) {
    if (!tensor.quant) {
      return Tensor(DenseTensor{tensor.dtype, std::vector<AlignedBytes>(n_blocks_)});
    }
    TQC_TRY_ASSIGN(KvCodec codec, KvCodec::make(tensor, shape, order, tables_));
    return Tensor(TurboTensor{std::move(codec),
                              std::vector<TurboBlock>(n_packed),
                              {tensor.dtype, std::vector<AlignedBytes>(n_blocks_ - n_packed)}});
  }

  std::size_t n_blocks_;
  std::vector<std::array<std::size_t, 2>> n_packed_;
  KvTables tables_;
};

class MemoryReader : public CacheReader {
 public:
  explicit MemoryReader(std::shared_ptr<const Cache> cache)
      : cache_(std::move(cache)),
        description_(describe(*cache_)),
        blocks_(blocks_of(*cache_, description_)) {}

  const CacheDesc& description() const override { return description_; }
  const std::vector<BlockInfo>& blocks() const override { return blocks_; }

  Result<void> read(std::size_t block, AlignedBytes& raw) const override {
    AlignedBytes scratch;
    const ByteView bytes = block_bytes(*cache_, blocks_[block], scratch);
    if (bytes.data() == scratch.data()) {
      raw = std::move(scratch);
    } else {
      raw.assign(bytes.begin(), bytes.end());
    }
    return {};
  }

  Result<SharedBytes> share(std::size_t block) const override {
    const BlockInfo& info = blocks_[block];
    if (info.packed) return copy_block(*cache_, info);
    AlignedBytes scratch;
    const ByteView bytes = block_bytes(*cache_, info, scratch);
    if (bytes.data() == scratch.data()) return SharedBytes(std::move(scratch));
    return SharedBytes(cache_, bytes);
  }

 private:
  std::shared_ptr<const Cache> cache_;
  CacheDesc description_;
  std::vector<BlockInfo> blocks_;
};

}  // namespace

bool is_packed(const Layer& layer, const BlockKey& key) {
  if (key.tensor == TensorKind::kArray) return false;
  const AttentionLayer& attention = *attention_of(layer);
  return key.block <
         packed_block_count(key.tensor == TensorKind::kKeys ? attention.k : attention.v);
}

std::vector<BlockInfo> blocks_of(const Cache& cache, const CacheDesc& description) {
  std::vector<BlockInfo> blocks;
  for (const BlockKey& key : plan_blocks(description.layers, cache.n_tokens())) {
    blocks.push_back(
        make_block(description, key, is_packed(cache.layers[to_size(key.layer)], key)));
  }
  return blocks;
}

ByteView block_bytes(const Cache& cache, const BlockInfo& block, AlignedBytes& scratch) {
  if (block.tensor == TensorKind::kArray) {
    const Layer& layer = cache.layers[to_size(block.layer)];
    if (const auto* state = std::get_if<StateLayer>(&layer)) {
      return state->arrays[to_size(block.block)].data;
    }
    return scratch = gather_window(std::get<WindowLayer>(layer), tensor_of(cache, block),
                                   cache.n_tokens());
  }
  const Tensor& tensor = tensor_of(cache, block);
  if (block.packed) return std::get<TurboTensor>(tensor).packed[to_size(block.block)].bytes.view();
  return first_rows(dense_block(tensor, block.block), shape_of(cache, block), dense_dtype(tensor),
                    kTokenBlock, tokens_in_block(cache.n_tokens(), block.block), scratch);
}

ByteView first_rows(ByteView block, HeadShape shape, Dtype dtype, std::int64_t n_rows,
                    std::int64_t n, AlignedBytes& scratch) {
  if (n == n_rows) return block;
  const std::size_t row = to_size(shape.head_dim) * dtype_size(dtype);
  const std::size_t n_bytes = to_size(n) * row;
  scratch.resize(to_size(shape.n_kv_heads) * n_bytes);
  for (std::size_t head = 0; head < to_size(shape.n_kv_heads); ++head) {
    std::memcpy(scratch.data() + head * n_bytes, block.data() + head * to_size(n_rows) * row,
                n_bytes);
  }
  return scratch;
}

SharedBytes copy_block(const Cache& cache, const BlockInfo& block) {
  if (block.packed) {
    return std::get<TurboTensor>(tensor_of(cache, block)).packed[to_size(block.block)].bytes;
  }
  AlignedBytes scratch;
  const ByteView bytes = block_bytes(cache, block, scratch);
  if (bytes.data() == scratch.data()) return SharedBytes(std::move(scratch));
  return SharedBytes(AlignedBytes(bytes.begin(), bytes.end()));
}

Result<Cache> make_room(const CacheDesc& description, const std::vector<BlockInfo>& blocks) {
  Cache cache{
      description.identity, description.tokens, description.hidden_tokens, {}, description.media};
  TQC_TRY(check_window_blocks(description));
  RoomMaker maker(description, blocks);
  for (std::size_t i = 0; i < description.layers.size(); ++i) {
    TQC_TRY(
        std::visit(Overload{[&](const AttentionDesc& attention) -> Result<void> {
                              TQC_TRY_ASSIGN(Layer made, maker.make(attention, i));
                              cache.layers.push_back(std::move(made));
                              return {};
                            },
                            [&](const WindowDesc& window) -> Result<void> {
                              TQC_TRY_ASSIGN(AttentionLayer made, maker.make(window.attention, i));
                              cache.layers.push_back(WindowLayer{std::move(made), window.window});
                              return {};
                            },
                            [&](const StateDesc& state) -> Result<void> {
                              StateLayer made;
                              for (const ArrayDesc& array : state.arrays) {
                                made.arrays.push_back({array.name, array.dtype, array.shape, {}});
                              }
                              cache.layers.push_back(std::move(made));
                              return {};
                            }},
                   description.layers[i]));
  }
  return cache;
}

void place_block(const BlockInfo& block, SharedBytes raw, Cache& cache) {
  if (block.packed) return place_packed(block, std::move(raw), cache);
  const ByteView bytes = raw.view();
  if (block.tensor == TensorKind::kArray) {
    return place_array(block, AlignedBytes(bytes.begin(), bytes.end()), cache);
  }
  copy_dense(block, bytes, cache);
}

void place_block(const BlockInfo& block, AlignedBytes raw, Cache& cache) {
  if (block.packed) return place_packed(block, SharedBytes(std::move(raw)), cache);
  if (block.tensor == TensorKind::kArray) return place_array(block, std::move(raw), cache);
  if (!dense_rows(cache, block).same()) return copy_dense(block, raw, cache);
  dense_memory(tensor_of(cache, block), block.block) = std::move(raw);
}

std::shared_ptr<const CacheReader> reader_of(std::shared_ptr<const Cache> cache) {
  return std::make_shared<MemoryReader>(std::move(cache));
}

std::shared_ptr<const CacheReader> reader_of(const Cache& cache) {
  return reader_of({std::shared_ptr<const void>(), &cache});
}

Result<Cache> load(const CacheReader& reader, const LoadOptions& options,
                   const Progress& progress) {
  const CacheDesc& description = reader.description();
  const std::vector<BlockInfo>& blocks = reader.blocks();
  const std::uint64_t bytes = total_memory_bytes(description, blocks);
  TQC_TRY(options.memory.check(bytes, "the cache"));
  TQC_TRY_ASSIGN(Cache cache, make_room(description, blocks));
  ProgressCounter counter(progress, total_raw_bytes(blocks));
  const auto make = [&](std::size_t i, std::size_t) -> Result<void> {
    if (blocks[i].packed) {
      TQC_TRY_ASSIGN(SharedBytes shared, reader.share(i));
      place_block(blocks[i], std::move(shared), cache);
      return {};
    }
    AlignedBytes raw;
    TQC_TRY(reader.read(i, raw));
    place_block(blocks[i], std::move(raw), cache);
    return {};
  };
  const auto take = [&](std::size_t i, std::size_t) { return counter.add(blocks[i].raw_bytes); };
  TQC_TRY(run_in_order({blocks.size(), make, take}, options.n_threads));
  TQC_TRY(validate(cache));
  return cache;
}

}  // namespace tqcache::cache
