#include "tqcache/codec/trellis/trellis_rows.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <string>
#include <vector>

#include "tqcache/base/half.h"
#include "tqcache/codec/trellis/trellis.h"
#include "tqcache/codec/trellis/trellis_search.h"

namespace tqcache::codec {
namespace {

constexpr float kLevelsOfUnit = 128.0f;  // the centroid of code c is (c - 128) / 128

Result<void> check_scales(std::span<const std::uint16_t> scales) {
  const auto bad = std::ranges::find_if(scales, [](auto scale) { return scale >= kF16Infinity; });
  if (bad == scales.end()) return {};
  return Error{ErrorCode::kUnsupported,
               "token " + std::to_string(bad - scales.begin()) + ": scale beyond f16"};
}

// Tokens with scale 0 get code 0 throughout, which is a path of its own and not the level 0.
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
  constexpr float kErrorOfStep = 0.2635f;  // mean square, for a step of 1
  return 1.0f / (1.0f + kErrorOfStep * step * step);
}

float levels_of_step(std::uint16_t scale, float step) {
  if (scale == 0 || scale >= kF16Infinity) return 0.0f;
  return kLevelsOfUnit / f16_to_f32(scale) * step_shrink(step);
}

Result<void> encode_trellis_rows(const RotationTables& tables, std::span<const float> rows,
                                 BlockOrder order, const Kernels& kernels,
                                 std::span<std::byte> block, std::span<std::uint16_t> scales) {
  assert(tables.scale == ScaleRule::kStep && scales.size() == kBlockTokens);
  const TrellisShape shape{tables.head_dim, rows.size() / tables.head_dim};
  std::ranges::fill(scales, std::uint16_t{0});
  std::vector<std::uint8_t> symbols(shape.size());
  [[maybe_unused]] const std::size_t done = kernels.trellis.search({.rows = rows.data(),
                                                                    .shape = shape,
                                                                    .symbols = symbols.data(),
                                                                    .tables = &tables,
                                                                    .scales = scales.data()});
  assert(done == shape.n_vectors);
  TQC_TRY(check_scales(scales));
  clear_silent(scales, shape, symbols);
  return decode_trellis_block(shape, symbols, order, block, kernels);
}

}  // namespace tqcache::codec
