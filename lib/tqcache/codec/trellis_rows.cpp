#include "tqcache/codec/trellis_rows.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <string>
#include <vector>

#include "tqcache/base/half.h"
#include "tqcache/codec/dot.h"
#include "tqcache/codec/trellis.h"

namespace tqcache::codec {
namespace {

constexpr std::uint16_t kF16Infinity = 0x7c00;
constexpr float kLevelsOfUnit = 128.0f;  // the centroid of code c is (c - 128) / 128

// Scales of all rows, and the rows in steps of theirs.
Result<void> take_steps(const Quantizer& quantizer, std::span<float> rows,
                        std::span<std::uint16_t> scales) {
  const std::size_t dim = quantizer.rotation().head_dim();
  const float shrink = step_shrink(quantizer.spec().step);
  for (std::size_t t = 0; t * dim < rows.size(); ++t) {
    const std::span<float> row = rows.subspan(t * dim, dim);
    scales[t] = step_scale(std::sqrt(lane_dot(row, row)), dim, quantizer.spec().step);
    if (scales[t] >= kF16Infinity) {
      return Error{ErrorCode::kUnsupported, "token " + std::to_string(t) + ": scale beyond f16"};
    }
    if (scales[t] == 0) {
      std::ranges::fill(row, 0.0f);
      continue;
    }
    quantizer.rotation().rotate(row, row);
    const float levels = kLevelsOfUnit / f16_to_f32(scales[t]) * shrink;
    for (float& value : row) value *= levels;
  }
  return {};
}

// Tokens without a scale have code 0, which is a path of its own, and not the level 0.
void clear_silent(std::span<const std::uint16_t> scales, const TrellisShape& shape,
                  std::span<std::uint8_t> symbols) {
  for (std::size_t t = 0; t < shape.n_vectors; ++t) {
    if (scales[t] != 0) continue;
    for (std::size_t i = t; i < symbols.size(); i += shape.n_vectors) symbols[i] = 0;
  }
}

}  // namespace

std::uint16_t step_scale(float length, std::size_t dim, float step) {
  const float factor = kLevelsOfUnit * step / std::sqrt(static_cast<float>(dim));
  const unsigned half = f32_to_f16(length * factor);
  constexpr unsigned kUnit = 1u << kStepScaleShift;
  return static_cast<std::uint16_t>((half + kUnit / 2) / kUnit * kUnit);
}

float step_shrink(float step) {
  constexpr float kErrorOfStep = 0.2635f;  // mean square, of a step of 1
  return 1.0f / (1.0f + kErrorOfStep * step * step);
}

Result<void> encode_trellis_rows(const Quantizer& quantizer, std::span<float> rows,
                                 BlockOrder order, const Kernels& kernels,
                                 std::span<std::byte> block, std::span<std::uint16_t> scales) {
  const std::size_t dim = quantizer.rotation().head_dim();
  assert(quantizer.spec().scale == ScaleRule::kStep && scales.size() == kBlockTokens);
  const TrellisShape shape{dim, rows.size() / dim};
  std::ranges::fill(scales, std::uint16_t{0});
  TQC_TRY(take_steps(quantizer, rows, scales));
  std::vector<std::uint8_t> symbols(shape.size());
  TQC_TRY(
      encode_trellis(shape, rows, {.symbols = symbols, .products = {}, .squares = {}}, kernels));
  clear_silent(scales, shape, symbols);
  return decode_trellis_block(shape, symbols, order, block, kernels);
}

}  // namespace tqcache::codec
