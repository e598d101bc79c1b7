#pragma once
// model/linear/blas.h: loader of the BLAS, and the only access to it.
//
// The BLAS is OpenBLAS. It is loaded when a decoder first runs tokens, so that programs which
// multiply no matrices do not pay for it: Debian's variant with threads takes 128 MiB of address
// space per thread as soon as it is loaded. That variant is still preferred: our own threads each
// compute a part of a product, and a variant without threads can compute only one product at a
// time. If built with TQCACHE_BLAS=link, the library is linked to OpenBLAS instead. Where there is
// none, and with TQCACHE_BLAS=none, products are those of model/linear/plain_products.h.
//
// OpenBLAS chooses its kernels by a list of model numbers. A processor newer than the list gets
// those for SSE3, which are much slower (docs/reference/weights.md). So the choice is made here, by
// instruction sets, unless the variable OPENBLAS_CORETYPE is set. (A linked OpenBLAS has chosen
// before our code runs.)

#include <cstdint>
#include <string>

#include "tqcache/error.h"

namespace tqcache::model {

// A matrix in memory: row r starts at data + r * stride.
struct ConstRows {
  const float* data = nullptr;
  std::int64_t stride = 0;
};
struct Rows {
  float* data = nullptr;
  std::int64_t stride = 0;
};

// What a processor can do.
struct InstructionSets {
  bool avx2 = false;    // with FMA
  bool avx512 = false;  // F, BW, DQ, VL and CD
  bool amx_bf16 =
      false;  // with tiles; whether the system lets a process use them is another matter
};
InstructionSets instruction_sets();  // of this processor

// The kernels for such a processor, in the words of OPENBLAS_CORETYPE; empty: OpenBLAS chooses.
const char* blas_core_for(const InstructionSets& sets);

// The kernels that OpenBLAS uses: "SkylakeX", "Haswell", ...; empty if there is none. Requires:
// load_blas() succeeded.
std::string blas_core();

// Why no OpenBLAS is used, and what to do; empty if one is. Requires: load_blas() succeeded.
std::string why_no_blas();

// Loads OpenBLAS at the first call and limits it to the calling thread, for the whole process, so
// that a product does not depend on the number of threads.
// Errors:  kIo when the address space is limited and has no room for the buffer of OpenBLAS, which
//          would try to get it forever. The same at every call. That none is installed is no error.
// Threads: safe to call concurrently, but not during a product of a linked OpenBLAS.
Result<void> load_blas();

// y = factor * a b^T. Shapes: a [m, k], b [n, k], y [m, n]. Requires: load_blas() succeeded.
// Threads: both products are safe to call concurrently. If OpenBLAS has no threads, one call waits
//          for the other.
void multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, float factor, ConstRows a,
                         ConstRows b, Rows y);

// y += a b. Shapes: a [m, k], b [k, n], y [m, n]. Requires: load_blas() succeeded.
void multiply_add(std::int64_t m, std::int64_t n, std::int64_t k, ConstRows a, ConstRows b, Rows y);

}  // namespace tqcache::model
