#include "tqcache/cache/window.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <variant>

#include "tqcache/base/integers.h"

namespace tqcache::cache {
namespace {

// Tokens of one kv head that are adjacent both in the array and in a token block.
struct Run {
  std::int64_t kv_head;
  std::int64_t block;
  std::size_t block_offset;  // bytes from the start of the block
  std::size_t array_offset;  // bytes from the start of the array
  std::size_t bytes;
};

// Calls visit for all runs of the window's tokens.
template <class Visit>
void for_runs(HeadShape shape, const Window& window, Dtype dtype, std::int64_t n_tokens,
              const Visit& visit) {
  const std::size_t row = to_size(shape.head_dim) * dtype_size(dtype);
  const std::int64_t begin = window_begin(window, n_tokens);
  const std::int64_t n_kept = begin == 0 ? 0 : window.keep;
  const std::int64_t n_held = window_tokens(window, n_tokens);
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    for (std::int64_t index = 0; index < n_held;) {  // in the array
      const std::int64_t token = index < n_kept ? index : begin + index - n_kept;
      const std::int64_t run_end = index < n_kept ? n_kept : n_tokens;
      const std::int64_t block = token / kTokenBlock;
      const std::int64_t end = std::min((block + 1) * kTokenBlock, run_end);
      const std::int64_t in_block = head * kTokenBlock + token % kTokenBlock;
      visit(Run{head, block, to_size(in_block) * row, to_size(head * n_held + index) * row,
                to_size(end - token) * row});
      index += end - token;
    }
  }
}

// Decodes tokens of a packed block. `values` is scratch.
void decode_run(const Tensor& tensor, HeadShape shape, const Run& run, AlignedFloats& values,
                std::byte* out) {
  values.resize(to_size(kTokenBlock * shape.head_dim));
  read_block(tensor, shape, (run.block + 1) * kTokenBlock, run.block, run.kv_head, values);
  const std::size_t value_bytes = dtype_size(dense_dtype(tensor));
  const std::size_t first = run.block_offset / value_bytes - to_size(run.kv_head) * values.size();
  store_f32(dense_dtype(tensor), std::span(values).subspan(first, run.bytes / value_bytes), out);
}

// Empties the blocks [first, end). Earlier ones were emptied when the window was shorter.
void clear_blocks(Tensor& tensor, std::int64_t first, std::int64_t end) {
  if (auto* turbo = std::get_if<TurboTensor>(&tensor)) {
    auto& packed = turbo->packed;
    for (std::int64_t i = end - 1; i >= first && packed[to_size(i)].bytes.size() > 0; --i) {
      packed[to_size(i)] = {};
    }
    return;
  }
  auto& blocks = std::get<DenseTensor>(tensor).blocks;
  for (std::int64_t i = end - 1; i >= first && !blocks[to_size(i)].empty(); --i) {
    AlignedBytes().swap(blocks[to_size(i)]);
  }
}

}  // namespace

WindowLayer empty_window(HeadShape shape, const Window& window, Dtype dtype) {
  return {{shape, DenseTensor{dtype, {}}, DenseTensor{dtype, {}}}, window};
}

void advance_window(WindowLayer& layer, std::int64_t n_tokens) {
  const std::int64_t end = first_window_block(layer.window, n_tokens);
  const std::int64_t first = block_count(layer.window.keep);
  for (Tensor* tensor : {&layer.attention.k, &layer.attention.v}) clear_blocks(*tensor, first, end);
}

AlignedBytes gather_window(const WindowLayer& layer, const Tensor& tensor, std::int64_t n_tokens) {
  const bool is_keys = &tensor == &layer.attention.k;
  const HeadShape shape = is_keys ? layer.attention.shape : layer.attention.value_shape();
  const Dtype dtype = dense_dtype(tensor);
  const std::int64_t n_rows = shape.n_kv_heads * window_tokens(layer.window, n_tokens);
  AlignedBytes bytes(to_size(n_rows * shape.head_dim) * dtype_size(dtype));
  AlignedFloats decoded;
  for_runs(shape, layer.window, dtype, n_tokens, [&](const Run& run) {
    std::byte* const out = bytes.data() + run.array_offset;
    if (run.block < packed_block_count(tensor)) return decode_run(tensor, shape, run, decoded, out);
    std::memcpy(out, dense_block(tensor, run.block).data() + run.block_offset, run.bytes);
  });
  return bytes;
}

DenseTensor scatter_window(HeadShape shape, const Window& window, Dtype dtype, ByteView array,
                           std::int64_t n_tokens) {
  DenseTensor tensor{dtype, std::vector<AlignedBytes>(to_size(block_count(n_tokens)))};
  const std::size_t block_bytes =
      to_size(shape.n_kv_heads * kTokenBlock * shape.head_dim) * dtype_size(dtype);
  for_runs(shape, window, dtype, n_tokens, [&](const Run& run) {
    AlignedBytes& block = tensor.blocks[to_size(run.block)];
    if (block.empty()) block.resize(block_bytes);
    std::memcpy(block.data() + run.block_offset, array.data() + run.array_offset, run.bytes);
  });
  return tensor;
}

}  // namespace tqcache::cache
