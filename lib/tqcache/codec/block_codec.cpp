#include "tqcache/codec/block_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <string>

#include "tqcache/codec/codebook.h"
#include "tqcache/codec/kernel_tables.h"
#include "tqcache/codec/rotation_tables.h"

namespace tqcache::codec {
namespace {

constexpr std::size_t kQuads = kLanes / kLaneCodes;  // lines of sixteen components
constexpr std::size_t kUnitGroups = kUnitLaneCodes / kLanes;

// Lines of bytes of sixteen tokens, in the keys' order.
struct TokenLines {
  alignas(64) std::array<std::uint8_t, kMaxHeadDim / kLaneCodes * kLineBytes> bytes;
};

RotationTables make_rotation_tables(const Quantizer& quantizer) {
  RotationTables tables;
  const CodecSpec& spec = quantizer.spec();
  tables.quantizer = &quantizer;
  tables.head_dim = static_cast<std::size_t>(spec.head_dim);
  tables.bits = spec.bits;
  tables.factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
  const std::span<const float> signs = quantizer.rotation().signs();
  for (std::size_t i = 0; i < signs.size(); ++i) {
    tables.sign_bits[i] = std::signbit(signs[i]) ? 0x80000000u : 0u;
  }
  const std::span<const float> centroids = quantizer.centroids();
  for (std::size_t i = 0; i < std::size(tables.centroids); ++i) {
    tables.centroids[i] = centroids[i % centroids.size()];
  }
  const std::vector<float> boundaries = decision_boundaries(centroids);
  std::size_t node = 0;
  for (std::size_t step = centroids.size() / 2; step > 0; step /= 2) {
    for (std::size_t i = step; i <= boundaries.size(); i += 2 * step) {
      tables.boundary_tree[node++] = boundaries[i - 1];
    }
  }
  return tables;
}

// Tokens of group g that are among the first n.
std::size_t tokens_of(std::size_t group, std::size_t n_tokens) {
  const std::size_t first = group * kLanes;
  return first < n_tokens ? std::min(kLanes, n_tokens - first) : 0;
}

template <class Rows>
Rows from_token(Rows rows, std::size_t token) {
  rows.rows += token * rows.stride;
  return rows;
}

// The lines of two groups of sixteen tokens: one unit's worth of values.
using UnitLines = std::array<TokenLines, kUnitGroups>;

// Whether these kernels do better here than the definition.
bool has_conversion(const Kernels& kernels, const BlockShape& shape) {
  return std::has_single_bit(shape.dim()) && kernels.encode_lines != scalar_kernels().encode_lines;
}

std::uint8_t* as_u8(std::byte* bytes) { return reinterpret_cast<std::uint8_t*>(bytes); }
const std::uint8_t* as_u8(const std::byte* bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes);
}

}  // namespace

struct BlockCodec::State {
  State(const Quantizer& from, BlockOrder order, const Kernels& given)
      : quantizer(from),
        shape{from.spec().head_dim, from.spec().bits, order},
        code_tables(make_code_tables(shape.head_dim, shape.bits, from.centroids())),
        rotation_tables(make_rotation_tables(quantizer)),
        kernels(given),
        conversion(has_conversion(given, shape) ? given : scalar_kernels()) {}

  State(const State&) = delete;  // rotation_tables points into it

  void pack_values(const UnitLines& lines, std::size_t unit, std::span<std::byte> block) const;
  void unpack_values(std::span<const std::byte> block, std::size_t unit, UnitLines& lines) const;
  std::size_t unit_offset(std::size_t group, std::size_t unit) const {
    return group * shape.group_bytes() + unit * static_cast<std::size_t>(shape.bits) * kLineBytes;
  }

  Quantizer quantizer;
  BlockShape shape;
  CodeTables code_tables;
  RotationTables rotation_tables;
  const Kernels& kernels;
  const Kernels& conversion;
};

void BlockCodec::State::pack_values(const UnitLines& lines, std::size_t unit,
                                    std::span<std::byte> block) const {
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    alignas(64) std::array<std::uint8_t, kUnitLines * kLineBytes> turned;
    for (std::size_t i = 0; i < kUnitGroups; ++i) {
      conversion.transpose_lines(lines[i].bytes.data() + group * kQuads * kLineBytes,
                                 turned.data() + i * kQuads * kLineBytes);
    }
    pack_unit(shape.bits, turned.data(), as_u8(block.data()) + unit_offset(group, unit));
  }
}

