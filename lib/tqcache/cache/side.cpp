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

// Codes and scales of one head in a packed block: bytes, or a TurboBlock's const bytes.
template <class Codes>
auto codes_of_head(const codec::BlockCodec& codec, Codes& codes, std::int64_t kv_head) {
  const std::size_t size = codec.shape().block_bytes();
  return std::span(codes).subspan(to_size(kv_head) * size, size);
}

template <class Scales>
auto scales_of_head(Scales& scales, std::int64_t kv_head) {
  return std::span(scales).subspan(to_size(kv_head * kTokenBlock), to_size(kTokenBlock));
}

std::size_t row_bytes(HeadShape shape) { return to_size(shape.head_dim) * sizeof(float); }

Result<void> pack_head(const codec::BlockCodec& codec, const BlockMean& mean,
                       const FullBlock& block, std::int64_t kv_head, TurboBlock& packed) {
  AlignedFloats rows(to_size(kTokenBlock * block.shape.head_dim));
  load_f32(block.dtype, block.values.data() + dense_offset(block.shape, block.dtype, kv_head, 0),
           rows);
  mean.subtract_from(kv_head, 0, rows);
  auto encoded =
      codec.encode({Dtype::kF32, std::as_bytes(std::span(rows)).data(), row_bytes(block.shape)},
                   to_size(kTokenBlock), codes_of_head(codec, packed.codes, kv_head),
                   scales_of_head(packed.scales, kv_head));
  if (encoded) return {};
  return Error{encoded.error().code,
               "head " + std::to_string(kv_head) + " " + encoded.error().message};
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

Result<TurboBlock> pack_block(const codec::BlockCodec& codec, const Mean& mean,
                              const FullBlock& block, unsigned n_threads) {
  assert(mean.is_fixed());
  assert(block.values.size() == dense_block_bytes(block.shape, block.dtype));
  const std::size_t n_heads = to_size(block.shape.n_kv_heads);
  TurboBlock packed{AlignedBytes(n_heads * codec.shape().block_bytes()),
                    std::vector<std::uint16_t>(n_heads * to_size(kTokenBlock))};
  const BlockMean block_mean(mean, block.shape, block.index);
  TQC_TRY(parallel_try(n_heads, n_threads, [&](std::size_t head) {
    return pack_head(codec, block_mean, block, static_cast<std::int64_t>(head), packed);
  }));
  return packed;
}

Result<void> pack_full_tail(Side& side, HeadShape shape, std::int64_t n_tokens,
                            unsigned n_threads) {
  auto* turbo = std::get_if<TurboSide>(&side);
  if (turbo == nullptr || turbo->tail.blocks.empty() || n_tokens % kTokenBlock != 0) return {};
  const DenseSide& tail = turbo->tail;
  Mean mean = turbo->mean;
  if (!mean.is_fixed()) {  // so nothing is packed yet, and the tail begins at position 0
    mean.values =
        compute_mean(tail.blocks, tail.dtype, shape, kTokenBlock, mean.rope.get(), n_threads);
  }
  const std::int64_t index = packed_block_count(side);
  auto packed =
      pack_block(turbo->codec, mean, {shape, tail.dtype, index, tail.blocks.front()}, n_threads);
  if (!packed) {
    return in_context("token block " + std::to_string(index), std::move(packed).error());
  }
  turbo->mean = std::move(mean);
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

void read_block(const Side& side, HeadShape shape, [[maybe_unused]] std::int64_t n_tokens,
                std::int64_t block, std::int64_t kv_head, std::span<float> out) {
  assert(out.size() == to_size(tokens_in_block(n_tokens, block) * shape.head_dim));
  if (block >= packed_block_count(side)) {
    const Dtype dtype = dense_dtype(side);
    load_f32(dtype, dense_block(side, block).data() + dense_offset(shape, dtype, kv_head, 0), out);
    return;
  }
  const auto& turbo = std::get<TurboSide>(side);
  read_centred_block(turbo, shape, block, kv_head, out);
  BlockMean(turbo.mean, shape, block, kv_head).add_to(kv_head, 0, out);
}

void read_centred_block(const TurboSide& side, HeadShape shape, std::int64_t block,
                        std::int64_t kv_head, std::span<float> out) {
  const std::size_t n = out.size() / to_size(shape.head_dim);
  assert(n <= to_size(kTokenBlock) && out.size() == n * to_size(shape.head_dim));
  const TurboBlock& packed = side.packed[to_size(block)];
  side.codec.decode(codes_of_head(side.codec, packed.codes, kv_head),
                    scales_of_head(packed.scales, kv_head), n,
                    {Dtype::kF32, std::as_writable_bytes(out).data(), row_bytes(shape)});
}

codec::PackedBlock packed_head(const TurboSide& side, std::int64_t block, std::int64_t kv_head) {
  const TurboBlock& packed = side.packed[to_size(block)];
  return side.codec.view(codes_of_head(side.codec, packed.codes, kv_head),
                         scales_of_head(packed.scales, kv_head), to_size(kTokenBlock));
}

ByteCount byte_count(const Side& side, HeadShape shape, std::int64_t n_tokens) {
  ByteCount bytes;
  if (const auto* turbo = std::get_if<TurboSide>(&side)) {
    for (const TurboBlock& block : turbo->packed) {
      bytes.used += block.codes.size() + block.scales.size() * sizeof(block.scales[0]);
    }
    bytes.used += turbo->mean.values.size() * sizeof(float);
  }
  bytes.allocated = bytes.used;
  const DenseSide& part = open_part(side);
  for (const AlignedBytes& block : part.blocks) bytes.allocated += block.size();
  const std::int64_t dense_tokens = n_tokens - packed_block_count(side) * kTokenBlock;
  bytes.used += to_size(dense_tokens * shape.n_kv_heads * shape.head_dim) * dtype_size(part.dtype);
  return bytes;
}

}  // namespace tqcache::cache
