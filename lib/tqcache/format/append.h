#pragma once
// format/append.h: lets a .tqkv file grow by what a conversation added, without writing it anew.
//
// New sections and a new manifest go behind the old end, and then one header slot, of 64 bytes,
// switches from the old state to the new one. Whoever reads meanwhile, and whoever comes after a
// crash at any moment, finds the old state or the new one, whole.
//
// Spec: docs/reference/format.md, "Appending".

#include <cstdint>
#include <filesystem>
#include <memory>

#include "tqcache/base/file.h"
#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/format/cache_file.h"

namespace tqcache::format {

struct AppendReport {
  std::int64_t n_tokens_before = 0;
  std::int64_t n_tokens = 0;
  std::uint64_t bytes_written = 0;  // 0: the file held all of it already
  std::uint64_t file_bytes = 0;
  std::uint64_t gap_bytes = 0;  // dead bytes in the file now
};

// A file that this process alone may write to. Threads: one at a time.
class CacheAppender {
 public:
  // Locks the file and reads its manifest.
  // Errors: kNotFound, kBusy, kIo, and those of read_cache_info().
  static Result<CacheAppender> open(const std::filesystem::path& path);

  CacheAppender(CacheAppender&&) noexcept;
  CacheAppender& operator=(CacheAppender&&) noexcept;
  ~CacheAppender();

  // What the file holds now.
  const CacheFileInfo& info() const;

  // Reads the cache that the file holds. A later append() takes for granted that its token blocks
  // before the last one have not changed since; those of a cache that was never read here are
  // compared with the file. Errors: as read_cache().
  Result<cache::Cache> read(const ReadOptions& options = {}, const Progress& progress = {});

  // Makes the file hold `cache`, which is what it holds with tokens added. What an append that was
  // cut short left behind is taken away first. Of the token blocks that the file then has, those
  // before the last one are taken for granted from here on, as after read().
  //
  // options.overwrite and writer have no meaning here. A file whose tokens are hidden keeps them
  // so, and needs a cache whose tokens are known; one that has their ids cannot hide them any more.
  // Progress: bytes of new sections before compression.
  // Errors:   kMismatch when the cache is not what the file holds with tokens added (other tokens,
  //           identity, layers, or fewer tokens); kUnsupported when hidden tokens cannot be
  //           compared; kInvalidArgument (level, hide_tokens); kTooLarge, kIo, kInterrupted, and
  //           those of cache::validate. The file then holds what it held, and can be appended to
  //           again; only if the very last flush fails (kIo), it may hold the new state already.
  // Durable:  once this returns, the new state survives a loss of power.
  Result<AppendReport> append(const cache::Cache& cache, const WriteOptions& options,
                              const Progress& progress = {});

 private:
  struct State;
  explicit CacheAppender(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct CompactReport {
  std::uint64_t bytes_before = 0;
  std::uint64_t bytes_after = 0;
  bool rewritten = false;  // false: there was nothing to drop
};

// Writes the file anew without dead bytes, and puts it in the place of the old one when it is whole
// on disk. Sections keep their content; they are compressed again if any of them was. The content
// name stays the same. options.overwrite, compression, writer and hide_tokens have no meaning here.
//
// Memory:   options.window_bytes and a section a thread.
// Progress: bytes of sections before compression.
// Errors:   as CacheAppender::open(); kCorrupt (a section is damaged), kIo, kInterrupted. The old
//           file then stands untouched.
Result<CompactReport> compact_file(const std::filesystem::path& path, const WriteOptions& options,
                                   const Progress& progress = {});

}  // namespace tqcache::format
