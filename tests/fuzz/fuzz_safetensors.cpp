// Any bytes as a safetensors file. What is read has to lie in the file and to cover it.

#include "fuzz/fuzz.h"
#include "fuzz/safetensors_changes.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache {
namespace {

using fuzz::require;

void check(const tensors::Safetensors& read, ByteView file) {
  std::size_t covered = fuzz::kLengthBytes + fuzz::header_bytes(file);
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

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return tqcache::fuzz::mutate_safetensors(data, size, max_size, seed);
}
