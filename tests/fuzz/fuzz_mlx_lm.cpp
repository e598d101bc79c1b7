// Any bytes as a prompt cache of mlx-lm. What is imported can be read.

#include <memory>

#include "fuzz/fuzz.h"
#include "fuzz/safetensors_changes.h"
#include "tqcache/file.h"
#include "tqcache/interop/mlx/mlx_lm.h"

namespace tqcache {
namespace {

using fuzz::require;

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
    const auto sections = interop::reader_of(std::move(foreign).value());
    if (!sections) continue;
    AlignedBytes raw;
    for (std::size_t i = 0; i < (*sections)->blocks().size(); ++i) {
      if ((*sections)->blocks()[i].raw_bytes > kMaxSectionBytes) continue;
      const auto read = (*sections)->read(i, raw);
      require(read.ok() || read.error().message.ends_with("is not finite"),
              "what was imported can be read");
    }
  }
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tqcache::run(tqcache::fuzz::view_of(data, size));
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return tqcache::fuzz::mutate_safetensors(data, size, max_size, seed);
}
