#include "tqcache/cache/window_rows.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <variant>

namespace tqcache::cache {
namespace {

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

// Tokens of one kv head that stand behind each other both in an array and in a token block.
struct Run {
  std::int64_t block;
  std::size_t block_offset;  // bytes from the start of the block
  std::size_t array_offset;  // bytes from the start of the array
  std::size_t bytes;
};

// Calls visit for all runs of the window's tokens.
template <class Visit>
void for_runs(const Window& window, Dtype dtype, std::int64_t n_tokens, const Visit& visit) {
  const std::size_t row = to_size(window.shape.head_dim) * dtype_size(dtype);
  const std::int64_t begin = window_begin(window, n_tokens);
  for (std::int64_t head = 0; head < window.shape.n_kv_heads; ++head) {
    for (std::int64_t token = begin; token < n_tokens;) {
      const std::int64_t block = token / kTokenBlock;
      const std::int64_t end = std::min((block + 1) * kTokenBlock, n_tokens);
      const std::int64_t in_block = head * kTokenBlock + token % kTokenBlock;
      const std::int64_t in_array = head * (n_tokens - begin) + token - begin;
      visit(
          Run{block, to_size(in_block) * row, to_size(in_array) * row, to_size(end - token) * row});
      token = end;
    }
  }
}

DenseSide open_array(const NamedArray& array, const Window& window, std::int64_t n_tokens) {
  DenseSide side{array.dtype, std::vector<AlignedBytes>(to_size(block_count(n_tokens)))};
  const std::size_t block_bytes =
      to_size(window.shape.n_kv_heads * kTokenBlock * window.shape.head_dim) *
      dtype_size(array.dtype);
  for_runs(window, array.dtype, n_tokens, [&](const Run& run) {
    AlignedBytes& block = side.blocks[to_size(run.block)];
    if (block.empty()) block.resize(block_bytes);
    std::memcpy(block.data() + run.block_offset, array.data.data() + run.array_offset, run.bytes);
  });
  return side;
}

}  // namespace

void open_window(ArraysLayer& layer, std::int64_t n_tokens) {
  assert(layer.window && layer.window->keep == 0);
  if (layer.rows) return;
  const Window& window = *layer.window;
  layer.rows = AttentionLayer{window.shape, open_array(layer.arrays[0], window, n_tokens),
                              open_array(layer.arrays[1], window, n_tokens)};
  for (NamedArray& array : layer.arrays) AlignedBytes().swap(array.data);
}

void advance_window(ArraysLayer& layer, std::int64_t n_tokens) {
  const std::int64_t n_left = window_begin(*layer.window, n_tokens) / kTokenBlock;
  for (Side* side : {&layer.rows->k, &layer.rows->v}) {
    auto& blocks = std::get<DenseSide>(*side).blocks;
    // Those further on were left when they were few tokens older.
    for (std::int64_t i = n_left - 1; i >= 0 && !blocks[to_size(i)].empty(); --i) {
      AlignedBytes().swap(blocks[to_size(i)]);
    }
  }
  for (NamedArray& array : layer.arrays) {
    array.shape = window_array_shape(*layer.window, n_tokens);
  }
}

AlignedBytes window_array(const ArraysLayer& layer, std::size_t index, std::int64_t n_tokens) {
  const Window& window = *layer.window;
  const auto& side = std::get<DenseSide>(index == 0 ? layer.rows->k : layer.rows->v);
  AlignedBytes bytes(
      to_size(window.shape.n_kv_heads * window_tokens(window, n_tokens) * window.shape.head_dim) *
      dtype_size(side.dtype));
  for_runs(window, side.dtype, n_tokens, [&](const Run& run) {
    std::memcpy(bytes.data() + run.array_offset,
                side.blocks[to_size(run.block)].data() + run.block_offset, run.bytes);
  });
  return bytes;
}

void close_window(ArraysLayer& layer, std::int64_t n_tokens) {
  if (!layer.rows) return;
  for (std::size_t i = 0; i < layer.arrays.size(); ++i) {
    layer.arrays[i].data = window_array(layer, i, n_tokens);
    layer.arrays[i].shape = window_array_shape(*layer.window, n_tokens);
  }
  layer.rows.reset();
}

}  // namespace tqcache::cache
