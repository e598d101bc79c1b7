#include "tqcache/cache/coded_block.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace tqcache::cache {
namespace {

constexpr std::size_t kTokens = codec::kBlockTokens;

}  // namespace

CodedBlock::CodedBlock(HeadShape shape, const std::vector<codec::PartSpec>& parts,
                       codec::BlockOrder order)
    : layout_(codec::head_layout(parts, order)) {
  layout_.n_heads = static_cast<std::size_t>(shape.n_kv_heads);
}

void CodedBlock::put_codes(std::size_t head, std::size_t part, const CodeColumns& columns,
                           std::span<std::byte> block) const {
  assert(block.size() == bytes() && columns.codes.size() == kTokens * columns.row_codes);
  const codec::PackedLayout::Part& at = layout_.parts[part];
  const std::size_t dim = at.shape.dim();
  const std::span out =
      block.subspan(layout_.codes_at(head) + at.code_offset, at.shape.block_bytes());
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
  put_row(head, layout_.parts[part].bias_row, biases, block);
}

void CodedBlock::put_row(std::size_t head, std::size_t row, std::span<const std::uint16_t> values,
                         std::span<std::byte> block) const {
  assert(block.size() == bytes() && values.size() == kTokens);
  const std::size_t at = layout_.scales_at(head) + row * codec::PackedLayout::kRowBytes;
  std::memcpy(block.data() + at, values.data(), values.size_bytes());
}

}  // namespace tqcache::cache
