
#include "tqcache/store/backends/dir_index.h"

#include <sqlite3.h>

#include <algorithm>
#include <system_error>
#include <thread>

#include "tqcache/base/posix.h"
#include "tqcache/base/system.h"
#include "tqcache/file.h"
#include "tqcache/store/backends/backend_support.h"

namespace tqcache::store {

namespace {

ErrorCode code_of(int status) {
  switch (status & 0xff) {  // the upper bits are details
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_ERROR:   // a missing table or column: another program's database
    case SQLITE_TOOBIG:  // no row of tqcache is that large
      return ErrorCode::kCorrupt;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return ErrorCode::kBusy;
    case SQLITE_INTERRUPT:
      return ErrorCode::kInterrupted;
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
  sqlite3_reset(statement_.get());  // releases its locks
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

void Sqlite::Close::operator()(sqlite3* database) const {
  if (process == posix::getpid()) sqlite3_close_v2(database);
}

namespace {

// SQLite gives its journals the permissions of the database. A database that is there is not
// opened here: closing it would end SQLite's locks on it.
Result<void> close_to_others(const std::filesystem::path& path) {
  const int made = posix::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (made >= 0) posix::close(made);
  for (const char* end : {"", "-wal", "-shm"}) {
    const std::string name = path.string() + end;
    posix::Stat info{};
    if (posix::lstat(name.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if ((info.st_mode & 0077) == 0 || info.st_uid != posix::geteuid()) continue;
    if (posix::chmod(name.c_str(), 0600) != 0) return Error{ErrorCode::kIo, "index: permissions"};
  }
  return {};
}

}  // namespace

// Called while others hold the database. 0 gives up.
int Sqlite::wait_more(void* waiting, int n_before) {
  constexpr std::chrono::milliseconds kPause{10};
  Waiting& self = *static_cast<Waiting*>(waiting);
  const auto now = std::chrono::steady_clock::now();
  if (n_before == 0) self.begin = now;
  if (now - self.begin >= self.limits.timeout || stop_work(waiting) != 0) return 0;
  std::this_thread::sleep_for(kPause);
  return 1;
}

int Sqlite::stop_work(void* waiting) {
  const auto& interrupted = static_cast<Waiting*>(waiting)->limits.interrupted;
  return interrupted && interrupted() ? 1 : 0;
}

Result<Sqlite> Sqlite::open(const std::filesystem::path& path, const SqliteWait& wait) {
  TQC_TRY(close_to_others(path));
  sqlite3* opened = nullptr;
  constexpr int kFlags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int status = sqlite3_open_v2(path.string().c_str(), &opened, kFlags, nullptr);
  Sqlite database(opened, wait);  // to be closed after a failure, too
  if (status != SQLITE_OK) return sqlite_error(status);
  // Rare enough to leave short statements alone, so that a put that was interrupted can still
  // remove its rows.
  constexpr int kStepsBetweenLooks = 100'000;
  sqlite3_busy_handler(opened, wait_more, database.waiting_.get());
  sqlite3_progress_handler(opened, kStepsBetweenLooks, stop_work, database.waiting_.get());
  for (const int forbidden : {SQLITE_DBCONFIG_ENABLE_TRIGGER, SQLITE_DBCONFIG_ENABLE_VIEW,
                              SQLITE_DBCONFIG_TRUSTED_SCHEMA}) {
    sqlite3_db_config(opened, forbidden, 0, nullptr);
  }
  sqlite3_db_config(opened, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_limit(opened, SQLITE_LIMIT_LENGTH, 1 << 20);
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

namespace {

constexpr const char* kSettings =
    "PRAGMA journal_mode = WAL;"
    "PRAGMA synchronous = NORMAL;";

// As SQLite keeps them. Never changed, because an index with others is rebuilt.
constexpr const char* kBlobTable =
    "CREATE TABLE blob("
    "  key TEXT PRIMARY KEY, bytes INTEGER NOT NULL, used INTEGER NOT NULL) WITHOUT ROWID";
constexpr const char* kFactTable =
    "CREATE TABLE fact(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID";

constexpr const char* kAdd = "INSERT OR IGNORE INTO blob VALUES(?1, ?2, ?3)";
constexpr const char* kAddNow =
    "INSERT OR IGNORE INTO blob VALUES(?1, ?2, CAST(strftime('%s', 'now') AS INTEGER))";
constexpr const char* kForget = "DELETE FROM blob WHERE key = ?1";
constexpr const char* kTouch =
    "UPDATE blob SET used = CAST(strftime('%s', 'now') AS INTEGER) WHERE key = ?1";
// No key has a character above 'z'.
constexpr const char* kList =
    "SELECT key, bytes, CAST(strftime('%s', 'now') AS INTEGER) - used FROM blob"
    " WHERE key > ?1 AND key >= ?2 AND key < ?2 || '~' ORDER BY key LIMIT ?3";

std::uint64_t file_number(const std::filesystem::path& path) {
  posix::Stat info{};
  return posix::stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

void remove_database(const std::filesystem::path& path) {
  for (const char* end : {"", "-wal", "-shm"}) {
    std::error_code ignored;
    std::filesystem::remove(path.string() + end, ignored);
  }
}

}  // namespace

Result<void> DirIndex::add(std::span<const Entry> blobs) {
  return in_transaction([&](Sqlite& database) -> Result<void> {
    TQC_TRY_ASSIGN(SqliteStatement row, database.prepare(kAddNow));
    for (const Entry& blob : blobs) {
      TQC_TRY(row.bind(1, blob.key).bind(2, static_cast<std::int64_t>(blob.bytes)).run());
    }
    return {};
  });
}

Result<void> DirIndex::forget(std::span<const std::string> keys) {
  return in_transaction([&](Sqlite& database) -> Result<void> {
    TQC_TRY_ASSIGN(SqliteStatement row, database.prepare(kForget));
    for (const std::string& key : keys) TQC_TRY(row.bind(1, key).run());
    return {};
  });
}

Result<void> DirIndex::touch(std::span<const std::string> keys) {
  return in_transaction([&](Sqlite& database) -> Result<void> {
    TQC_TRY_ASSIGN(SqliteStatement row, database.prepare(kTouch));
    for (const std::string& key : keys) TQC_TRY(row.bind(1, key).run());
    return {};
  });
}

Result<std::vector<Entry>> DirIndex::list(const std::string& prefix, const std::string& after,
                                          std::int64_t limit) {
  std::vector<Entry> entries;
  TQC_TRY(with_database([&](Sqlite& database) -> Result<void> {
    entries.clear();
    TQC_TRY_ASSIGN(SqliteStatement rows, database.prepare(kList));
    rows.bind(1, after).bind(2, prefix).bind(3, limit);
    for (;;) {
      TQC_TRY_ASSIGN(const bool more, rows.step());
      if (!more) return {};
      // A clock that was set back must not give a negative age.
      const std::chrono::seconds idle(std::max<std::int64_t>(rows.number(2), 0));
      entries.push_back({rows.text(0), static_cast<std::uint64_t>(rows.number(1)), idle});
    }
  }));
  return entries;
}

Result<void> DirIndex::in_transaction(const Work& work) {
  return with_database([&](Sqlite& database) -> Result<void> {
    TQC_TRY(database.run("BEGIN IMMEDIATE"));
    Result<void> done = work(database);
    if (done) done = database.run("COMMIT");
    if (!done) (void)database.run("ROLLBACK").ok();
    return done;
  });
}

// `work` may be called twice: a damaged database is rebuilt, perhaps by another process meanwhile.
Result<void> DirIndex::with_database(const Work& work) {
  const std::lock_guard lock(mutex_);
  if (database_ && file_number(layout_.index()) != file_number_) database_.reset();
  if (!database_) TQC_TRY(open(0));
  Result<void> done = work(*database_);
  if (!done && done.error().code == ErrorCode::kBusy && wait_.interrupted && wait_.interrupted()) {
    return interrupted_error();
  }
  const bool is_replaced = file_number(layout_.index()) != file_number_;
  const bool is_damaged = !done && done.error().code == ErrorCode::kCorrupt;
  if (!is_replaced && !is_damaged) return done;
  TQC_TRY(open(is_damaged ? file_number_ : 0));
  return work(*database_);
}

// SQLite reads a row into memory before it looks at its size. Rows of tqcache take some hundred
// bytes, and pages that removed rows left free are few.
Result<void> DirIndex::check_size() const {
  constexpr std::uint64_t kNeverTooLarge = std::uint64_t{256} << 20;
  constexpr std::uint64_t kBytesPerFile = 1024;
  std::error_code none;
  const std::uint64_t bytes = std::filesystem::file_size(layout_.index(), none);
  if (none || bytes <= kNeverTooLarge) return {};
  std::uint64_t n_files = 0;
  TQC_TRY(layout_.visit([&](const DirLayout::File&) -> Result<void> {
    ++n_files;
    return wait_.interrupted && wait_.interrupted() ? interrupted_error() : Result<void>();
  }));
  if (bytes - kNeverTooLarge <= n_files * kBytesPerFile) return {};
  return corrupt("index: larger than its rows can be");
}

// Only the two tables, as tqcache makes them.
Result<void> DirIndex::check_tables() {
  TQC_TRY_ASSIGN(SqliteStatement found,
                 database_->prepare("SELECT name, type, sql FROM sqlite_master"));
  int n_tables = 0;
  for (;;) {
    TQC_TRY_ASSIGN(const bool more, found.step());
    if (!more) break;
    const std::string name = found.text(0);
    if (name.starts_with("sqlite_")) continue;
    const char* const expected = name == "blob" ? kBlobTable : name == "fact" ? kFactTable : "";
    if (found.text(1) != "table" || found.text(2) != expected) {
      return corrupt("index: not a table of tqcache: " + printable(name));
    }
    ++n_tables;
  }
  return n_tables == 2 ? Result<void>() : corrupt("index: a table is missing");
}

Result<void> DirIndex::open_database() {
  database_.reset();
  TQC_TRY(check_size());
  TQC_TRY_ASSIGN(Sqlite database, Sqlite::open(layout_.index(), wait_));
  TQC_TRY(database.run(kSettings));
  file_number_ = file_number(layout_.index());
  database_ = std::move(database);
  return {};
}

Result<bool> DirIndex::is_of_this_boot() {
  TQC_TRY(check_tables());
  TQC_TRY_ASSIGN(SqliteStatement fact,
                 database_->prepare("SELECT value FROM fact WHERE name = 'boot'"));
  TQC_TRY_ASSIGN(const bool found, fact.step());
  const std::string boot = boot_name();
  return found && !boot.empty() && fact.text(0) == boot;
}

// Opens and removes the database in one process at a time. SQLite opens a database and its journals
// one after the other, by their names: a process that opened them while another replaced them would
// use the database of one with the journals of the other. Waiting processes find the work done.
//
// `damaged_file` is known to be damaged, even if its first pages are intact; 0 for none.
Result<void> DirIndex::open(std::uint64_t damaged_file) {
  TQC_TRY_ASSIGN(const auto lock,
                 lock_patiently(layout_.marker(), wait_.timeout, wait_.interrupted));
  const bool is_new = file_number(layout_.index()) == 0;
  Result<void> opened = open_database();
  if (is_new && opened) return insert_files();
  const Result<bool> current = opened ? is_of_this_boot() : Result<bool>(opened.error());
  const bool is_bad = (damaged_file != 0 && file_number_ == damaged_file) ||
                      (!current && current.error().code == ErrorCode::kCorrupt);
  if (!is_bad && current && *current) return {};
  if (is_bad) {
    database_.reset();
    remove_database(layout_.index());
    opened = open_database();
  } else if (!current) {
    return current.error();
  }
  TQC_TRY(std::move(opened));
  return insert_files();
}

Result<void> DirIndex::insert_files() {
  TQC_TRY(database_->run("BEGIN IMMEDIATE"));
  if (!check_tables()) {
    TQC_TRY(database_->run(kBlobTable));
    TQC_TRY(database_->run(kFactTable));
  }
  TQC_TRY_ASSIGN(SqliteStatement row, database_->prepare(kAdd));
  TQC_TRY(layout_.visit([&](const DirLayout::File& file) -> Result<void> {
    if (wait_.interrupted && wait_.interrupted()) return interrupted_error();
    row.bind(1, file.key).bind(2, static_cast<std::int64_t>(file.bytes)).bind(3, file.modified);
    return row.run();
  }));
  TQC_TRY_ASSIGN(SqliteStatement fact,
                 database_->prepare("INSERT OR REPLACE INTO fact VALUES('boot', ?1)"));
  TQC_TRY(fact.bind(1, boot_name()).run());
  return database_->run("COMMIT");
}

}  // namespace tqcache::store
