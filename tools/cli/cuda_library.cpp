#include "cli/cuda_library.h"

#include <fmt/format.h>
#ifndef _WIN32
#include <dlfcn.h>
#endif

#include <cstdlib>

namespace tqcache::cli {

#ifdef _WIN32

Result<CudaLibrary> load_cuda_library() {
  return unsupported("the kernels for GPUs are built for Linux alone");
}

#else

namespace {

constexpr const char* kVariable = "TQCACHE_CUDA_LIBRARY";

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

Result<CudaLibrary> load_cuda_library() {
  const char* const named = std::getenv(kVariable);
  const std::string file = named != nullptr && *named != '\0' ? named : "libtqcache_cuda.so";
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return unsupported(fmt::format(
        "the kernels for GPUs cannot be loaded ({}). They come with the wheel tqcache-cuda; {} "
        "names the file of another libtqcache_cuda.so",
        reason == nullptr ? "this program loads no libraries" : reason, kVariable));
  }
  CudaLibrary found;
  found.file = file;
  if (!find(library, "tqcache_cuda_error", found.error) ||
      !find(library, "tqcache_cuda_device", found.device) ||
      !find(library, "tqcache_cuda_measure", found.measure)) {
    dlclose(library);
    return unsupported(file + ": a library of another version of tqcache");
  }
  return found;
}

#endif

Result<void> CudaLibrary::check(int status) const {
  if (status == TQCACHE_CUDA_OK) return {};
  const ErrorCode code = status == TQCACHE_CUDA_UNSUPPORTED        ? ErrorCode::kUnsupported
                         : status == TQCACHE_CUDA_INVALID_ARGUMENT ? ErrorCode::kInvalidArgument
                         : status == TQCACHE_CUDA_CORRUPT          ? ErrorCode::kCorrupt
                                                                   : ErrorCode::kIo;
  return Error{code, error()};
}

}  // namespace tqcache::cli
