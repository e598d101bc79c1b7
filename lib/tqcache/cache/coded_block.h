#pragma once
// cache/coded_block.h: packed token blocks from codes and scales that somebody else chose: another
// program, or an older version of ours. Nothing is coded anew.
//
// Spec: docs/reference/codec.md §5, docs/reference/format.md §6.2.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/cache/kv_codec.h"
#include "tqcache/cache/token_block.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/codec/codec_spec.h"

namespace tqcache::cache {

// Codes of the 256 tokens of one kv head, one a byte, as they come: [256, row_codes]. A part takes
// those of its channels, from `first` of each row on.
struct CodeColumns {
  std::span<const std::uint8_t> codes;
  std::size_t row_codes = 0;
  std::size_t first = 0;
};

// Fills packed token blocks without sink tokens.
class CodedBlock {
 public:
  // Requires: parts that codec::mode_of() takes; validate_shape(shape).
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

  PackedLayout layout_;
};

}  // namespace tqcache::cache
