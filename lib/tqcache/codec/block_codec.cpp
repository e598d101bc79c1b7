#include "tqcache/codec/block_codec.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cassert>
#include <mutex>
#include <string>

#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/codec/quantizer.h"

namespace tqcache::codec {
namespace {

constexpr std::size_t kQuads = kLanes / kLaneCodes;  // lines of sixteen components
constexpr std::size_t kUnitGroups = kUnitLaneCodes / kLanes;

// Lines of bytes of sixteen tokens, in the order of keys.
struct TokenLines {
  alignas(64) std::array<std::uint8_t, kMaxHeadDim / kLaneCodes * kLineBytes> bytes;
};

// Sixteen head vectors after subtracting the center: [16, head_dim].
struct CenteredRows {
  alignas(64) std::array<float, kLanes * kMaxHeadDim> values;
};

// The number of tokens in group g that are among the first n.
std::size_t tokens_of(std::size_t group, std::size_t n_tokens) {
  const std::size_t first = group * kLanes;
  return first < n_tokens ? std::min(kLanes, n_tokens - first) : 0;
}

template <class Rows>
Rows from_token(Rows rows, std::size_t token) {
  rows.rows += token * rows.stride;
  return rows;
}

// The lines of two groups of sixteen tokens: one unit of values.
using UnitLines = std::array<TokenLines, kUnitGroups>;

// n vectors from token `first` on for the encoder: the given rows, or copies less the center.
VectorRows take_out(const Kernels& kernels, const VectorRows& x, const Center& center,
                    std::size_t first, std::size_t n, std::size_t head_dim, CenteredRows& buffer) {
  const VectorRows rows = from_token(x, first);
  if (center.mean == nullptr) return rows;
  kernels.center_rows(rows, n, head_dim, center, first, buffer.values.data());
  const auto bytes = std::as_bytes(std::span(buffer.values));
  return {Dtype::kF32, bytes.data(), head_dim * sizeof(float)};
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
        rotation_tables(quantizer),
        kernels(given) {}

  State(const State&) = delete;  // rotation_tables points into it

  // Computes lines of bytes and scales for the tokens of a group that are among the first n_tokens.
  // Returns a bit for each rejected token.
  std::uint32_t encode_group(const VectorRows& x, const Center& center, std::size_t group,
                             std::size_t n_tokens, TokenLines& lines,
                             std::span<std::uint16_t> scales) const;
  void pack_values(const UnitLines& lines, std::size_t unit, std::span<std::byte> block) const;
  void unpack_values(std::span<const std::byte> block, std::size_t unit, UnitLines& lines) const;
  std::size_t unit_offset(std::size_t group, std::size_t unit) const {
    return group * shape.group_bytes() + unit * static_cast<std::size_t>(shape.bits) * kLineBytes;
  }

  Quantizer quantizer;
  BlockShape shape;
  RotationTables rotation_tables;
  const Kernels& kernels;
  // Made when they are first asked for: they take milliseconds, and only scores and sums need them.
  // Attention asks at every block, so what comes first is a flag that is cheaper than call_once().
  mutable std::atomic<bool> has_code_tables = false;
  mutable std::once_flag once;
  mutable CodeTables code_tables;
};

std::uint32_t BlockCodec::State::encode_group(const VectorRows& x, const Center& center,
                                              std::size_t group, std::size_t n_tokens,
                                              TokenLines& lines,
                                              std::span<std::uint16_t> scales) const {
  const std::size_t n = tokens_of(group, n_tokens);
  if (n == 0) {
    lines.bytes.fill(0);
    return 0;
  }
  const std::size_t first = group * kLanes;
  CenteredRows centered;
  const VectorRows rows = take_out(kernels, x, center, first, n, shape.dim(), centered);
  return kernels.encode_lines(rotation_tables, rows, n, lines.bytes.data(), &scales[first]);
}

void BlockCodec::State::pack_values(const UnitLines& lines, std::size_t unit,
                                    std::span<std::byte> block) const {
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    alignas(64) std::array<std::uint8_t, kUnitLines * kLineBytes> transposed;
    for (std::size_t i = 0; i < kUnitGroups; ++i) {
      kernels.transpose_lines(lines[i].bytes.data() + group * kQuads * kLineBytes,
                              transposed.data() + i * kQuads * kLineBytes);
    }
    pack_unit(shape.bits, transposed.data(), as_u8(block.data()) + unit_offset(group, unit));
  }
}

void BlockCodec::State::unpack_values(std::span<const std::byte> block, std::size_t unit,
                                      UnitLines& lines) const {
  for (std::size_t group = 0; group < shape.groups(); ++group) {
    alignas(64) std::array<std::uint8_t, kUnitLines * kLineBytes> transposed;
    unpack_unit(shape.bits, as_u8(block.data()) + unit_offset(group, unit), transposed.data());
    for (std::size_t i = 0; i < kUnitGroups; ++i) {
      kernels.transpose_lines(transposed.data() + i * kQuads * kLineBytes,
                              lines[i].bytes.data() + group * kQuads * kLineBytes);
    }
  }
}

BlockCodec::BlockCodec(const Quantizer& quantizer, BlockOrder order, const Kernels& kernels)
    : state_(std::make_shared<const State>(quantizer, order, kernels)) {}

const BlockShape& BlockCodec::shape() const { return state_->shape; }
const Quantizer& BlockCodec::quantizer() const { return state_->quantizer; }
const CodeTables& BlockCodec::tables() const {
  const State& state = *state_;
  if (!state.has_code_tables.load(std::memory_order_acquire)) {
    std::call_once(state.once, [&] {
      state.code_tables =
          make_code_tables(state.shape.head_dim, state.shape.bits, state.quantizer.centroids());
      state.has_code_tables.store(true, std::memory_order_release);
    });
  }
  return state.code_tables;
}
const RotationTables& BlockCodec::rotation_tables() const { return state_->rotation_tables; }
const Kernels& BlockCodec::kernels() const { return state_->kernels; }

Error BlockCodec::refusal(const VectorRows& x, const Center& center, std::size_t token) const {
  std::array<float, kMaxHeadDim> buffer;
  std::array<std::byte, kMaxHeadDim> codes;
  const std::span vector = std::span(buffer).first(shape().dim());
  scalar_kernels().center_rows(from_token(x, token), 1, vector.size(), center, token,
                               vector.data());
  auto refused = quantizer().encode(vector, std::span(codes).first(quantizer().code_bytes()));
  return in_context("token " + std::to_string(token), std::move(refused).error());
}

Result<void> BlockCodec::encode(VectorRows x, const Center& center, std::size_t n_tokens,
                                std::span<std::byte> block, std::span<std::uint16_t> scales) const {
  assert(n_tokens > 0 && n_tokens <= kBlockTokens);
  assert(block.size() == shape().block_bytes() && scales.size() == kBlockTokens);
  const bool keys = shape().order == BlockOrder::kKeys;
  std::fill(scales.begin(), scales.end(), std::uint16_t{0});
  UnitLines lines;
  for (std::size_t group = 0; group < kBlockTokens / kLanes; ++group) {
    TokenLines& group_lines = lines[keys ? 0 : group % kUnitGroups];
    const std::uint32_t refused =
        state_->encode_group(x, center, group, n_tokens, group_lines, scales);
    if (refused != 0) {
      const int first = std::countr_zero(refused);
      return refusal(x, center, group * kLanes + static_cast<std::size_t>(first));
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
    state_->kernels.decode_lines(state_->rotation_tables, group_lines.bytes.data(),
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
