#pragma once
// codec/kernels/kernel_tables.h: which tables of kernels this program is built with.

#include "tqcache/codec/kernels/kernels.h"

#if !defined(TQCACHE_SCALAR) && defined(__x86_64__)
#define TQCACHE_X86 1
#elif !defined(TQCACHE_SCALAR) && defined(__aarch64__)
#define TQCACHE_NEON 1
#endif

namespace tqcache::codec {

const Kernels& scalar_kernels();

#ifdef TQCACHE_X86
// Requires: the CPU has AVX2, FMA and F16C.
const Kernels& avx2_kernels();
// Requires: the CPU has AVX-512 F, BW, DQ, VL, VBMI and VNNI, and what avx2_kernels() wants.
const Kernels& avx512_kernels();
#endif

#ifdef TQCACHE_NEON
const Kernels& neon_kernels();
#endif

}  // namespace tqcache::codec
