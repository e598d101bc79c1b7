#include "tqcache/interop/mlx/mlx_lm_affine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "tqcache/cache/cache.h"
#include "tqcache/codec/block_layout.h"

namespace tqcache::interop {
namespace {

constexpr float kMinScale = 1e-7f;

using Codes = std::array<std::uint8_t, cache::kMaxHeadDim>;

struct Group {
  float scale = 0;
  float bias = 0;
};

// The code 0 stands for the edge that is farther from 0, and a code for 0 itself if there is one.
Group fit_group(std::span<const float> x, float max_code) {
  float low = std::numeric_limits<float>::infinity();
  float high = -low;
  for (const float value : x) {
    high = std::max(high, value);
    low = std::min(low, value);
  }
  const bool low_is_edge = std::abs(low) > std::abs(high);
  const float step = std::max((high - low) / max_code, kMinScale);
  Group group{.scale = low_is_edge ? step : -step, .bias = 0};
  const float edge = low_is_edge ? low : high;
  const float steps = std::rint(edge / group.scale);
  if (steps != 0) group = {.scale = edge / steps, .bias = edge};
  return group;
}

std::uint8_t code_of(float value, Group group, float max_code) {
  const float code = std::rint((value - group.bias) / group.scale);
  if (!(code > 0)) return 0;
  return static_cast<std::uint8_t>(std::min(code, max_code));
}

}  // namespace

Result<void> check_affine(std::int64_t bits, std::int64_t group_size, std::int64_t head_dim) {
  if (bits < 2 || bits > 8 || bits == 7) {
    return Error{ErrorCode::kUnsupported, "groups of " + std::to_string(bits) + " bits"};
  }
  if (group_size != 32 && group_size != 64 && group_size != 128) {
    return Error{ErrorCode::kUnsupported,
                 "groups of " + std::to_string(group_size) + " components"};
  }
  if (head_dim % group_size == 0) return {};
  return Error{ErrorCode::kCorrupt, "head_dim " + std::to_string(head_dim) + " in groups of " +
                                        std::to_string(group_size)};
}

void affine_decode(AffineForm form, std::span<const std::byte> codes, std::span<const float> scales,
                   std::span<const float> biases, std::span<float> x) {
  Codes values;
  codec::unpack_codes(codes, form.bits, std::span(values).first(x.size()));
  const auto size = static_cast<std::size_t>(form.group_size);
  for (std::size_t group = 0; group < scales.size(); ++group) {
    const float scale = scales[group];
    const float bias = biases[group];
    for (std::size_t i = group * size; i < (group + 1) * size; ++i) {
      x[i] = scale * static_cast<float>(values[i]) + bias;
    }
  }
}

void affine_encode(AffineForm form, Dtype dtype, std::span<const float> x,
                   std::span<std::byte> codes, std::span<std::byte> scales,
                   std::span<std::byte> biases) {
  Codes values;
  const auto max_code = static_cast<float>((1 << form.bits) - 1);
  const auto size = static_cast<std::size_t>(form.group_size);
  for (std::size_t i = 0; i < affine_groups(form, std::ssize(x)); ++i) {
    const auto part = x.subspan(i * size, size);
    const Group group = fit_group(part, max_code);
    std::ranges::transform(part, values.begin() + std::ptrdiff_t(i * size),
                           [&](float value) { return code_of(value, group, max_code); });
    store_f32(dtype, std::span(&group.scale, 1), scales.data() + i * dtype_size(dtype));
    store_f32(dtype, std::span(&group.bias, 1), biases.data() + i * dtype_size(dtype));
  }
  codec::pack_codes(std::span(values).first(x.size()), form.bits, codes);
}

}  // namespace tqcache::interop
