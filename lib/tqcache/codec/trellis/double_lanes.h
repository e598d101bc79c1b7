// codec/trellis/double_lanes.h: the loops of double_loops.h over vectors of kDoubles numbers. Included by
// the files of the CPUs, which say before how many those are, and what functions are compiled for
// (TQC_LANES, TQC_LANES_FUNCTION).

#include <cstring>

#include "tqcache/codec/trellis/double_loops.h"

namespace tqcache::codec {
namespace {

typedef double Doubles __attribute__((vector_size(kDoubles * sizeof(double))));

TQC_LANES Doubles load(const double* from) {
  Doubles v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

TQC_LANES void store(Doubles v, double* to) { std::memcpy(to, &v, sizeof(v)); }

TQC_LANES_FUNCTION void add_multiple(const double* from, double factor, std::size_t n, double* to) {
  std::size_t j = 0;
  for (; j + kDoubles <= n; j += kDoubles) store(load(to + j) + load(from + j) * factor, to + j);
  for (; j < n; ++j) to[j] += factor * from[j];
}

TQC_LANES_FUNCTION void subtract_two(double a, const double* v, double b, const double* w,
                                     std::size_t n, double* to) {
  std::size_t j = 0;
  for (; j + kDoubles <= n; j += kDoubles) {
    store(load(to + j) - (load(v + j) * a + load(w + j) * b), to + j);
  }
  for (; j < n; ++j) to[j] -= a * v[j] + b * w[j];
}

TQC_LANES_FUNCTION void turn(double c, double s, std::size_t n, double* first, double* second) {
  std::size_t j = 0;
  for (; j + kDoubles <= n; j += kDoubles) {
    const Doubles a = load(first + j), b = load(second + j);
    store(a * c - b * s, first + j);
    store(a * s + b * c, second + j);
  }
  for (; j < n; ++j) {
    const double a = first[j], b = second[j];
    first[j] = c * a - s * b;
    second[j] = s * a + c * b;
  }
}

constexpr DoubleLoops kLoops = {add_multiple, subtract_two, turn};

}  // namespace
}  // namespace tqcache::codec