void BlockCodec::State::unpack_values(std::span<const std::byte> block, std::size_t unit,
                                      UnitLines& lines) const {
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    alignas(64) std::array<std::uint8_t, kUnitLines * kLineBytes> turned;
    unpack_unit(shape.bits, as_u8(block.data()) + unit_offset(group, unit), turned.data());
    for (std::size_t i = 0; i < kUnitGroups; ++i) {
      conversion.transpose_lines(turned.data() + i * kQuads * kLineBytes,
                                 lines[i].bytes.data() + group * kQuads * kLineBytes);
    }
  }
}

BlockCodec::BlockCodec(const Quantizer& quantizer, BlockOrder order, const Kernels& kernels)
    : state_(std::make_shared<const State>(quantizer, order, kernels)) {}

const BlockShape& BlockCodec::shape() const { return state_->shape; }
const Quantizer& BlockCodec::quantizer() const { return state_->quantizer; }
const CodeTables& BlockCodec::tables() const { return state_->code_tables; }
const Kernels& BlockCodec::kernels() const { return state_->kernels; }
const char* BlockCodec::conversion_kernels() const { return state_->conversion.name; }

Error BlockCodec::refusal(const VectorRows& x, std::size_t token) const {
  std::array<float, kMaxHeadDim> buffer;
  std::array<std::byte, kMaxHeadDim> codes;
  const std::span vector = std::span(buffer).first(shape().dim());
  load_f32(x.dtype, x.rows + token * x.stride, vector);
  auto refused = quantizer().encode(vector, std::span(codes).first(quantizer().code_bytes()));
  return in_context("token " + std::to_string(token), std::move(refused).error());
}

Result<void> BlockCodec::encode(VectorRows x, std::size_t n_tokens, std::span<std::byte> block,
                                std::span<std::uint16_t> scales) const {
  assert(n_tokens > 0 && n_tokens <= kBlockTokens);
  assert(block.size() == shape().block_bytes() && scales.size() == kBlockTokens);
  const bool keys = shape().order == BlockOrder::kKeys;
  std::fill(scales.begin(), scales.end(), std::uint16_t{0});
  UnitLines lines;
  for (std::size_t group = 0; group < kBlockTokens / kLanes; ++group) {
    TokenLines& group_lines = lines[keys ? 0 : group % kUnitGroups];
    const std::size_t n = tokens_of(group, n_tokens);
    if (n == 0) {
      group_lines.bytes.fill(0);
    } else {
      const std::size_t first = group * kLanes;
      const std::uint32_t refused =
          state_->conversion.encode_lines(state_->rotation_tables, from_token(x, first), n,
                                          group_lines.bytes.data(), scales.data() + first);
      if (refused != 0) {
        return refusal(x, first + static_cast<std::size_t>(std::countr_zero(refused)));
      }
    }
    if (keys) {
      pack_group(shape(), group_lines.bytes.data(),
                 as_u8(block.data()) + group * shape().group_bytes());
    } else if (group % kUnitGroups == kUnitGroups - 1) {
      state_->pack_values(lines, group / kUnitGroups, block);
    }
  }
  return {};
}

void BlockCodec::decode(std::span<const std::byte> block, std::span<const std::uint16_t> scales,
                        std::size_t n_tokens, MutableVectorRows x) const {
  assert(n_tokens > 0 && n_tokens <= kBlockTokens);
  assert(block.size() == shape().block_bytes() && scales.size() == kBlockTokens);
  const bool keys = shape().order == BlockOrder::kKeys;
  UnitLines lines;
  for (std::size_t group = 0; group * kLanes < n_tokens; ++group) {
    TokenLines& group_lines = lines[keys ? 0 : group % kUnitGroups];
    if (keys) {
      unpack_group(shape(), as_u8(block.data()) + group * shape().group_bytes(),
                   group_lines.bytes.data());
    } else if (group % kUnitGroups == 0) {
      state_->unpack_values(block, group / kUnitGroups, lines);
    }
    state_->conversion.decode_lines(state_->rotation_tables, group_lines.bytes.data(),
                                    scales.data() + group * kLanes, tokens_of(group, n_tokens),
                                    from_token(x, group * kLanes));
  }
}

PackedBlock BlockCodec::view(std::span<const std::byte> block,
                             std::span<const std::uint16_t> scales, std::size_t n_tokens) const {
  assert(n_tokens > 0 && n_tokens <= kBlockTokens);
  assert(block.size() == shape().block_bytes() && scales.size() == kBlockTokens);
  return {.shape = shape(),
          .codes = as_u8(block.data()),
          .scales = scales.data(),
          .n_tokens = n_tokens};
}

}  // namespace tqcache::codec
