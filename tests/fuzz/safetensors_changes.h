#pragma once
// tests/fuzz/safetensors_changes.h: the mutator of targets that read safetensors files.

#include <algorithm>
#include <cstring>

#include "fuzz/fuzz.h"
#include "fuzz/mutate.h"

namespace tqcache::fuzz {

inline constexpr std::size_t kLengthBytes = 8;

// As the file says.
inline std::uint64_t header_bytes(ByteView file) {
  std::uint64_t length = 0;
  if (file.size() >= kLengthBytes) std::memcpy(&length, file.data(), kLengthBytes);
  return length;
}

// Mutates the header or the data, and as a rule makes the length of the header right again.
inline std::size_t mutate_safetensors(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                      unsigned seed) {
  Chance chance(seed);
  if (chance.one_in(8) || size < kLengthBytes || max_size <= kLengthBytes) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  const ByteView view = view_of(data, size);
  Bytes file(view.begin(), view.end());
  const std::size_t old_size = file.size();
  const std::size_t end = kLengthBytes + static_cast<std::size_t>(std::min<std::uint64_t>(
                                             header_bytes(view), old_size - kLengthBytes));
  const std::size_t room = std::min<std::size_t>(max_size - std::min(max_size, old_size), 64);
  if (chance.one_in(8)) {
    change_bytes(file, end, old_size, room);
    return give_back(file, data, size, max_size);
  }
  change_bytes(file, kLengthBytes, end, room);
  const std::uint64_t length = end - kLengthBytes + file.size() - old_size;
  if (!chance.one_in(16)) std::memcpy(file.data(), &length, sizeof length);
  return give_back(file, data, size, max_size);
}

}  // namespace tqcache::fuzz
