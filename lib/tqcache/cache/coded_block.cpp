#include "tqcache/cache/coded_block.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace tqcache::cache {
namespace {

constexpr std::size_t kTokens = codec::kBlockTokens;
constexpr std::size_t kRowBytes = kTokens * sizeof(std::uint16_t);

}  // namespace

CodedBlock::CodedBlock(HeadShape shape, const std::vector<codec::PartSpec>& parts,
                       codec::BlockOrder order)
    : n_heads_(static_cast<std::size_t>(shape.n_kv_heads)), n_rows_(parts.size()) {
  for (const codec::PartSpec& part : parts) {
    const codec::BlockShape block{part.quantizer.head_dim, part.quantizer.bits, order};
    parts_.push_back({block, head_code_bytes_, part.has_bias ? n_rows_++ : 0});
    head_code_bytes_ += block.block_bytes();
  }
  bytes_ = n_heads_ * (head_code_bytes_ + n_rows_ * kRowBytes);
}

void CodedBlock::put_codes(std::size_t head, std::size_t part, const CodeColumns& columns,
                           std::span<std::byte> block) const {
  assert(block.size() == bytes() && columns.codes.size() == kTokens * columns.row_codes);
  const Part& at = parts_[part];
  const std::size_t dim = at.shape.dim();
  const std::span out =
      block.subspan(head * head_code_bytes_ + at.code_offset, at.shape.block_bytes());
  if (dim == columns.row_codes) return codec::pack_block(at.shape, columns.codes, out);
  std::vector<std::uint8_t> own(kTokens * dim);
  for (std::size_t token = 0; token < kTokens; ++token) {
    std::copy_n(columns.codes.data() + token * columns.row_codes + columns.first, dim,
                own.data() + token * dim);
  }
  codec::pack_block(at.shape, own, out);
}

void CodedBlock::put_scales(std::size_t head, std::size_t part,
                            std::span<const std::uint16_t> scales,
                            std::span<std::byte> block) const {
  put_row(head, part, scales, block);
}

void CodedBlock::put_biases(std::size_t head, std::size_t part,
                            std::span<const std::uint16_t> biases,
                            std::span<std::byte> block) const {
  put_row(head, parts_[part].bias_row, biases, block);
}

void CodedBlock::put_row(std::size_t head, std::size_t row, std::span<const std::uint16_t> values,
                         std::span<std::byte> block) const {
  assert(block.size() == bytes() && values.size() == kTokens);
  const std::size_t at = n_heads_ * head_code_bytes_ + (head * n_rows_ + row) * kRowBytes;
  std::memcpy(block.data() + at, values.data(), kRowBytes);
}

}  // namespace tqcache::cache
