// Any bytes as a file of version 1 that is migrated: what comes of it is a cache that can be
// written and read, and has the values that the old file gave it.

#include <memory>

#include "fuzz/fuzz.h"
#include "fuzz/v1_changes.h"
#include "migrations/v1_file.h"
#include "migrations/v1_to_v2.h"
#include "tqcache/file.h"
#include "tqcache/tqkv.h"

namespace tqcache {
namespace {

using fuzz::must;
using fuzz::require;

void run(ByteView bytes) {
  const auto old = migrations::read_v1(*memory_source(Bytes(bytes.begin(), bytes.end())),
                                       MemoryBudget().at_most(fuzz::kMaxV1PayloadBytes));
  if (!old) return;
  const auto migration = migrations::v1_to_v2(*old);
  if (!migration) {
    require(!migration.error().message.empty(), "an error has a message");
    return;
  }
  require(cache::validate(migration->cache), "a migrated cache is valid");
  const Bytes file =
      must(format::write_cache_bytes(migration->cache,
                                     {.compression = format::Compression::kNone, .n_threads = 1}),
           "a migrated cache can be written");
  const cache::Cache back =
      must(format::read_cache(*memory_source(file), {.n_threads = 1}), "and be read");
  require(migrations::check_migrated(*old, back, 1), "and says what the old file says");
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tqcache::run(tqcache::fuzz::view_of(data, size));
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return tqcache::fuzz::mutate_v1(data, size, max_size, seed);
}
