#pragma once
// store/backends/dir_index.h: the index of a store in a folder, an SQLite database.
//
// Only for the sources of store.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/posix.h"
#include "tqcache/error.h"
#include "tqcache/store.h"
#include "tqcache/store/backends/dir_files.h"

struct sqlite3;
struct sqlite3_stmt;

namespace tqcache::store {

// A prepared statement. Parameters are numbered from 1, columns from 0.
class SqliteStatement {
 public:
  SqliteStatement& bind(int parameter, std::string_view text);  // copies `text`
  SqliteStatement& bind(int parameter, std::int64_t number);

  // Advances to the next row; false after the last one. Errors: as Sqlite's.
  Result<bool> step();
  // Runs to the end and resets the statement so that it can be bound again. Errors: as Sqlite's.
  Result<void> run();

  std::string text(int column) const;
  std::int64_t number(int column) const;

 private:
  friend class Sqlite;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  explicit SqliteStatement(sqlite3_stmt* statement) : statement_(statement) {}

  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  int failed_ = 0;  // status of a failed bind()
};

// How long a call may wait for locks of other processes.
struct SqliteWait {
  std::chrono::milliseconds timeout{};
  std::function<bool()> interrupted;  // BackendOptions::interrupted
};

// Errors of every call: kCorrupt if the file is damaged or not a database; kBusy if others held it
//                       for longer than the timeout; kInterrupted; kIo.
// Threads: one at a time.
class Sqlite {
 public:
  // Creates the file if it is missing; other users cannot read it. Closing keeps its journals:
  // SQLite would remove them by name, and if the file has been replaced meanwhile they belong to
  // another database.
  //
  // The file is not trusted: no views, triggers or unsafe functions, and no value above 1 MiB.
  // Requires: `wait` outlives it.
  static Result<Sqlite> open(const std::filesystem::path& path, const SqliteWait& wait);

  // Runs statements without rows.
  Result<void> run(const char* statements);
  Result<SqliteStatement> prepare(std::string_view statement);

 private:
  // A process that was forked must not touch the connection of the one before: it stays open.
  struct Close {
    Close() : process(posix::getpid()) {}
    long process;
    void operator()(sqlite3* database) const;
  };
  // A wait for a lock.
  struct Waiting {
    const SqliteWait& limits;
    std::chrono::steady_clock::time_point begin;
  };
  static int wait_more(void* waiting, int n_before);
  static int stop_work(void* waiting);
  Sqlite(sqlite3* database, const SqliteWait& wait)
      : waiting_(std::make_unique<Waiting>(Waiting{wait, {}})), database_(database) {}

  std::unique_ptr<Waiting> waiting_;
  std::unique_ptr<sqlite3, Close> database_;
};

// The list of the blobs in a folder, with their sizes and times of last use.
//
// The files are the truth. The index can be rebuilt from them, and is faster than looking at each
// file. A blob gets its row before its file, so that after a kill no file lacks a row. A row
// without a file counts as a lost blob, which is allowed at any time. The rows are rebuilt from the
// files after a restart of the system, which may have cost the last rows, and if the database is
// missing or damaged.
//
// An index that holds anything but these rows, such as a view, is rebuilt, too.
//
// Errors of every call: kBusy if other processes hold the database for longer than the timeout;
//                       kInterrupted; kIo.
// Threads: any number may call.
class DirIndex {
 public:
  // Opens no file yet: reading blobs needs no index. `layout` must outlive it.
  DirIndex(const DirLayout& layout, SqliteWait wait) : layout_(layout), wait_(std::move(wait)) {}

  // Blobs that exist or are about to, used now. Known blobs keep their rows.
  Result<void> add(std::span<const Entry> blobs);
  Result<void> forget(std::span<const std::string> keys);
  Result<void> touch(std::span<const std::string> keys);
  // At most `limit` entries after `after` that begin with `prefix`, in ascending order.
  Result<std::vector<Entry>> list(const std::string& prefix, const std::string& after,
                                  std::int64_t limit);

 private:
  using Work = std::function<Result<void>(Sqlite&)>;
  Result<void> with_database(const Work& work);
  Result<void> in_transaction(const Work& work);
  Result<void> open(std::uint64_t damaged_file);
  Result<void> open_database();
  Result<void> check_size() const;
  Result<void> check_tables();
  Result<bool> is_of_this_boot();
  Result<void> insert_files();

  const DirLayout& layout_;
  const SqliteWait wait_;
  std::mutex mutex_;
  std::optional<Sqlite> database_;
  std::uint64_t file_number_ = 0;  // the inode of the file that was opened last
};

}  // namespace tqcache::store
