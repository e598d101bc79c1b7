#pragma once
// codec/kernels/by_dtype.h: from a number format known at run time to one that the compiler knows.

#include "tqcache/base/dtype.h"

namespace tqcache::codec {

// Calls `call` with the format as its template argument, and gives what it gives:
//   by_dtype(rows.dtype, [&]<Dtype kDtype>() { return widen_rows<kDtype>(rows); });
template <class Call>
auto by_dtype(Dtype dtype, const Call& call) {
  if (dtype == Dtype::kF32) return call.template operator()<Dtype::kF32>();
  if (dtype == Dtype::kF16) return call.template operator()<Dtype::kF16>();
  return call.template operator()<Dtype::kBF16>();
}

}  // namespace tqcache::codec
