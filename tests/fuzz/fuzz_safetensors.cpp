// Any bytes as a safetensors file. What is read has to lie in the file and to cover it.

#include <algorithm>
#include <limits>

#include "fuzz/fuzz.h"
#include "fuzz/mutate.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache {
namespace {

using fuzz::require;

constexpr std::size_t kLengthBytes = 8;

std::uint64_t header_bytes(ByteView file) {
  std::uint64_t length = 0;
  if (file.size() >= kLengthBytes) std::memcpy(&length, file.data(), kLengthBytes);
  return length;
}

void check(const tensors::Safetensors& read, ByteView file) {
  std::size_t covered = kLengthBytes + header_bytes(file);
  for (const auto& [name, tensor] : read.tensors) {
    covered += tensor.bytes.size();
    if (tensor.bytes.empty()) continue;
    require(tensor.bytes.data() >= file.data() &&
                tensor.bytes.data() + tensor.bytes.size() <= file.data() + file.size(),
            "a tensor lies in the file");
  }
  require(covered == file.size(), "tensors cover the data");
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tqcache;
  const ByteView file = fuzz::view_of(data, size);
  const auto read = tensors::read_safetensors(file);
  if (read) {
    check(*read, file);
  } else {
    fuzz::require(!read.error().message.empty(), "an error has a message");
  }
  return 0;
}

// Mutates the header or the data, and as a rule makes the length of the header right again.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  using namespace tqcache;
  fuzz::Chance chance(seed);
  if (chance.one_in(8) || size < kLengthBytes || max_size <= kLengthBytes) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  const ByteView view = fuzz::view_of(data, size);
  Bytes file(view.begin(), view.end());
  const std::size_t old_size = file.size();
  const std::size_t end = kLengthBytes + static_cast<std::size_t>(std::min<std::uint64_t>(
                                             header_bytes(view), old_size - kLengthBytes));
  const std::size_t room = std::min<std::size_t>(max_size - std::min(max_size, old_size), 64);
  if (chance.one_in(8)) {
    fuzz::change_bytes(file, end, old_size, room);
    return fuzz::give_back(file, data, size, max_size);
  }
  fuzz::change_bytes(file, kLengthBytes, end, room);
  const std::uint64_t length = end - kLengthBytes + file.size() - old_size;
  if (!chance.one_in(16)) std::memcpy(file.data(), &length, sizeof length);
  return fuzz::give_back(file, data, size, max_size);
}
