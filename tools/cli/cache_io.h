#pragma once
// tools/cli/cache_io.h: cache files by name, with "-" for standard input and standard output.

#include <memory>
#include <optional>
#include <string>

#include "cli/console.h"
#include "cli/outcome.h"
#include "tqcache/base/file.h"
#include "tqcache/cache/cache.h"
#include "tqcache/format/cache_file.h"
#include "cli/v1_input.h"

namespace tqcache::cli {

// How a path is called in messages.
std::string display_name(const std::string& path, std::string_view dash_means);

// Whether two names are of one file. False when either does not exist, unless they are equal.
bool same_file(const std::string& a, const std::string& b);

// All of standard input. Errors: kIo, kTooLarge, kInterrupted.
Result<Bytes> read_stdin(std::uint64_t max_bytes);

// A file to read by position, whatever it is; standard input is read whole first.
Outcome<std::unique_ptr<ByteSource>> open_source(const std::string& path);

// Errors: kUnsupported for a cache of another program: it points at the verb that reads it.
Result<void> refuse_foreign(const ByteSource& source);

// A cache file of any version.
struct CacheInput {
  std::string name;                    // for messages
  std::uint64_t file_bytes = 0;        // of the file as it is
  std::unique_ptr<ByteSource> source;  // of version 2; another one is migrated in memory
  std::optional<V1Summary> v1;         // of a file of version 1
};

// Opens a cache file, with a warning if it is of an older version or if a newer state may be lost.
// Errors: kUnsupported for a file of another program, which `tqcache convert` reads.
Outcome<CacheInput> open_cache(const std::string& path, unsigned n_threads);
// The same of a file that is open.
Outcome<CacheInput> cache_input(std::string name, std::unique_ptr<ByteSource> source,
                                unsigned n_threads);

Outcome<cache::Cache> load_cache(const Console& console, const std::string& path,
                                 const format::ReadOptions& options);

// The same without copying what stands in the file uncompressed: format::map_cache() says whose
// files that is for. Standard input and older versions are read.
Outcome<cache::Cache> map_cache(const Console& console, const std::string& path,
                                const format::ReadOptions& options);

// Refuses an output that cannot be written before hours are spent on what goes into it.
Outcome<Done> check_output(const std::string& path, bool force);

// Bytes of a file; 0 for a device, which has none.
std::uint64_t size_on_disk(const std::string& path);

// Gives the bytes written.
Outcome<std::uint64_t> save_cache(const Console& console, const cache::Cache& cache,
                                  const std::string& path, const format::WriteOptions& options);

}  // namespace tqcache::cli
