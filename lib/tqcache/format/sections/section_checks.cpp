#include "tqcache/format/sections/section_checks.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/half.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/codec/trellis/trellis.h"
#include "tqcache/codec/trellis/trellis_rows.h"
#include "tqcache/error.h"
#include "tqcache/format/sections/symbol_section.h"

namespace tqcache::format {
namespace {

std::string vector_place(std::size_t head, std::size_t token) {
  return "head " + std::to_string(head) + " token " + std::to_string(token) + ": ";
}

// Rows of head vectors, [n_kv_heads, n_tokens, head_dim] of `dtype`.
Result<void> check_dense_rows(cache::HeadShape shape, Dtype dtype, ByteView rows) {
  const auto bad = find_not_finite(dtype, rows);
  if (!bad) return {};
  const auto head_dim = static_cast<std::size_t>(shape.head_dim);
  const std::size_t n_vectors = rows.size() / dtype_size(dtype) / head_dim;
  const auto n_tokens = n_vectors / static_cast<std::size_t>(shape.n_kv_heads);
  const std::size_t vector = *bad / head_dim;
  return corrupt(vector_place(vector / n_tokens, vector % n_tokens) + "a value is not finite");
}

// Checks that all bits of a part's block outside its codes are zero: packing the unpacked codes
// again must give the same block. Codes of sink tokens must be zero too.
Result<void> check_codes(const codec::BlockShape& shape, ByteView block, std::size_t n_sinks) {
  std::vector<std::uint8_t> codes(codec::kBlockTokens * shape.dim());
  codec::unpack_block(shape, block, codes);
  Bytes again(block.size());
  codec::pack_block(shape, codes, again);
  if (!std::ranges::equal(block, again)) return corrupt("unused bits of the codes are not zero");
  const auto of_sinks = std::span(codes).first(n_sinks * shape.dim());
  const auto is_zero = [](std::uint8_t code) { return code == 0; };
  if (!std::ranges::all_of(of_sinks, is_zero)) return corrupt("codes of a sink token are not zero");
  return {};
}

// Shapes: codes [layout.code_bytes].
Result<void> check_head_codes(const codec::PackedLayout& layout, ByteView codes,
                              std::size_t n_sinks) {
  for (std::size_t i = 0; i < layout.parts.size(); ++i) {
    const codec::PackedLayout::Part& part = layout.parts[i];
    const ByteView block = codes.subspan(part.code_offset, part.shape.block_bytes());
    if (auto checked = check_codes(part.shape, block, n_sinks); !checked) {
      return in_context("part " + std::to_string(i), std::move(checked).error());
    }
  }
  return {};
}

// Shapes: row [256] of f16: the scales, or the biases, of one part.
Result<void> check_scale_row(std::size_t head, ByteView row, std::size_t n_sinks) {
  if (const auto bad = find_not_finite(Dtype::kF16, row)) {
    return corrupt(vector_place(head, *bad) + "a scale is not finite");
  }
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  if (std::ranges::all_of(row.first(n_sinks * sizeof(std::uint16_t)), is_zero)) return {};
  return corrupt("head " + std::to_string(head) + ": a scale of a sink token is not zero");
}

// In mode trellis, codes must form a path, and scales must fit into one byte.
Result<void> check_paths(const cache::LayerDesc& layer, const SectionInfo& section, ByteView raw) {
  if (!has_symbols(tensor_of(layer, section.tensor))) return {};
  const SymbolShape shape = symbol_shape(layer, section);
  std::vector<std::uint8_t> symbols(shape.head_dim * codec::kBlockTokens);
  for (std::size_t head = 0; head < shape.n_heads; ++head) {
    const ByteView block = raw.subspan(shape.layout.codes_at(head), shape.layout.code_bytes);
    auto path = codec::trellis_block_symbols({shape.head_dim, codec::kBlockTokens}, block,
                                             shape.order, symbols);
    if (!path) return in_context("head " + std::to_string(head), std::move(path).error());
  }
  constexpr std::uint16_t kUnused = (1u << codec::kStepScaleShift) - 1;
  const std::size_t n_scales = shape.n_heads * codec::kBlockTokens;
  for (std::size_t i = 0; i < n_scales; ++i) {
    std::uint16_t scale;
    std::memcpy(&scale, raw.data() + shape.layout.scales_at(0) + i * sizeof(scale), sizeof(scale));
    if ((scale & kUnused) == 0 && scale < 0x8000) continue;
    return corrupt(vector_place(i / codec::kBlockTokens, i % codec::kBlockTokens) +
                   "a scale that is no byte");
  }
  return {};
}

Result<void> check_packed(const cache::LayerDesc& layer, const SectionInfo& section, ByteView raw) {
  const cache::TensorDesc& tensor = tensor_of(layer, section.tensor);
  const cache::HeadShape shape = shape_of(layer, section.tensor);
  const codec::PackedLayout layout =
      cache::packed_layout(tensor, shape, order_of(section.tensor), section.block);
  for (std::size_t head = 0; head < layout.n_heads; ++head) {
    const ByteView codes = raw.subspan(layout.codes_at(head), layout.code_bytes);
    if (auto ok = check_head_codes(layout, codes, layout.n_sinks); !ok) {
      return in_context("head " + std::to_string(head), std::move(ok).error());
    }
  }
  constexpr std::size_t kRowBytes = codec::PackedLayout::kRowBytes;
  const std::size_t n_rows = layout.n_scale_rows;
  for (std::size_t row = 0; row < layout.n_heads * n_rows; ++row) {
    TQC_TRY(check_scale_row(row / n_rows,
                            raw.subspan(layout.scales_at(0) + row * kRowBytes, kRowBytes),
                            layout.n_sinks));
  }
  TQC_TRY(check_paths(layer, section, raw));
  return check_dense_rows(shape, tensor.dtype, raw.subspan(layout.sinks_at(0)));
}

}  // namespace

Result<void> check_values(const cache::LayerDesc& layer, const SectionInfo& section, ByteView raw) {
  assert(raw.size() == section.raw_bytes);
  if (section.tensor == TensorKind::kArray) return {};
  if (section.packed) return check_packed(layer, section, raw);
  return check_dense_rows(shape_of(layer, section.tensor), tensor_of(layer, section.tensor).dtype,
                          raw);
}

}  // namespace tqcache::format
