// Any bytes as a file of version 1.

#include <memory>

#include "fuzz/fuzz.h"
#include "fuzz/v1_changes.h"
#include "migrations/v1_file.h"
#include "tqcache/file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tqcache;
  const ByteView view = fuzz::view_of(data, size);
  const std::unique_ptr<ByteSource> source = memory_source(Bytes(view.begin(), view.end()));
  const auto file = migrations::read_v1(*source, MemoryBudget().at_most(fuzz::kMaxV1PayloadBytes));
  if (!file) {
    fuzz::require(!file.error().message.empty(), "an error has a message");
    return 0;
  }
  fuzz::require(migrations::looks_like_v1(*source), "what can be read looks like it");
  fuzz::require(file->file_bytes == size, "a file is as long as it is");
  std::uint64_t payload_bytes = 0;
  for (const auto& entry : file->entries) {
    for (const auto& tensor : entry.state) payload_bytes += tensor.data.size();
    for (const auto& tensor : entry.extra_state) payload_bytes += tensor.data.size();
  }
  fuzz::require(payload_bytes <= fuzz::kMaxV1PayloadBytes, "no more than was allowed");
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return tqcache::fuzz::mutate_v1(data, size, max_size, seed);
}
