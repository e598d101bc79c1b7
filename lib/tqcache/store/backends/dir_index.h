#pragma once
// store/backends/dir_index.h: which blobs a folder holds, how large they are and when they were last used.
//
// The files are the truth; this is what can be had from them again, and quicker than by looking at
// each. A blob has its row before it has its file, so that after a kill no file is without a row (a
// row without a file is a blob that is gone, as any may be). After a restart of the system, whose
// end may have cost the last rows, and when the database is missing or damaged, rows are made from
// the files.
//
// Only for the sources of store. Spec: docs/reference/store.md, 3.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/backends/dir_layout.h"
#include "tqcache/store/backends/sqlite.h"

namespace tqcache::store {

// Errors, of every call: kBusy when other processes hold it for longer than the timeout; kIo.
// Threads: any number may call.
class DirIndex {
 public:
  // Opens nothing yet: who only reads blobs needs no index. `layout` must outlive it.
  DirIndex(const DirLayout& layout, std::chrono::milliseconds timeout)
      : layout_(layout), timeout_(timeout) {}

  // Blobs that are there or will be in a moment, used now; those that it knows stay as they are.
  Result<void> add(std::span<const Entry> blobs);
  Result<void> forget(std::span<const std::string> keys);
  Result<void> touch(std::span<const std::string> keys);
  // At most `limit` entries behind `after` that begin with `prefix`, in ascending order.
  Result<std::vector<Entry>> list(const std::string& prefix, const std::string& after,
                                  std::int64_t limit);

 private:
  using Work = std::function<Result<void>(Sqlite&)>;
  Result<void> with_database(const Work& work);
  Result<void> in_transaction(const Work& work);
  Result<void> open();
  Result<void> open_database();
  Result<bool> is_of_this_boot();
  Result<void> make(std::uint64_t damaged_file);
  Result<void> insert_files();

  const DirLayout& layout_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::optional<Sqlite> database_;
  std::uint64_t file_number_ = 0;  // the inode of what was opened last
};

}  // namespace tqcache::store
