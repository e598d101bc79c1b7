#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/cache.h"

namespace tqcache::cache {
namespace {

std::size_t dense_bytes(std::int64_t n_vectors, std::int64_t head_dim, Dtype dtype) {
  return to_size(n_vectors * head_dim) * dtype_size(dtype);
}

std::size_t dense_block_bytes(HeadShape shape, Dtype dtype) {
  return dense_bytes(shape.n_kv_heads * kTokenBlock, shape.head_dim, dtype);
}

// Bytes from the start of a dense block to one head vector.
std::size_t dense_offset(HeadShape shape, Dtype dtype, std::int64_t kv_head, std::int64_t token) {
  return dense_bytes(kv_head * kTokenBlock + token, shape.head_dim, dtype);
}

// Appending always writes to the dense part: a whole dense tensor, or the dense tail.
DenseTensor& open_part(Tensor& tensor) {
  if (auto* turbo = std::get_if<TurboTensor>(&tensor)) return turbo->tail;
  return std::get<DenseTensor>(tensor);
}

const DenseTensor& open_part(const Tensor& tensor) {
  if (const auto* turbo = std::get_if<TurboTensor>(&tensor)) return turbo->tail;
  return std::get<DenseTensor>(tensor);
}

}  // namespace

std::int64_t packed_block_count(const Tensor& tensor) {
  const auto* turbo = std::get_if<TurboTensor>(&tensor);
  return turbo ? static_cast<std::int64_t>(turbo->packed.size()) : 0;
}

Dtype dense_dtype(const Tensor& tensor) { return open_part(tensor).dtype; }

const AlignedBytes& dense_block(const Tensor& tensor, std::int64_t block) {
  const std::int64_t index = block - packed_block_count(tensor);
  assert(index >= 0 && to_size(index) < open_part(tensor).blocks.size());
  return open_part(tensor).blocks[to_size(index)];
}

TurboBlock make_turbo_block(const KvCodec& codec, std::int64_t block, SharedBytes bytes) {
  AlignedBytes decoded;
  if (codec.must_keep_decoded()) decoded = codec.decode_block(bytes.view(), block, kTokenBlock);
  return {std::move(bytes), std::move(decoded)};
}

Result<void> pack_full_tail(Tensor& tensor, std::int64_t n_tokens, unsigned n_threads,
                            std::int64_t begin) {
  auto* turbo = std::get_if<TurboTensor>(&tensor);
  if (turbo == nullptr || turbo->tail.blocks.empty() || n_tokens % kTokenBlock != 0) return {};
  const std::int64_t index = std::ssize(turbo->packed);
  const FullBlock block{turbo->codec.shape(), turbo->tail.dtype, index, turbo->tail.blocks.front(),
                        tokens_before(begin, index)};
  KvCodec codec = turbo->codec;
  codec.fit(std::span(&block, 1), n_threads);
  auto packed = codec.encode(block, n_threads);
  if (!packed) {
    return in_context("token block " + std::to_string(index), std::move(packed).error());
  }
  turbo->packed.push_back(make_turbo_block(codec, index, std::move(packed).value()));
  turbo->codec = std::move(codec);
  turbo->tail.blocks.clear();
  return {};
}

void append(Tensor& tensor, HeadShape shape, std::int64_t n_tokens, std::span<const float> rows) {
  DenseTensor& part = open_part(tensor);
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

void remove_tail(Tensor& tensor, std::int64_t n_tokens) {
  assert(n_tokens / kTokenBlock >= packed_block_count(tensor));
  open_part(tensor).blocks.resize(to_size(block_count(n_tokens) - packed_block_count(tensor)));
}

void read_block(const Tensor& tensor, HeadShape shape, [[maybe_unused]] std::int64_t n_tokens,
                std::int64_t block, std::int64_t kv_head, std::span<float> out) {
  assert(out.size() == to_size(tokens_in_block(n_tokens, block) * shape.head_dim));
  const Dtype dtype = dense_dtype(tensor);
  if (block >= packed_block_count(tensor)) {
    load_f32(dtype, dense_block(tensor, block).data() + dense_offset(shape, dtype, kv_head, 0),
             out);
    return;
  }
  const auto& turbo = std::get<TurboTensor>(tensor);
  const TurboBlock& packed = turbo.packed[to_size(block)];
  if (packed.decoded.empty()) {
    return turbo.codec.decode(packed.bytes.view(), block, kv_head, out);
  }
  load_f32(dtype, packed.decoded.data() + dense_offset(shape, dtype, kv_head, 0), out);
}

ByteCount byte_count(const Tensor& tensor, HeadShape shape, std::int64_t n_tokens) {
  ByteCount bytes;
  if (const auto* turbo = std::get_if<TurboTensor>(&tensor)) {
    for (const TurboBlock& block : turbo->packed) {
      bytes.used += block.bytes.size() + block.decoded.size();
    }
    bytes.used += turbo->codec.bytes();
  }
  bytes.allocated = bytes.used;
  const DenseTensor& part = open_part(tensor);
  for (const AlignedBytes& block : part.blocks) bytes.allocated += block.size();
  const std::int64_t dense_tokens = n_tokens - packed_block_count(tensor) * kTokenBlock;
  bytes.used += dense_bytes(dense_tokens * shape.n_kv_heads, shape.head_dim, part.dtype);
  return bytes;
}

}  // namespace tqcache::cache
