#pragma once
// cuda/copy_async.cuh: copies from global to shared memory that go on while a warp computes.

#include <cstdint>

namespace tqcache::cuda {

__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(global));
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;\n"); }
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// 16 bytes, or zeros: then nothing is read.
__device__ __forceinline__ void copy_or_zero(void* shared, const void* global, bool is_there) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(global),
               "r"(is_there ? 16 : 0));
}

}  // namespace tqcache::cuda
