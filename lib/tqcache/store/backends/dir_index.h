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

#include "tqcache/error.h"
#include "tqcache/store.h"
#include "tqcache/store/backends/dir_files.h"

struct sqlite3;
struct sqlite3_stmt;

namespace tqcache::store {

// One prepared statement. Numbers of parameters begin with 1, of columns with 0.
class SqliteStatement {
 public:
  SqliteStatement& bind(int parameter, std::string_view text);  // is copied
  SqliteStatement& bind(int parameter, std::int64_t number);

  // Goes on to the next row; false after the last. Errors: as Sqlite's.
  Result<bool> step();
  // Runs it to its end and makes it ready to be bound anew. Errors: as Sqlite's.
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
  int failed_ = 0;  // what a bind() said
};

// Errors, of every call: kCorrupt when the file is damaged or no database; kBusy when others held
//                        it for longer than the timeout; kIo.
// Threads: one at a time.
class Sqlite {
 public:
  // Makes the file where there is none; no other user can read it. Its journals stay when it is
  // closed: closing would take them away by name, and if the file has been replaced meanwhile they
  // are another's.
  static Result<Sqlite> open(const std::filesystem::path& path, std::chrono::milliseconds timeout);

  // Runs statements without rows.
  Result<void> run(const char* statements);
  Result<SqliteStatement> prepare(std::string_view statement);

 private:
  struct Close {
    void operator()(sqlite3* database) const;
  };
  explicit Sqlite(sqlite3* database) : database_(database) {}

  std::unique_ptr<sqlite3, Close> database_;
};

// which blobs a folder holds, how large they are and when they were last used.
//
// The files are the truth; the index can be rebuilt from them, and is faster than looking at each.
// A blob has its row before it has its file, so that after a kill no file is without a row (a row
// without a file is a blob that is gone, as any may be). After a restart of the system, whose end
// may have cost the last rows, and when the database is missing or damaged, rows are made from the
// files.

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
