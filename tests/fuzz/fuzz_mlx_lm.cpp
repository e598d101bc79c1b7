// Any bytes as a prompt cache of mlx-lm. What is imported can be read.

#include <memory>

#include "fuzz/fuzz.h"
#include "fuzz/mutate.h"
#include "tqcache/base/file.h"
#include "tqcache/interop/mlx_lm.h"

namespace tqcache {
namespace {

using fuzz::require;

constexpr std::size_t kLengthBytes = 8;
constexpr std::int64_t kMaxTokens = 4096;            // a file can claim many without holding them
constexpr std::uint64_t kMaxSectionBytes = 1 << 24;  // groups of two bits grow sixteenfold

void run(ByteView bytes) {
  for (const std::int64_t row : {0, 1}) {
    auto foreign = interop::import_mlx_lm(memory_source(Bytes(bytes.begin(), bytes.end())),
                                          {.row = row, .n_tokens = {}});
    if (!foreign) {
      require(!foreign.error().message.empty(), "an error has a message");
      continue;
    }
    require(foreign->identity.model_name.size() <= 1024, "a model's name is bounded");
    if (foreign->n_tokens > kMaxTokens) continue;
    const auto sections = interop::sections_of(std::move(foreign).value());
    if (!sections) continue;
    AlignedBytes raw;
    for (std::size_t i = 0; i < (*sections)->manifest().sections.size(); ++i) {
      if ((*sections)->manifest().sections[i].raw_bytes > kMaxSectionBytes) continue;
      require((*sections)->read(i, raw), "what was imported can be read");
    }
  }
}

std::uint64_t header_bytes(ByteView file) {
  std::uint64_t length = 0;
  if (file.size() >= kLengthBytes) std::memcpy(&length, file.data(), kLengthBytes);
  return length;
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tqcache::run(tqcache::fuzz::view_of(data, size));
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
  if (chance.one_in(4)) {
    fuzz::change_bytes(file, end, old_size, 0);
    return fuzz::give_back(file, data, size, max_size);
  }
  fuzz::change_bytes(file, kLengthBytes, end, room);
  const std::uint64_t length = end - kLengthBytes + file.size() - old_size;
  if (!chance.one_in(16)) std::memcpy(file.data(), &length, sizeof length);
  return fuzz::give_back(file, data, size, max_size);
}
