#pragma once
// codec/kernels/kernels_neon.h: what the files of the NEON kernels share.

#include "tqcache/codec/kernels/kernel_tables.h"
#include "tqcache/codec/kernels/unroll.h"

#ifdef TQCACHE_NEON

#include <arm_neon.h>

namespace tqcache::codec::neon {

// Floats of a register, and so a quarter of a line's lanes.
inline constexpr std::size_t kWidth = 4;

void score_dense(const DenseBlock&, const QueryRows&, OutputRows);
void accumulate_dense(const DenseBlock&, const WeightRows&, OutputRows);
void add_sinusoids(const SinusoidTable&, const Sinusoids&, OutputRows);

}  // namespace tqcache::codec::neon

#endif  // TQCACHE_NEON
