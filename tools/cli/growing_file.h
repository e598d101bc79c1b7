#pragma once
// tools/cli/growing_file.h: the cache file that a session goes on from and that grows with it.

#include <string>

#include "cli/cli.h"
#include "cli/console.h"
#include "cli/outcome.h"
#include "tqcache/cache/cache.h"
#include "tqcache/format/append.h"

namespace tqcache::cli {

// Locked for as long as this lives: whoever else wants to write in the file is refused.
class GrowingFile {
 public:
  // Errors: kBusy; kUnsupported for version 1; those of format::CacheAppender::open().
  static Outcome<GrowingFile> open(const std::string& path);

  const std::string& path() const { return path_; }

  Outcome<cache::Cache> read(const Console& console, unsigned n_threads);

  // Unless told otherwise, new sections are compressed as old ones are: a file that is stored, to
  // be mapped, stays so. Errors: those of format::CacheAppender::append(); kInvalidArgument
  // (flags).
  Outcome<format::AppendReport> append(const Console& console, const cache::Cache& cache,
                                       const CompressionFlags& flags, unsigned n_threads);

 private:
  GrowingFile(std::string path, format::CacheAppender appender)
      : path_(std::move(path)), appender_(std::move(appender)) {}

  std::string path_;
  format::CacheAppender appender_;
};

// "talk.tqkv: 512 -> 640 tokens, 12,345 bytes added"
std::string append_text(const std::string& path, const format::AppendReport& report);

Json append_json(const std::string& path, const format::AppendReport& report);

}  // namespace tqcache::cli
