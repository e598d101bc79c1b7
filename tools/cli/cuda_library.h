#pragma once
// tools/cli/cuda_library.h: the kernels for NVIDIA GPUs, loaded by the verbs that use them.
//
// The program is not linked to them: it runs where there is neither a GPU nor their library.

#include <string>

#include "tqcache/cuda/tqcache_cuda.h"
#include "tqcache/error.h"

namespace tqcache::cli {

// The functions of libtqcache_cuda.so that verbs call.
struct CudaLibrary {
  std::string file;
  decltype(&tqcache_cuda_error) error = nullptr;
  decltype(&tqcache_cuda_device) device = nullptr;
  decltype(&tqcache_cuda_measure) measure = nullptr;

  // The error of a status that a function returned.
  Result<void> check(int status) const;
};

// Loads the file that TQCACHE_CUDA_LIBRARY names, or libtqcache_cuda.so from where the system
// looks. The library stays loaded.
// Errors: kUnsupported: there is none, it is of another version, or this program cannot load any.
Result<CudaLibrary> load_cuda_library();

}  // namespace tqcache::cli
