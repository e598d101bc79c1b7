#include "tqcache/interop/llama/llama_row_maker.h"

#include <cstring>

namespace tqcache::interop {

LlamaRowMaker::LlamaRowMaker(const LlamaRowPlan& side)
    : side_(side),
      n_heads_(static_cast<std::size_t>(side.shape.n_kv_heads)),
      head_bytes_(static_cast<std::size_t>(side.shape.head_dim) * dtype_size(side.dtype)),
      row_size_(row_bytes(*side.type, n_heads_ * static_cast<std::size_t>(side.shape.head_dim))),
      values_(n_heads_ * static_cast<std::size_t>(side.shape.head_dim)) {}

void LlamaRowMaker::make(ByteView block, std::int64_t n, std::span<std::byte> rows) {
  const auto n_tokens = static_cast<std::size_t>(n);
  const bool as_it_is = side_.type->dense == side_.dtype && side_.rotation == 0;
  for (std::size_t token = 0; token < n_tokens; ++token) {
    const std::span<std::byte> row = rows.subspan(token * row_size_, row_size_);
    if (as_it_is) {
      copy_row(block, n_tokens, token, row);
    } else {
      convert_row(block, n_tokens, token, row);
    }
  }
}

void LlamaRowMaker::copy_row(ByteView block, std::size_t n, std::size_t token,
                             std::span<std::byte> row) const {
  for (std::size_t head = 0; head < n_heads_; ++head) {
    const std::span<std::byte> out = row.subspan(head * head_bytes_, head_bytes_);
    std::memcpy(out.data(), block.data() + (head * n + token) * head_bytes_, head_bytes_);
    if (side_.n_rot > 0) to_interleaved(side_.n_rot, dtype_size(side_.dtype), out);
  }
}

void LlamaRowMaker::convert_row(ByteView block, std::size_t n, std::size_t token,
                                std::span<std::byte> row) {
  const auto head_dim = static_cast<std::size_t>(side_.shape.head_dim);
  for (std::size_t head = 0; head < n_heads_; ++head) {
    const std::span<float> out = std::span(values_).subspan(head * head_dim, head_dim);
    load_f32(side_.dtype, block.data() + (head * n + token) * head_bytes_, out);
    if (side_.n_rot > 0) {
      to_interleaved(side_.n_rot, sizeof(float), std::as_writable_bytes(out));
    }
  }
  if (side_.rotation > 0) hadamard(side_.rotation, values_);
  encode_row(*side_.type, values_, row);
}

}  // namespace tqcache::interop
