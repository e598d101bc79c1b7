// codec/kernels/restore_lanes.h: Kernels::restore_rows over vectors of floats. Included by the
// files of the CPUs, which say before what a vector of floats is (Lanes), have load_some() and
// narrow_some() for the first n values of one, and say what functions are compiled for (TQC_LANES,
// TQC_LANES_FUNCTION).

#include "tqcache/codec/kernels/by_dtype.h"
#include "tqcache/codec/kernels/kernels.h"

namespace tqcache::codec {
namespace {

constexpr std::size_t kRestored = sizeof(Lanes) / sizeof(float);

// Components i and half + i of up to kRestored values of i.
template <Dtype kDtype>
TQC_LANES void restore_pairs(const float* x, bool turns, const Center& center, std::size_t token,
                             std::size_t i, std::byte* out) {
  const std::size_t half = center.n_pairs, n = half - i;
  const Lanes c = load_some(center.cos + token * half + i, n);
  const Lanes s = load_some(center.sin + token * half + i, n);
  const Lanes a = load_some(center.mean + i, n), b = load_some(center.mean + half + i, n);
  Lanes low = load_some(x + i, n), high = load_some(x + half + i, n);
  if (turns) {
    const Lanes turned = low * c - high * s;
    high = high * c + low * s;
    low = turned;
  }
  narrow_some<kDtype>(low + (a * c - b * s), out, i, n);
  narrow_some<kDtype>(high + (b * c + a * s), out, half + i, n);
}

template <Dtype kDtype>
TQC_LANES_FUNCTION void restore_all(const TransformedRows& x, const Center& center,
                                    std::size_t first_token, const MutableVectorRows& out) {
  for (std::size_t t = 0; t < x.n; ++t) {
    const float* const row = x.rows + t * x.head_dim;
    std::byte* const to = out.rows + t * out.stride;
    for (std::size_t i = 0; i < center.n_pairs; i += kRestored) {
      restore_pairs<kDtype>(row, x.turns, center, first_token + t, i, to);
    }
    for (std::size_t i = 2 * center.n_pairs; i < x.head_dim; i += kRestored) {
      const std::size_t n = x.head_dim - i;
      Lanes v = load_some(row + i, n);
      if (center.mean != nullptr) v = v + load_some(center.mean + i, n);
      narrow_some<kDtype>(v, to, i, n);
    }
  }
}

}  // namespace
}  // namespace tqcache::codec
