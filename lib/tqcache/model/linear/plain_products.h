#pragma once
// model/linear/plain_products.h: products of f32 matrices without a BLAS.
//
// They are what a program uses that has no OpenBLAS: a static one, or one on a machine without it.
// docs/benchmarks.md tells how fast they are.
//
// A value of a product is one chain of fused multiply-adds over its terms from the first to the
// last. So it does not depend on the number of threads, nor on the size of the matrices, and all
// instruction sets give the same bits.

#include <cstdint>

#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/model/linear/blas.h"

namespace tqcache::model {

// The products of blas.h, with the kernels of an instruction set. One that this CPU lacks counts as
// kScalar, whose chains take a function call per term where a CPU has no fused multiply-add.
// Threads: safe to call concurrently. Memory: 33 KiB.
void plain_multiply_transposed(codec::Isa isa, std::int64_t m, std::int64_t n, std::int64_t k,
                               float factor, ConstRows a, ConstRows b, Rows y);
void plain_multiply_add(codec::Isa isa, std::int64_t m, std::int64_t n, std::int64_t k, ConstRows a,
                        ConstRows b, Rows y);

}  // namespace tqcache::model
