#pragma once
// codec/trellis/double_loops.h: long loops of f64 in which every number is computed on its own, once for
// each kind of CPU. All give the same bits.

#include <cstddef>

#include "tqcache/codec/kernels/kernel_tables.h"

namespace tqcache::codec {

struct DoubleLoops {
  // to[j] += factor * from[j]
  void (*add_multiple)(const double* from, double factor, std::size_t n, double* to);
  // to[j] -= a * v[j] + b * w[j]
  void (*subtract_two)(double a, const double* v, double b, const double* w, std::size_t n,
                       double* to);
  // (first[j], second[j]) = (c * first[j] - s * second[j], s * first[j] + c * second[j])
  void (*turn)(double c, double s, std::size_t n, double* first, double* second);
};

// Those of best_kernels().
const DoubleLoops& double_loops();

#ifdef TQCACHE_X86
extern const DoubleLoops kDoubleLoopsAvx2;
extern const DoubleLoops kDoubleLoopsAvx512;
#endif

}  // namespace tqcache::codec
