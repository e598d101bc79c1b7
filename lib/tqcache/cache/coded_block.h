#pragma once
// cache/coded_block.h: packed token blocks from existing codes and scales, made by another program
// or an older version of tqcache. Nothing is encoded again.
//
// Spec: docs/reference/codec.md §5, docs/reference/format.md §6.2.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/codec/block_layout.h"
#include "tqcache/codec_spec.h"
#include "tqcache/description.h"
#include "tqcache/kv_codec.h"

namespace tqcache::cache {

// Codes of the 256 tokens of one kv head, one per byte: [256, row_codes]. A part uses the codes of
// its channels, from `first` of each row on.
struct CodeColumns {
  std::span<const std::uint8_t> codes;
  std::size_t row_codes = 0;
  std::size_t first = 0;
};

// Fills packed token blocks without sink tokens.
class CodedBlock {
 public:
  // Requires: parts that codec::mode_of() accepts; validate_shape(shape).
  CodedBlock(HeadShape shape, const std::vector<codec::PartSpec>& parts, codec::BlockOrder order);

  std::size_t bytes() const { return layout_.bytes(); }

  // Shapes:   block [bytes()]; scales and biases [256], f16 bits.
  // Requires: codes below 2^bits of the part; put_biases(): the part has a bias.
  void put_codes(std::size_t head, std::size_t part, const CodeColumns& columns,
                 std::span<std::byte> block) const;
  void put_scales(std::size_t head, std::size_t part, std::span<const std::uint16_t> scales,
                  std::span<std::byte> block) const;
  void put_biases(std::size_t head, std::size_t part, std::span<const std::uint16_t> biases,
                  std::span<std::byte> block) const;

 private:
  void put_row(std::size_t head, std::size_t row, std::span<const std::uint16_t> values,
               std::span<std::byte> block) const;

  codec::PackedLayout layout_;
};

}  // namespace tqcache::cache
