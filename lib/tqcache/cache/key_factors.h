#pragma once
// cache/key_factors.h: the factors by which components of keys are multiplied before they are
// coded.
//
// A rotation spreads the error of a code evenly over all components. Components that differ in
// variance, or in how much queries look at them, deserve different errors: multiplied by c before
// the codec and by 1 / c after it, a component has 1 / c of the error. A query is multiplied by
// 1 / c once instead, so scoring codes costs nothing more. Factors are powers of 2^(1/8), so that a
// byte holds one, and both c and 1 / c are the same on every CPU.
//
//   const KeyFactors factors = make_key_factors(quant.factors);
//   scale_rows(factors.of_head(shape, 0), rows);           // before encoding
//   scale_rows(factors.inverse_of_head(shape, 0), query);  // before codes are scored
//
// Spec: docs/reference/codec.md §8, "Factors".

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/codec_spec.h"
#include "tqcache/description.h"
#include "tqcache/error.h"

namespace tqcache::cache {

struct KeyFactors {
  std::vector<std::int8_t> eighths = {};  // as in QuantSpec::factors; empty: none
  AlignedFloats values = {};              // 2^(f / 8), in f32: [n_kv_heads, head_dim]
  AlignedFloats inverses = {};            // 2^(-f / 8), in f32

  bool is_there() const { return !eighths.empty(); }
  std::span<const float> of_head(HeadShape shape, std::int64_t kv_head) const {
    return part(values, shape, kv_head);
  }
  std::span<const float> inverse_of_head(HeadShape shape, std::int64_t kv_head) const {
    return part(inverses, shape, kv_head);
  }
  static std::span<const float> part(std::span<const float> all, HeadShape shape,
                                     std::int64_t kv_head) {
    const auto dim = static_cast<std::size_t>(shape.head_dim);
    return all.subspan(static_cast<std::size_t>(kv_head) * dim, dim);
  }
};

// Whether codecs of this mode may have factors: those that rotate. Others quantize each component,
// or each group of them, with a scale of its own, or have transforms made for their vectors.
constexpr bool may_have_factors(codec::Mode mode) {
  return mode == codec::Mode::kMse || mode == codec::Mode::kProd || mode == codec::Mode::kMixed;
}

// Errors: kCorrupt for another number of factors than the shape has components, and for -128.
Result<void> check_factor_values(std::span<const std::int8_t> eighths, HeadShape shape);

// Requires: check_factor_values(). Empty gives none.
KeyFactors make_key_factors(std::vector<std::int8_t> eighths);

// rows[t][i] *= factors[i]. Shapes: rows [n, head_dim].
void scale_rows(std::span<const float> factors, std::span<float> rows);

}  // namespace tqcache::cache
