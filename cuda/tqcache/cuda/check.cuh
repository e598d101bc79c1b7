#pragma once
// cuda/check.cuh: errors of the CUDA runtime as Result.

#include <cuda_runtime.h>

#include <string>

#include "tqcache/error.h"

namespace tqcache::cuda {

inline Result<void> check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  return Error{ErrorCode::kIo, std::string(what) + ": " + cudaGetErrorString(code)};
}

// After a launch.
inline Result<void> check_launch(const char* kernel) { return check(cudaGetLastError(), kernel); }

}  // namespace tqcache::cuda
