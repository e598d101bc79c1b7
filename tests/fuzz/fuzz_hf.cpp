// Any bytes as a cache of transformers: what is taken for one can be read, and is valid.

#include <memory>

#include "fuzz/fuzz.h"
#include "fuzz/safetensors_changes.h"
#include "interop/foreign_cache_reading.h"
#include "tqcache/file.h"
#include "tqcache/interop/hf/hf.h"

namespace tqcache {
namespace {

using fuzz::require;

constexpr std::int64_t kMaxTokens = 65'536;  // more takes time and shows nothing new

void run(ByteView bytes) {
  const std::shared_ptr<const ByteSource> file = memory_source(Bytes(bytes.begin(), bytes.end()));
  auto foreign = interop::import_hf(file);
  if (!foreign) {
    require(!foreign.error().message.empty(), "an error has a message");
    return;
  }
  if (foreign->n_tokens > kMaxTokens) return;
  const auto sections = interop::reader_of(std::move(foreign).value());
  if (!sections) return;
  const auto read = test::read_sections(**sections);
  require(read.ok() || read.error().message.ends_with("is not finite"),
          "what was taken for a cache is one");
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
