#pragma once
// codec/kernels/unroll.h: TQC_UNROLL before a loop of a fixed, small number of rounds.
//
// Arrays of vector registers stay in registers only when every index is a constant.

#if defined(__clang__)
#define TQC_UNROLL _Pragma("unroll")
#else
#define TQC_UNROLL _Pragma("GCC unroll 32")
#endif
