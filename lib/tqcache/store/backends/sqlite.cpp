#include "tqcache/store/backends/sqlite.h"

#include <sqlite3.h>

namespace tqcache::store {
namespace {

ErrorCode code_of(int status) {
  switch (status & 0xff) {  // the rest tells more of the same
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_ERROR:  // a table or column that is not there: another program's database
      return ErrorCode::kCorrupt;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return ErrorCode::kBusy;
    default:
      return ErrorCode::kIo;
  }
}

Error sqlite_error(int status) {
  return {code_of(status), std::string("index: ") + sqlite3_errstr(status)};
}

}  // namespace

void SqliteStatement::Finalize::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

SqliteStatement& SqliteStatement::bind(int parameter, std::string_view text) {
  const int status = sqlite3_bind_text64(statement_.get(), parameter, text.data(), text.size(),
                                         SQLITE_TRANSIENT, SQLITE_UTF8);
  if (status != SQLITE_OK) failed_ = status;
  return *this;
}

SqliteStatement& SqliteStatement::bind(int parameter, std::int64_t number) {
  const int status = sqlite3_bind_int64(statement_.get(), parameter, number);
  if (status != SQLITE_OK) failed_ = status;
  return *this;
}

Result<bool> SqliteStatement::step() {
  if (failed_ != SQLITE_OK) return sqlite_error(failed_);
  const int status = sqlite3_step(statement_.get());
  if (status == SQLITE_ROW) return true;
  if (status == SQLITE_DONE) return false;
  sqlite3_reset(statement_.get());  // no lock may stay behind
  return sqlite_error(status);
}

Result<void> SqliteStatement::run() {
  for (bool more = true; more;) {
    TQC_TRY_ASSIGN(more, step());
  }
  sqlite3_reset(statement_.get());
  return {};
}

std::string SqliteStatement::text(int column) const {
  const unsigned char* const begin = sqlite3_column_text(statement_.get(), column);
  if (begin == nullptr) return {};
  const int size = sqlite3_column_bytes(statement_.get(), column);
  return {reinterpret_cast<const char*>(begin), static_cast<std::size_t>(size)};
}

std::int64_t SqliteStatement::number(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

void Sqlite::Close::operator()(sqlite3* database) const { sqlite3_close_v2(database); }

Result<Sqlite> Sqlite::open(const std::filesystem::path& path, std::chrono::milliseconds timeout) {
  sqlite3* opened = nullptr;
  constexpr int kFlags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int status = sqlite3_open_v2(path.c_str(), &opened, kFlags, nullptr);
  Sqlite database(opened);  // there is one to be closed after a failure, too
  if (status != SQLITE_OK) return sqlite_error(status);
  sqlite3_busy_timeout(opened, static_cast<int>(timeout.count()));
  int keep = 1;
  sqlite3_file_control(opened, "main", SQLITE_FCNTL_PERSIST_WAL, &keep);
  return database;
}

Result<void> Sqlite::run(const char* statements) {
  const int status = sqlite3_exec(database_.get(), statements, nullptr, nullptr, nullptr);
  return status == SQLITE_OK ? Result<void>() : sqlite_error(status);
}

Result<SqliteStatement> Sqlite::prepare(std::string_view text) {
  sqlite3_stmt* statement = nullptr;
  const int status = sqlite3_prepare_v2(database_.get(), text.data(), static_cast<int>(text.size()),
                                        &statement, nullptr);
  if (status != SQLITE_OK) return sqlite_error(status);
  return SqliteStatement(statement);
}

}  // namespace tqcache::store
