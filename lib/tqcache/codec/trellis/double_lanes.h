// codec/trellis/double_lanes.h: loops over kDoubles f64 at a time (DoubleLoops in kernels.h).
// Included by trellis_*.cpp, which define kDoubles, TQC_LANES and TQC_LANES_FUNCTION first.

#include <cstring>

#include "tqcache/codec/kernels/kernels.h"

namespace tqcache::codec {
namespace {

typedef double Doubles __attribute__((vector_size(kDoubles * sizeof(double))));

TQC_LANES Doubles load_doubles(const double* from) {
  Doubles v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

TQC_LANES void store_doubles(Doubles v, double* to) { std::memcpy(to, &v, sizeof(v)); }

TQC_LANES_FUNCTION void add_multiple(const double* from, double factor, std::size_t n, double* to) {
  std::size_t j = 0;
  for (; j + kDoubles <= n; j += kDoubles)
    store_doubles(load_doubles(to + j) + load_doubles(from + j) * factor, to + j);
  for (; j < n; ++j) to[j] += factor * from[j];
}

TQC_LANES_FUNCTION void subtract_two(double a, const double* v, double b, const double* w,
                                     std::size_t n, double* to) {
  std::size_t j = 0;
  for (; j + kDoubles <= n; j += kDoubles) {
    store_doubles(load_doubles(to + j) - (load_doubles(v + j) * a + load_doubles(w + j) * b),
                  to + j);
  }
  for (; j < n; ++j) to[j] -= a * v[j] + b * w[j];
}

TQC_LANES_FUNCTION void rotate_two(double c, double s, std::size_t n, double* first,
                                   double* second) {
  std::size_t j = 0;
  for (; j + kDoubles <= n; j += kDoubles) {
    const Doubles a = load_doubles(first + j), b = load_doubles(second + j);
    store_doubles(a * c - b * s, first + j);
    store_doubles(a * s + b * c, second + j);
  }
  for (; j < n; ++j) {
    const double a = first[j], b = second[j];
    first[j] = c * a - s * b;
    second[j] = s * a + c * b;
  }
}

constexpr DoubleLoops kLoops = {add_multiple, subtract_two, rotate_two};

}  // namespace
}  // namespace tqcache::codec
