#pragma once
// store/backends/sqlite.h: an SQLite database and its statements, with errors as results.
//
// Only for the sources of store.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "tqcache/base/result.h"

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
  // Makes the file where there is none. Its journals stay when it is closed: closing would take
  // them away by name, and if the file has been replaced meanwhile they are another's.
  static Result<Sqlite> open(const std::filesystem::path& path, std::chrono::milliseconds timeout);

  // Statements whose rows nobody wants.
  Result<void> run(const char* statements);
  Result<SqliteStatement> prepare(std::string_view statement);

 private:
  struct Close {
    void operator()(sqlite3* database) const;
  };
  explicit Sqlite(sqlite3* database) : database_(database) {}

  std::unique_ptr<sqlite3, Close> database_;
};

}  // namespace tqcache::store
