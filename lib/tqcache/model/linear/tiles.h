#pragma once
// model/linear/tiles.h: products of f32 matrices in AMX, for processors that have it: one kind of
// model/linear/products.h.
//
// AMX multiplies tiles of bf16 and adds up in f32. So a number is split into parts that are bf16
// and whose sum it is: the number rounded to 8 bits, what remains rounded likewise, and the rest. A
// product adds the products of the parts, without the smallest:
//
//   parts of a, of b   products   loses at most, relative to |a b|
//   3, 3               6          2^-23  as f32 weights, and decoded keys and values, need
//   3, 2               5          2^-23  if b has 16 bits or fewer: f16
//   3, 1               3          2^-23  if b has 8 bits or fewer: bf16
//   2, 2               3          2^-15  quantized weights, which decode steps multiply by x of
//                                        16 bits with an error of 2^-16 of the largest in a group
//
// The order of additions is that of the processor: the same bits for any number of threads, and on
// every processor with AMX, but not those of other instruction sets.

#include "tqcache/base/processor.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/model/linear/products.h"

namespace tqcache::model {

// The products if this processor has AMX, the system lets this process use it, and the kernels are
// those for AVX-512 (codec::best_kernels()); otherwise nullptr. TQCACHE_ISA=avx512 selects the
// kernels without AMX. Asks the system at the first call, for the whole process.
const MatrixProducts* best_tiles();

// The choice of best_tiles(). `wanted`: the value of TQCACHE_ISA, nullptr if unset.
bool takes_tiles(const Processor& processor, codec::Isa isa, const char* wanted);

}  // namespace tqcache::model
