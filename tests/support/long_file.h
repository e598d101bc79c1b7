#pragma once
// support/long_file.h: a cache file that is written without its cache in memory, and the memory
// that work with it takes.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <variant>

#include "support/cache_builder.h"
#include "support/sanitized.h"
#include "support/scripted_reader.h"
#include "tqcache/file.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {

// A line of /proc/self/status that tells of memory, in bytes.
inline std::uint64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::stoull(line.substr(field.size())) * 1024;
  }
  return 0;
}

// The most memory that this process takes during `work`, beyond what it takes before.
template <class Work>
std::uint64_t peak_of(Work work) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins anew
  const std::uint64_t before = status_bytes("VmRSS:");
  work();
  return status_bytes("VmHWM:") - before;
}

// A cache that is never in memory: its token blocks are all the same.
inline Result<void> write_long_file(const std::filesystem::path& path, std::int64_t n_blocks) {
  cache::Cache cache = CacheBuilder(n_blocks * cache::kTokenBlock).build();
  cache::Cache one_block = CacheBuilder(cache::kTokenBlock).dense({4, 64}).build();
  auto& layer = std::get<cache::AttentionLayer>(one_block.layers[0]);
  const SharedBytes values(std::get<cache::DenseTensor>(layer.k).blocks[0]);
  for (cache::Tensor* tensor : {&layer.k, &layer.v}) {
    std::get<cache::DenseTensor>(*tensor).blocks.assign(static_cast<std::size_t>(n_blocks), {});
  }
  cache.layers = std::move(one_block.layers);
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, Overwrite::kRefuse));
  const ScriptedReader reader(cache::describe(cache),
                              [&](std::size_t, AlignedBytes& raw) -> Result<void> {
                                raw.assign(values.view().begin(), values.view().end());
                                return {};
                              });
  TQC_TRY(format::write_cache(
      reader, file, {.compression = format::Compression::kNone, .window_bytes = 1 << 20}));
  return file.commit();
}

}  // namespace tqcache::test
