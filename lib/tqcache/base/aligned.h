#pragma once
// base/aligned.h: vectors whose memory is aligned to 64 bytes, as kernels and mapped sections need.

#include <cstddef>
#include <new>
#include <vector>

namespace tqcache {

inline constexpr std::size_t kAlignment = 64;

template <class T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <class U>
  AlignedAllocator(const AlignedAllocator<U>&) {}  // NOLINT(implicit)

  T* allocate(std::size_t n) {
    return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{kAlignment}));
  }
  void deallocate(T* p, std::size_t) { ::operator delete (p, std::align_val_t{kAlignment}); }
  bool operator==(const AlignedAllocator&) const { return true; }
};

using AlignedBytes = std::vector<std::byte, AlignedAllocator<std::byte>>;
using AlignedFloats = std::vector<float, AlignedAllocator<float>>;

// Makes scratch memory at least `size` floats long. Its content may be lost.
template <class Size>
void grow(AlignedFloats& scratch, Size size) {
  const auto n = static_cast<std::size_t>(size);
  if (scratch.size() < n) scratch.resize(n);
}

}  // namespace tqcache
