#pragma once
// codec/eigen_loops.h: the long loops of symmetric_eigen.cpp, once for each kind of CPU. Every
// number is computed on its own, so all give the same bits.

#include <cstddef>

#include "tqcache/codec/kernel_tables.h"

namespace tqcache::codec {

struct EigenLoops {
  // to[j] += factor * from[j]
  void (*add_multiple)(const double* from, double factor, std::size_t n, double* to);
  // to[j] -= a * v[j] + b * w[j]
  void (*subtract_two)(double a, const double* v, double b, const double* w, std::size_t n,
                       double* to);
  // (first[j], second[j]) = (c * first[j] - s * second[j], s * first[j] + c * second[j])
  void (*turn)(double c, double s, std::size_t n, double* first, double* second);
};

extern const EigenLoops kEigenLoops;
#ifdef TQCACHE_X86
extern const EigenLoops kEigenLoopsAvx2;
extern const EigenLoops kEigenLoopsAvx512;
#endif

}  // namespace tqcache::codec
