#include "tqcache/format/section_checks.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "tqcache/codec/block_layout.h"
#include "tqcache/format/section_plan.h"

namespace tqcache::format {
namespace {

// Not finite: all bits of the exponent are set.
constexpr std::uint32_t exponent_mask(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return 0x7f800000;
    case Dtype::kF16:
      return 0x7c00;
    case Dtype::kBF16:
      return 0x7f80;
  }
  return 0;
}

// Index of the first value that is not finite.
template <class Word>
std::optional<std::size_t> find_not_finite(ByteView bytes, std::uint32_t mask) {
  for (std::size_t i = 0; i < bytes.size() / sizeof(Word); ++i) {
    Word word;
    std::memcpy(&word, bytes.data() + i * sizeof(Word), sizeof(Word));
    if ((word & mask) == mask) return i;
  }
  return std::nullopt;
}

std::optional<std::size_t> find_not_finite(ByteView bytes, Dtype dtype) {
  const std::uint32_t mask = exponent_mask(dtype);
  return dtype == Dtype::kF32 ? find_not_finite<std::uint32_t>(bytes, mask)
                              : find_not_finite<std::uint16_t>(bytes, mask);
}

Error corrupt_vector(std::size_t index, std::size_t n_tokens, const std::string& fact) {
  return {ErrorCode::kCorrupt, "head " + std::to_string(index / n_tokens) + " token " +
                                   std::to_string(index % n_tokens) + ": " + fact};
}

Result<void> check_dense(const LayerInfo& layer, const SectionInfo& section, ByteView raw) {
  const Dtype dtype = side_of(layer, section.side).dense_dtype;
  const auto bad = find_not_finite(raw, dtype);
  if (!bad) return {};
  const auto n_vectors =
      raw.size() / dtype_size(dtype) / static_cast<std::size_t>(layer.shape.head_dim);
  const auto n_tokens = n_vectors / static_cast<std::size_t>(layer.shape.n_kv_heads);
  return corrupt_vector(*bad / static_cast<std::size_t>(layer.shape.head_dim), n_tokens,
                        "a value is not finite");
}

// Whatever of a block is not the code of one of its tokens and components is zero: the block is
// what packing its own codes gives.
Result<void> check_unused_bits(const codec::BlockShape& shape, ByteView codes) {
  Bytes again(shape.block_bytes());
  std::vector<std::uint8_t> unpacked(codec::kBlockTokens * shape.dim());
  for (std::size_t head = 0; head < codes.size() / again.size(); ++head) {
    const ByteView block = codes.subspan(head * again.size(), again.size());
    codec::unpack_block(shape, block, unpacked);
    codec::pack_block(shape, unpacked, again);
    if (!std::ranges::equal(block, again)) {
      return Error{ErrorCode::kCorrupt,
                   "head " + std::to_string(head) + ": unused bits of the codes are not zero"};
    }
  }
  return {};
}

Result<void> check_packed(const LayerInfo& layer, const SectionInfo& section, ByteView raw) {
  const codec::BlockShape shape = block_shape(*side_of(layer, section.side).codec, section.side);
  const PackedLayout layout = packed_layout(layer.shape, shape);
  TQC_TRY(check_unused_bits(shape, raw.first(layout.code_bytes)));
  const auto bad = find_not_finite(raw.subspan(layout.code_bytes), Dtype::kF16);
  if (!bad) return {};
  return corrupt_vector(*bad, static_cast<std::size_t>(cache::kTokenBlock),
                        "the scale is not finite");
}

}  // namespace

Result<void> check_values(const LayerInfo& layer, const SectionInfo& section, ByteView raw) {
  assert(raw.size() == section.raw_bytes);
  if (section.side == SideName::kArray) return {};
  return section.packed ? check_packed(layer, section, raw) : check_dense(layer, section, raw);
}

}  // namespace tqcache::format
