// codec/kernels/center_lanes.h: subtraction of the center from head vectors, and its addition,
// kWidth components at a time. Included by encode_*.cpp.

namespace tqcache::codec {
namespace {

// The components of `part`, starting at the i-th pair, of every row.
template <Dtype kDtype>
TQC_LANES void center_pairs(const VectorRows& x, std::size_t n, std::size_t head_dim,
                            const Center& center, std::size_t first_token, std::size_t i, Part part,
                            float* out) {
  const std::size_t half = center.n_pairs;
  const Lanes a = load(center.mean + i, part), b = load(center.mean + half + i, part);
  for (std::size_t t = 0; t < n; ++t) {
    const std::byte* const row = x.rows + t * x.stride;
    const Lanes c = load(center.cos + (first_token + t) * half + i, part);
    const Lanes s = load(center.sin + (first_token + t) * half + i, part);
    const Lanes low = a * c - b * s;
    const Lanes high = b * c + a * s;
    float* const to = out + t * head_dim + i;
    put(to, widen<kDtype>(row, i, part) - low, part);
    put(to + half, widen<kDtype>(row, half + i, part) - high, part);
  }
}

// Components that are not rotated.
template <Dtype kDtype>
TQC_LANES void center_singles(const VectorRows& x, std::size_t n, std::size_t head_dim,
                              const Center& center, std::size_t i, Part part, float* out) {
  const Lanes mean = center.mean == nullptr ? spread(0.0f) : load(center.mean + i, part);
  for (std::size_t t = 0; t < n; ++t) {
    const Lanes v = widen<kDtype>(x.rows + t * x.stride, i, part);
    // Subtracting 0 would turn a signaling NaN into a quiet one.
    put(out + t * head_dim + i, center.mean == nullptr ? v : v - mean, part);
  }
}

template <Dtype kDtype>
TQC_LANES_FUNCTION void center_all(const VectorRows& x, std::size_t n, std::size_t head_dim,
                                   const Center& center, std::size_t first_token, float* out) {
  const std::size_t half = center.n_pairs;
  std::size_t i = 0;
  for (; i + kWidth <= half; i += kWidth) {
    center_pairs<kDtype>(x, n, head_dim, center, first_token, i, kWhole, out);
  }
  if (i < half) {
    center_pairs<kDtype>(x, n, head_dim, center, first_token, i, part_of(half - i), out);
  }
  for (i = 2 * half; i + kWidth <= head_dim; i += kWidth) {
    center_singles<kDtype>(x, n, head_dim, center, i, kWhole, out);
  }
  if (i < head_dim) {
    center_singles<kDtype>(x, n, head_dim, center, i, part_of(head_dim - i), out);
  }
}

// Components i and half + i of up to kWidth values of i.
template <Dtype kDtype>
TQC_LANES void restore_pairs(const float* x, bool rotates, const Center& center, std::size_t token,
                             std::size_t i, std::byte* out) {
  const std::size_t half = center.n_pairs;
  const Part part = part_of(half - i);
  const Lanes c = load(center.cos + token * half + i, part);
  const Lanes s = load(center.sin + token * half + i, part);
  const Lanes a = load(center.mean + i, part), b = load(center.mean + half + i, part);
  Lanes low = load(x + i, part), high = load(x + half + i, part);
  if (rotates) {
    const Lanes turned = low * c - high * s;
    high = high * c + low * s;
    low = turned;
  }
  narrow<kDtype>(low + (a * c - b * s), out, i, part);
  narrow<kDtype>(high + (b * c + a * s), out, half + i, part);
}

template <Dtype kDtype>
TQC_LANES_FUNCTION void restore_all(const TransformedRows& x, const Center& center,
                                    std::size_t first_token, const MutableVectorRows& out) {
  for (std::size_t t = 0; t < x.n; ++t) {
    const float* const row = x.rows + t * x.head_dim;
    std::byte* const to = out.rows + t * out.stride;
    for (std::size_t i = 0; i < center.n_pairs; i += kWidth) {
      restore_pairs<kDtype>(row, x.rotates, center, first_token + t, i, to);
    }
    for (std::size_t i = 2 * center.n_pairs; i < x.head_dim; i += kWidth) {
      const Part part = part_of(x.head_dim - i);
      Lanes v = load(row + i, part);
      if (center.mean != nullptr) v = v + load(center.mean + i, part);
      narrow<kDtype>(v, to, i, part);
    }
  }
}

}  // namespace

void TQC_SET::center_rows(VectorRows x, std::size_t n, std::size_t head_dim, const Center& center,
                          std::size_t first_token, float* out) {
  return by_dtype(x.dtype, [&]<Dtype kDtype>() {
    return center_all<kDtype>(x, n, head_dim, center, first_token, out);
  });
}

void TQC_SET::restore_rows(const TransformedRows& x, const Center& center, std::size_t first_token,
                           MutableVectorRows out) {
  return by_dtype(out.dtype,
                  [&]<Dtype kDtype>() { return restore_all<kDtype>(x, center, first_token, out); });
}

}  // namespace tqcache::codec
