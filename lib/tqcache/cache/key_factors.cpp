#include "tqcache/cache/key_factors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "tqcache/quantize.h"

namespace tqcache::cache {
namespace {

// 2^(j / 8), the f32 nearest to it.
constexpr std::array<float, 8> kEighths = {0x1p+0f,        0x1.172b84p+0f, 0x1.306fep+0f,
                                           0x1.4bfdaep+0f, 0x1.6a09e6p+0f, 0x1.8ace54p+0f,
                                           0x1.ae89fap+0f, 0x1.d5818ep+0f};

float power(int eighths) {
  const int low = (eighths % 8 + 8) % 8;
  return std::ldexp(kEighths[static_cast<std::size_t>(low)], (eighths - low) / 8);
}

}  // namespace

Result<void> check_factor_values(std::span<const std::int8_t> eighths, HeadShape shape) {
  const std::int64_t expected = shape.n_kv_heads * shape.head_dim;
  if (std::ssize(eighths) != expected) {
    return Error{ErrorCode::kCorrupt, std::to_string(eighths.size()) + " factors where " +
                                          std::to_string(expected) + " belong"};
  }
  const auto is_beyond = [](std::int8_t x) { return x < -kMostFactor; };
  if (std::ranges::any_of(eighths, is_beyond)) {
    return Error{ErrorCode::kCorrupt, "a factor of 2^-16: the least is 2^-15.875"};
  }
  return {};
}

KeyFactors make_key_factors(std::vector<std::int8_t> eighths) {
  KeyFactors factors{std::move(eighths), AlignedFloats(), AlignedFloats()};
  factors.values.resize(factors.eighths.size());
  factors.inverses.resize(factors.eighths.size());
  for (std::size_t i = 0; i < factors.eighths.size(); ++i) {
    factors.values[i] = power(factors.eighths[i]);
    factors.inverses[i] = power(-factors.eighths[i]);
  }
  return factors;
}

void scale_rows(std::span<const float> factors, std::span<float> rows) {
  const float* const __restrict by = factors.data();
  for (std::size_t at = 0; at < rows.size(); at += factors.size()) {
    float* const __restrict row = rows.data() + at;
    for (std::size_t i = 0; i < factors.size(); ++i) row[i] *= by[i];
  }
}

Sha256 factors_digest(const std::vector<LayerDesc>& layers) {
  Sha256Hasher hash;
  bool has_any = false;
  for (const LayerDesc& layer : layers) {
    const AttentionDesc* const attention = attention_of(layer);
    if (attention == nullptr || !attention->k.quant) continue;
    const std::vector<std::int8_t>& factors = attention->k.quant->factors;
    has_any = has_any || !factors.empty();
    hash.update(std::as_bytes(std::span(factors)));
  }
  return has_any ? hash.finish() : Sha256{};
}

}  // namespace tqcache::cache
