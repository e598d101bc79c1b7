// Any bytes as a prompt cache of TurboMLX, pickled or not: what is read can be read to its end, and
// nothing is asked for that the file does not hold.

#include <cstddef>
#include <memory>
#include <utility>

#include "fuzz/fuzz.h"
#include "tqcache/bytes.h"
#include "tqcache/interop/turbomlx/turbomlx.h"

namespace tqcache {
namespace {

using fuzz::require;

constexpr std::uint64_t kMaxRead = 4u << 20;  // of a cache that names the same array many times

void read_all(const cache::CacheReader& sections) {
  std::uint64_t read = 0;
  const auto& infos = sections.blocks();
  for (std::size_t i = 0; i < infos.size() && read < kMaxRead; ++i) {
    AlignedBytes raw;
    const auto done = sections.read(i, raw);
    require(!done.ok() || raw.size() == infos[i].raw_bytes, "a section is of the size announced");
    require(done.ok() || !done.error().message.empty(), "an error has a message");
    read += infos[i].raw_bytes;
  }
}

void run(ByteView bytes) {
  const std::shared_ptr<const ByteSource> file = memory_source(Bytes(bytes.begin(), bytes.end()));
  auto cache = interop::import_turbomlx(file);
  if (!cache) {
    require(!cache.error().message.empty(), "an error has a message");
    return;
  }
  require(interop::is_turbomlx(*file).value().has_value(), "what is read is told by its start");
  require(cache->identity.source_format == "turbomlx", "the source is named");
  const auto sections = interop::reader_of(std::move(cache).value());
  if (sections) read_all(**sections);
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tqcache::run(tqcache::fuzz::view_of(data, size));
  return 0;
}
