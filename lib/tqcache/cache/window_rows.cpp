#include "tqcache/cache/window_rows.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <span>
#include <variant>

#include "tqcache/base/integers.h"

namespace tqcache::cache {
namespace {

// Tokens of one kv head that stand behind each other both in an array and in a token block.
struct Run {
  std::int64_t kv_head;
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
      visit(Run{head, block, to_size(in_block) * row, to_size(in_array) * row,
                to_size(end - token) * row});
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

// Of a packed block. `values` is scratch.
void decode_run(const Side& side, HeadShape shape, const Run& run, AlignedFloats& values,
                std::byte* out) {
  values.resize(to_size(kTokenBlock * shape.head_dim));
  read_block(side, shape, (run.block + 1) * kTokenBlock, run.block, run.kv_head, values);
  const std::size_t value_bytes = dtype_size(dense_dtype(side));
  const std::size_t first = run.block_offset / value_bytes - to_size(run.kv_head) * values.size();
  store_f32(dense_dtype(side), std::span(values).subspan(first, run.bytes / value_bytes), out);
}

// Gives the memory of the blocks before `n_left` back. Those further on were left when they were
// few tokens older.
void leave_blocks(Side& side, std::int64_t n_left) {
  if (auto* turbo = std::get_if<TurboSide>(&side)) {
    auto& packed = turbo->packed;
    for (std::int64_t i = n_left - 1; i >= 0 && packed[to_size(i)].bytes.size() > 0; --i) {
      packed[to_size(i)] = {};
    }
    return;
  }
  auto& blocks = std::get<DenseSide>(side).blocks;
  for (std::int64_t i = n_left - 1; i >= 0 && !blocks[to_size(i)].empty(); --i) {
    AlignedBytes().swap(blocks[to_size(i)]);
  }
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
  const std::int64_t n_left = first_window_block(*layer.window, n_tokens);
  for (Side* side : {&layer.rows->k, &layer.rows->v}) leave_blocks(*side, n_left);
  for (NamedArray& array : layer.arrays) {
    array.shape = window_array_shape(*layer.window, n_tokens);
  }
}

AlignedBytes window_array(const ArraysLayer& layer, std::size_t index, std::int64_t n_tokens) {
  const Window& window = *layer.window;
  const Side& side = index == 0 ? layer.rows->k : layer.rows->v;
  const Dtype dtype = dense_dtype(side);
  AlignedBytes bytes(
      to_size(window.shape.n_kv_heads * window_tokens(window, n_tokens) * window.shape.head_dim) *
      dtype_size(dtype));
  AlignedFloats decoded;
  for_runs(window, dtype, n_tokens, [&](const Run& run) {
    std::byte* const out = bytes.data() + run.array_offset;
    if (run.block < packed_block_count(side)) {
      return decode_run(side, window.shape, run, decoded, out);
    }
    std::memcpy(out, dense_block(side, run.block).data() + run.block_offset, run.bytes);
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
