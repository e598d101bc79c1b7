#pragma once
// tools/cache_io.h: cache files by name, with "-" for standard input and standard output.

#include <memory>
#include <string>

#include "console.h"
#include "outcome.h"
#include "tqcache/base/file.h"
#include "tqcache/cache/cache.h"
#include "tqcache/format/cache_file.h"

namespace tqcache::cli {

// How a path is called in messages.
std::string display_name(const std::string& path, std::string_view dash_means);

// All of standard input. Errors: kIo, kTooLarge, kInterrupted.
Result<Bytes> read_stdin(std::uint64_t max_bytes);

// A cache file to read by position; standard input is read whole first.
Outcome<std::unique_ptr<ByteSource>> open_cache(const std::string& path);

Outcome<cache::Cache> load_cache(const Console& console, const std::string& path,
                                 unsigned n_threads);

// The same without copying what stands in the file uncompressed: format::map_cache() says whose
// files that is for. Standard input is read.
Outcome<cache::Cache> map_cache(const Console& console, const std::string& path,
                                unsigned n_threads);

// Refuses an output that cannot be written before hours are spent on what goes into it.
Outcome<Done> check_output(const std::string& path, bool force);

// Bytes of a file; 0 for a device, which has none.
std::uint64_t size_on_disk(const std::string& path);

// Gives the bytes written.
Outcome<std::uint64_t> save_cache(const Console& console, const cache::Cache& cache,
                                  const std::string& path, const format::WriteOptions& options);

}  // namespace tqcache::cli
