#include "tqcache/cache/side.h"

#include <cassert>
#include <cstring>
#include <string>

#include "tqcache/base/threads.h"

namespace tqcache::cache {
namespace {

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

std::size_t dense_block_bytes(HeadShape shape, Dtype dtype) {
  return to_size(shape.n_kv_heads * kTokenBlock * shape.head_dim) * dtype_size(dtype);
}

// Bytes from the start of a dense block to one head vector.
std::size_t dense_offset(HeadShape shape, Dtype dtype, std::int64_t kv_head, std::int64_t token) {
  return to_size((kv_head * kTokenBlock + token) * shape.head_dim) * dtype_size(dtype);
}

// Appending always goes to the dense part: all of a dense side, the tail of a turbo side.
DenseSide& open_part(Side& side) {
  if (auto* turbo = std::get_if<TurboSide>(&side)) return turbo->tail;
  return std::get<DenseSide>(side);
}

const DenseSide& open_part(const Side& side) {
  if (const auto* turbo = std::get_if<TurboSide>(&side)) return turbo->tail;
  return std::get<DenseSide>(side);
}

// Packs the tokens [first, first + count) of one head. A few tokens at a time make pieces of work
// that are worth a thread.
constexpr std::int64_t kTokensPerTask = 32;
static_assert(kTokenBlock % kTokensPerTask == 0);

Result<void> pack_tokens(const codec::Quantizer& quantizer, HeadShape shape, Dtype dtype,
                         std::span<const std::byte> block, std::int64_t kv_head, std::int64_t first,
                         TurboBlock& packed) {
  std::vector<float> x(to_size(shape.head_dim));
  const std::size_t code_bytes = quantizer.code_bytes();
  for (std::int64_t token = first; token < first + kTokensPerTask; ++token) {
    load_f32(dtype, block.data() + dense_offset(shape, dtype, kv_head, token), x);
    const std::size_t row = to_size(kv_head * kTokenBlock + token);
    auto scale = quantizer.encode(x, std::span(packed.codes).subspan(row * code_bytes, code_bytes));
    if (!scale) {
      return in_context("head " + std::to_string(kv_head) + " token " + std::to_string(token),
                        std::move(scale).error());
    }
    packed.scales[row] = *scale;
  }
  return {};
}

}  // namespace

std::int64_t packed_block_count(const Side& side) {
  const auto* turbo = std::get_if<TurboSide>(&side);
  return turbo ? static_cast<std::int64_t>(turbo->packed.size()) : 0;
}

Dtype dense_dtype(const Side& side) { return open_part(side).dtype; }

const AlignedBytes& dense_block(const Side& side, std::int64_t block) {
  const std::int64_t index = block - packed_block_count(side);
  assert(index >= 0 && to_size(index) < open_part(side).blocks.size());
  return open_part(side).blocks[to_size(index)];
}

Result<TurboBlock> pack_block(const codec::Quantizer& quantizer, HeadShape shape, Dtype dtype,
                              std::span<const std::byte> block, unsigned n_threads) {
  assert(block.size() == dense_block_bytes(shape, dtype));
  const std::size_t n_vectors = to_size(shape.n_kv_heads * kTokenBlock);
  TurboBlock packed{AlignedBytes(n_vectors * quantizer.code_bytes()),
                    std::vector<std::uint16_t>(n_vectors)};
  constexpr std::int64_t kTasksPerHead = kTokenBlock / kTokensPerTask;
  TQC_TRY(parallel_try(to_size(shape.n_kv_heads * kTasksPerHead), n_threads, [&](std::size_t i) {
    const auto task = static_cast<std::int64_t>(i);
    return pack_tokens(quantizer, shape, dtype, block, task / kTasksPerHead,
                       task % kTasksPerHead * kTokensPerTask, packed);
  }));
  return packed;
}

Result<void> pack_full_tail(Side& side, HeadShape shape, std::int64_t n_tokens,
                            unsigned n_threads) {
  auto* turbo = std::get_if<TurboSide>(&side);
  if (turbo == nullptr || turbo->tail.blocks.empty() || n_tokens % kTokenBlock != 0) return {};
  auto packed =
      pack_block(turbo->quantizer, shape, turbo->tail.dtype, turbo->tail.blocks.front(), n_threads);
  if (!packed) {
    return in_context("token block " + std::to_string(turbo->packed.size()),
                      std::move(packed).error());
  }
  turbo->packed.push_back(std::move(packed).value());
  turbo->tail.blocks.clear();
  return {};
}

void append(Side& side, HeadShape shape, std::int64_t n_tokens, std::span<const float> rows) {
  DenseSide& part = open_part(side);
  const std::int64_t first = n_tokens % kTokenBlock;
  const std::int64_t row_size = shape.n_kv_heads * shape.head_dim;
  const std::int64_t n_new = static_cast<std::int64_t>(rows.size()) / row_size;
  assert(first + n_new <= kTokenBlock);
  if (first == 0) part.blocks.emplace_back(dense_block_bytes(shape, part.dtype));
  AlignedBytes& block = part.blocks.back();
  for (std::int64_t token = 0; token < n_new; ++token) {
    for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
      const auto row =
          rows.subspan(to_size(token * row_size + head * shape.head_dim), to_size(shape.head_dim));
      store_f32(part.dtype, row,
                block.data() + dense_offset(shape, part.dtype, head, first + token));
    }
  }
}

void remove_tail(Side& side, std::int64_t n_tokens) {
  assert(n_tokens / kTokenBlock >= packed_block_count(side));
  open_part(side).blocks.resize(to_size(block_count(n_tokens) - packed_block_count(side)));
}

void read_block(const Side& side, HeadShape shape, std::int64_t n_tokens, std::int64_t block,
                std::int64_t kv_head, std::span<float> out) {
  const std::int64_t n = tokens_in_block(n_tokens, block);
  const std::size_t head_dim = to_size(shape.head_dim);
  assert(out.size() == to_size(n) * head_dim);
  if (block >= packed_block_count(side)) {
    const Dtype dtype = dense_dtype(side);
    load_f32(dtype, dense_block(side, block).data() + dense_offset(shape, dtype, kv_head, 0), out);
    return;
  }
  const auto& turbo = std::get<TurboSide>(side);
  const TurboBlock& packed = turbo.packed[to_size(block)];
  const std::size_t code_bytes = turbo.quantizer.code_bytes();
  const std::size_t first_row = to_size(kv_head * kTokenBlock);
  for (std::size_t token = 0; token < to_size(n); ++token) {
    const std::size_t row = first_row + token;
    turbo.quantizer.decode(std::span(packed.codes).subspan(row * code_bytes, code_bytes),
                           packed.scales[row], out.subspan(token * head_dim, head_dim));
  }
}

ByteCount byte_count(const Side& side, HeadShape shape, std::int64_t n_tokens) {
  ByteCount bytes;
  if (const auto* turbo = std::get_if<TurboSide>(&side)) {
    for (const TurboBlock& block : turbo->packed) {
      bytes.used += block.codes.size() + block.scales.size() * sizeof(block.scales[0]);
    }
  }
  bytes.allocated = bytes.used;
  const DenseSide& part = open_part(side);
  for (const AlignedBytes& block : part.blocks) bytes.allocated += block.size();
  const std::int64_t dense_tokens = n_tokens - packed_block_count(side) * kTokenBlock;
  bytes.used += to_size(dense_tokens * shape.n_kv_heads * shape.head_dim) * dtype_size(part.dtype);
  return bytes;
}

}  // namespace tqcache::cache
