// What holds for a folder alone: docs/reference/store.md, 3.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <sstream>

#include "store/values.h"
#include "support/temp_dir.h"
#include "tqcache/store.h"
#include "tqcache/store/backends/dir_files.h"
#include "tqcache/store/backends/dir_index.h"
#include "tqcache/store/blobs/blob_keys.h"
#include "tqcache/upkeep.h"

namespace tqcache::test {
namespace dir_backend_test {

using store::Backend;
using store::Entry;
using testing::ElementsAre;

class DirStore : public testing::Test {
 protected:
  std::unique_ptr<Backend> open() {
    auto opened = store::open_backend("dir:" + root_.string(), {});
    if (!opened) throw std::runtime_error(opened.error().message);
    return std::move(opened).value();
  }

  static std::vector<Entry> list(Backend& store) {
    std::vector<Entry> entries;
    const Result<void> done = store.list("", [&](const Entry& entry) -> Result<void> {
      entries.push_back(entry);
      return {};
    });
    EXPECT_TRUE(done.ok()) << done.error().message;
    return entries;
  }

  static std::vector<std::string> keys(Backend& store) {
    std::vector<std::string> all;
    for (const Entry& entry : list(store)) all.push_back(entry.key);
    return all;
  }

  std::filesystem::path blob_path(const std::string& key) {
    return store::DirLayout::open(root_, false)->blob(key);
  }

  ErrorCode refusal(bool create = true) {
    store::BackendOptions options;
    options.create = create;
    return store::open_backend("dir:" + root_.string(), options).error().code;
  }

  static inline const store::SqliteWait kWait{std::chrono::milliseconds(1000), {}};
  TempDir folder_;
  std::filesystem::path root_ = folder_ / "store";
  std::filesystem::path index_ = root_ / "index.sqlite";
};

TEST_F(DirStore, KeepsABlobUnderTheNameThatTheDocumentGives) {
  ASSERT_TRUE(open()->put("b/0123/4567", as_bytes("value")).ok());
  // The first byte of the SHA-256 of "b/0123/4567" is bd.
  EXPECT_EQ(read_all(root_ / "blobs" / "bd" / "b,0123,4567").size(), 5u);
}

TEST_F(DirStore, IsReadableByItsOwnerAlone) {
  ASSERT_TRUE(open()->put("a", as_bytes("value")).ok());
  struct stat info {};
  ASSERT_EQ(::stat(root_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(::stat(blob_path("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(DirStore, IsMadeOnlyWhereNothingElseIs) {
  EXPECT_EQ(refusal(false), ErrorCode::kNotFound);
  std::filesystem::create_directory(root_);
  write_all(root_ / "letter.txt", "mine");
  EXPECT_EQ(refusal(), ErrorCode::kInvalidArgument);
  std::filesystem::remove(root_ / "letter.txt");
  EXPECT_NE(open(), nullptr);
}

TEST_F(DirStore, IsCompletedIfItsCreatorWasKilled) {
  std::filesystem::create_directories(root_ / "blobs" / "00");
  EXPECT_TRUE(open()->put("a", as_bytes("value")).ok());
}

TEST_F(DirStore, RefusesALayoutOfAnotherVersion) {
  open();
  write_all(root_ / "tqcache-store", "tqcache store 2\n");
  EXPECT_EQ(refusal(), ErrorCode::kUnsupported);
}

TEST_F(DirStore, RefusesAFileInThePlaceOfAFolder) {
  write_all(root_, "a file");
  EXPECT_EQ(refusal(), ErrorCode::kIo);
}

TEST_F(DirStore, RebuildsALostIndexFromTheFiles) {
  const auto store = open();
  ASSERT_TRUE(store->put("a", Bytes(10)).ok());
  ASSERT_TRUE(store->put("b/c", Bytes(20)).ok());
  std::filesystem::remove(index_);
  EXPECT_THAT(keys(*store), ElementsAre("a", "b/c"));  // while it is open
  for (const char* end : {"", "-wal", "-shm"}) std::filesystem::remove(index_.string() + end);
  const std::vector<Entry> entries = list(*open());
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[1].bytes, 20u);
  EXPECT_LE(entries[1].idle, std::chrono::seconds(60));
}

TEST_F(DirStore, RebuildsADamagedIndexFromTheFiles) {
  ASSERT_TRUE(open()->put("a", Bytes(10)).ok());
  for (const std::string& damage :
       {std::string("no database"), std::string(100'000, 'x'), std::string()}) {
    for (const char* end : {"-wal", "-shm"}) std::filesystem::remove(index_.string() + end);
    write_all(index_, damage);
    const auto store = open();
    EXPECT_THAT(keys(*store), ElementsAre("a"));
    EXPECT_TRUE(store->touch(std::vector<std::string>{"a"}).ok());
  }
}

TEST_F(DirStore, FindsDamageInAnyPageOfTheIndex) {
  const auto store = open();
  std::vector<std::string> names;
  for (int i = 0; i < 600; ++i)
    names.push_back("k/" + std::to_string(1000 + i) + std::string(100, 'x'));
  for (const std::string& name : names) write_all(blob_path(name), "value");
  EXPECT_EQ(keys(*store), names);
  {
    auto database = store::Sqlite::open(index_, kWait);
    ASSERT_TRUE(database.ok() && database->run("PRAGMA wal_checkpoint(TRUNCATE)").ok());
  }
  Bytes file = read_all(index_);
  ASSERT_GT(file.size(), 6u * 4096);
  for (const char* end : {"", "-wal", "-shm"}) std::filesystem::remove(index_.string() + end);
  std::fill(file.begin() + 4096 * 4, file.end(), std::byte{0xff});
  write_all(index_, file);
  EXPECT_EQ(keys(*open()), names);
}

TEST_F(DirStore, LooksAtItsFilesAgainAfterARestartOfTheSystem) {
  ASSERT_TRUE(open()->put("a", Bytes(10)).ok());
  ASSERT_TRUE(open()->put("lost", Bytes(10)).ok());
  {
    auto database = store::Sqlite::open(index_, kWait);
    ASSERT_TRUE(database.ok());
    ASSERT_TRUE(database->run("DELETE FROM blob WHERE key = 'lost'").ok());
  }
  EXPECT_THAT(keys(*open()), ElementsAre("a"));
  {
    auto database = store::Sqlite::open(index_, kWait);
    ASSERT_TRUE(database->run("UPDATE fact SET value = 'an earlier one'").ok());
  }
  EXPECT_THAT(keys(*open()), ElementsAre("a", "lost"));
}

TEST_F(DirStore, PassesOverFilesThatAreNoBlobs) {
  const auto store = open();
  ASSERT_TRUE(store->put("a", Bytes(10)).ok());
  const std::filesystem::path folder = blob_path("a").parent_path();
  write_all(folder / ".a.tmp-abcdef", "left behind");
  write_all(folder / "NOTES", "no key");
  std::filesystem::create_directory(folder / "folder");
  std::filesystem::remove(index_);
  EXPECT_THAT(keys(*store), ElementsAre("a"));
}

TEST_F(DirStore, TellsHowLongABlobHasNotBeenUsed) {
  const auto store = open();
  ASSERT_TRUE(store->put("a", Bytes(10)).ok());
  ASSERT_TRUE(store->put("b", Bytes(10)).ok());
  auto database = store::Sqlite::open(index_, kWait);
  ASSERT_TRUE(database.ok() && database->run("UPDATE blob SET used = used - 5000").ok());
  ASSERT_TRUE(store->touch(std::vector<std::string>{"b"}).ok());
  const std::vector<Entry> entries = list(*store);
  EXPECT_GE(*entries[0].idle, std::chrono::seconds(5000));
  EXPECT_LE(*entries[1].idle, std::chrono::seconds(60));
}

TEST_F(DirStore, WorksWithAClockThatIsSetBack) {
  const auto store = open();
  ASSERT_TRUE(store->put("a", Bytes(10)).ok());
  auto database = store::Sqlite::open(index_, kWait);
  ASSERT_TRUE(database.ok() && database->run("UPDATE blob SET used = used + 5000").ok());
  EXPECT_EQ(*list(*store)[0].idle, std::chrono::seconds(0));
}

TEST_F(DirStore, WorksWithImpossibleTimes) {
  const auto store = open();
  ASSERT_TRUE(store->put("a", Bytes(10)).ok());
  auto database = store::Sqlite::open(index_, kWait);
  for (const char* time : {"9223372036854775807", "-9223372036854775807 - 1"}) {
    ASSERT_TRUE(database->run(("UPDATE blob SET used = " + std::string(time)).c_str()).ok());
    EXPECT_GE(*list(*store)[0].idle, std::chrono::seconds(0)) << time;
    ASSERT_TRUE(store->touch(std::vector<std::string>{"a"}).ok());
    EXPECT_LE(*list(*store)[0].idle, std::chrono::seconds(60)) << time;
  }
}

TEST_F(DirStore, TakesAFileFromTheFutureForANewOne) {
  ASSERT_TRUE(open()->put("a", Bytes(10)).ok());
  std::filesystem::last_write_time(
      blob_path("a"), std::filesystem::file_time_type::clock::now() + std::chrono::hours(1000));
  for (const char* end : {"", "-wal", "-shm"}) std::filesystem::remove(index_.string() + end);
  EXPECT_EQ(*list(*open())[0].idle, std::chrono::seconds(0));
}

TEST_F(DirStore, ReadsWithoutAnIndex) {
  ASSERT_TRUE(open()->put("a", as_bytes("value")).ok());
  std::filesystem::remove(index_);
  std::filesystem::create_directory(index_);
  const auto store = open();
  EXPECT_TRUE(store->get("a")->has_value());
  EXPECT_TRUE(*store->exists("a"));
  EXPECT_FALSE(store->touch(std::vector<std::string>{"a"}).ok());
}

TEST_F(DirStore, SaysThatTheSystemRefused) {
  const auto store = open();
  ASSERT_TRUE(store->put("a", as_bytes("value")).ok());
  const std::filesystem::path folder = blob_path("a").parent_path();
  std::filesystem::remove_all(folder);
  std::filesystem::create_symlink(folder.filename(), folder);  // a circle
  EXPECT_EQ(store->get("a").error().code, ErrorCode::kIo);
  EXPECT_EQ(store->put("a", {}).error().code, ErrorCode::kIo);
  EXPECT_EQ(store->remove("a").error().code, ErrorCode::kIo);
}

TEST_F(DirStore, RefusesAFileAboveTheLimitBeforeReadingIt) {
  const auto store = open();
  ASSERT_TRUE(store->put("a", {}).ok());
  std::filesystem::resize_file(blob_path("a"), store::kMaxValueBytes + 1);  // a hole
  EXPECT_EQ(store->get("a").error().code, ErrorCode::kTooLarge);
}

TEST_F(DirStore, ItsIndexIsReadableByItsOwnerAlone) {
  const mode_t mask = ::umask(0);
  const auto store = open();
  EXPECT_TRUE(store->put("a", as_bytes("value")).ok());
  ::umask(mask);
  for (const char* end : {"", "-wal", "-shm"}) {
    struct stat info {};
    ASSERT_EQ(::stat((index_.string() + end).c_str(), &info), 0) << end;
    EXPECT_EQ(info.st_mode & 0777, 0600u) << end;
  }
}

TEST_F(DirStore, ClosesAnOlderIndexToOthers) {
  ASSERT_TRUE(open()->put("a", as_bytes("value")).ok());
  for (const char* end : {"", "-wal", "-shm"}) {
    ASSERT_EQ(::chmod((index_.string() + end).c_str(), 0644), 0) << end;
  }
  EXPECT_THAT(keys(*open()), ElementsAre("a"));
  for (const char* end : {"", "-wal", "-shm"}) {
    struct stat info {};
    ASSERT_EQ(::stat((index_.string() + end).c_str(), &info), 0) << end;
    EXPECT_EQ(info.st_mode & 0777, 0600u) << end;
  }
}

TEST_F(DirStore, ClosesAFolderThatWasThereToOthers) {
  std::filesystem::create_directory(root_);
  ASSERT_EQ(::chmod(root_.c_str(), 0755), 0);
  open();
  struct stat info {};
  ASSERT_EQ(::stat(root_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

// --- rows without files

class DirRows : public DirStore {
 protected:
  void run(const std::string& statement) {
    auto database = store::Sqlite::open(index_, kWait);
    ASSERT_TRUE(database.ok() && database->run(statement.c_str()).ok()) << statement;
  }
  std::int64_t n_rows() {
    auto database = store::Sqlite::open(index_, kWait);
    auto rows = database->prepare("SELECT count(*) FROM blob");
    EXPECT_TRUE(rows.ok() && rows->step().ok());
    return rows->number(0);
  }
  static std::string block_key(char digit) {
    return store::part_key(store::block_name(Sha256{std::byte(digit)}, 0), 0);
  }
};

TEST_F(DirRows, AFailedPutForgetsItsRows) {
  const auto store = open();
  ASSERT_TRUE(store->put("c", as_bytes("value")).ok());
  const std::filesystem::path folder_of_b = blob_path("b").parent_path();
  std::filesystem::remove(folder_of_b);
  write_all(folder_of_b, "a file in the place of the folder");
  const std::vector<store::Blob> blobs = {{"a", as_bytes("value")}, {"b", as_bytes("value")}};
  ASSERT_FALSE(store->put(blobs).ok());
  EXPECT_EQ(n_rows(), 1 + static_cast<std::int64_t>(std::filesystem::exists(blob_path("a"))));
}

TEST_F(DirRows, RowsWithoutFilesAreNotListedAndForgottenWhenTheyAreOld) {
  const auto store = open();
  ASSERT_TRUE(store->put("a", as_bytes("value")).ok());
  run("INSERT INTO blob VALUES('b/killed', 1000000, 0)");
  run("INSERT INTO blob SELECT 'b/being-put', 1000000, used FROM blob WHERE key = 'a'");
  EXPECT_THAT(keys(*store), ElementsAre("a"));
  EXPECT_EQ(n_rows(), 2);
}

TEST_F(DirRows, TheFileSaysHowLargeABlobIs) {
  const auto store = open();
  ASSERT_TRUE(store->put("a", as_bytes("value")).ok());
  run("UPDATE blob SET bytes = -1");
  EXPECT_EQ(list(*store).at(0).bytes, 5u);
}

TEST_F(DirRows, NoGoodBlockGoesForAPhantom) {
  const auto store = open();
  ASSERT_TRUE(store->put(block_key(1), Bytes(1000)).ok());
  run("UPDATE blob SET used = used - 7200");
  run("INSERT INTO blob SELECT '" + block_key(2) + "', 1000000, used + 10 FROM blob");
  const auto report = store::collect(*store, {.max_bytes = 5000});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->bytes_before, 1000u);
  EXPECT_FALSE(report->above_limit);
  EXPECT_THAT(keys(*store), ElementsAre(block_key(1)));
}

TEST_F(DirRows, ARecordWithoutItsFileIsGone) {
  const auto store = open();
  ASSERT_TRUE(store->put(block_key(1), Bytes(1000)).ok());
  run("INSERT INTO blob VALUES('" + store::record_key("", "name") + "', 2496, 0)");
  run("UPDATE blob SET used = used - 7200");
  const auto report = store::collect(*store, {.max_bytes = 0, .drop_prompts = true});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->bytes_needed, 0u);
  EXPECT_FALSE(report->above_limit);
  EXPECT_EQ(n_rows(), 0);
}

// No file can become longer, as on a disk that is full to the last byte.
class FullDisk {
 public:
  FullDisk() {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit none{0, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &none);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FullDisk(const FullDisk&) = delete;

 private:
  rlimit before_{};
};

TEST_F(DirRows, AFullDiskCanBeEmptied) {
  for (const bool with_index : {true, false}) {
    const auto store = open();
    ASSERT_TRUE(store->put(block_key(1), Bytes(1000)).ok());
    ASSERT_TRUE(store->put(block_key(2), Bytes(1000)).ok());
    run("UPDATE blob SET used = 0");
    const auto long_ago = std::filesystem::file_time_type::clock::now() - std::chrono::hours(2);
    for (const char digit : {'\1', '\2'}) {
      std::filesystem::last_write_time(blob_path(block_key(digit)), long_ago);
    }
    if (!with_index) {
      for (const char* end : {"", "-wal", "-shm"}) std::filesystem::remove(index_.string() + end);
    }
    {
      const FullDisk full;
      EXPECT_FALSE(open()->put("more", Bytes(1000)).ok());
      const auto report = store::collect(*open(), {.max_bytes = 0, .drop_prompts = true});
      ASSERT_TRUE(report.ok()) << with_index << ": " << report.error().message;
      EXPECT_EQ(report->bytes_before, 2000u);
      EXPECT_EQ(report->bytes_after, 0u);
    }
    EXPECT_FALSE(std::filesystem::exists(blob_path(block_key(1))));
    EXPECT_TRUE(keys(*open()).empty());
  }
}

// --- an index that tqcache did not write

class DirHostileIndex : public DirRows {
 protected:
  // An index of one good blob, in which `statement` then runs.
  void make(const std::string& statement) {
    ASSERT_TRUE(open()->put("a", as_bytes("value")).ok());
    run("PRAGMA journal_mode = DELETE; " + statement);
  }
};

TEST_F(DirHostileIndex, WithAViewIsMadeAnew) {
  make(
      "DROP TABLE blob; CREATE VIEW blob AS WITH RECURSIVE n(key) AS (VALUES('a') UNION ALL "
      "SELECT key FROM n) SELECT key, 1 AS bytes, 1 AS used FROM n WHERE key = 'b'");
  EXPECT_THAT(keys(*open()), ElementsAre("a"));
  EXPECT_EQ(n_rows(), 1);
}

TEST_F(DirHostileIndex, WithATriggerIsMadeAnew) {
  make("CREATE TRIGGER t AFTER INSERT ON blob BEGIN DELETE FROM blob; END");
  EXPECT_TRUE(open()->put("b", as_bytes("value")).ok());
  EXPECT_THAT(keys(*open()), ElementsAre("a", "b"));
}

TEST_F(DirHostileIndex, WithAHugeKeyIsMadeAnew) {
  ASSERT_TRUE(open()->put("a", as_bytes("value")).ok());
  sqlite3* database = nullptr;  // without the limits of Sqlite
  ASSERT_EQ(sqlite3_open(index_.c_str(), &database), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(database, "INSERT INTO blob VALUES('n/' || hex(zeroblob(4000000)), 5, 0)",
                         nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(database);
  EXPECT_THAT(keys(*open()), ElementsAre("a"));
  EXPECT_EQ(n_rows(), 1);
}

TEST_F(DirHostileIndex, ThatIsLargerThanItsRowsIsMadeAnew) {
  make("VACUUM");
  std::filesystem::resize_file(index_, std::uint64_t{257} << 20);  // a hole
  EXPECT_THAT(keys(*open()), ElementsAre("a"));
  EXPECT_LT(std::filesystem::file_size(index_), 1u << 20);
}

TEST_F(DirHostileIndex, ListsNoKeyThatIsNone) {
  make("INSERT INTO blob VALUES('../../../etc/passwd', 5, 0), ('b/' || char(27), -1, 0)");
  EXPECT_THAT(keys(*open()), ElementsAre("a"));
}

TEST_F(DirHostileIndex, AWaitForALockIsInterrupted) {
  ASSERT_TRUE(open()->put("a", as_bytes("value")).ok());
  auto holder = store::Sqlite::open(index_, kWait);
  ASSERT_TRUE(holder.ok() && holder->run("BEGIN IMMEDIATE").ok());
  int n_looks = 0;
  store::BackendOptions options;
  options.idle_timeout = std::chrono::hours(1);
  options.interrupted = [&] { return ++n_looks > 3; };
  auto store = store::open_backend("dir:" + root_.string(), options);
  EXPECT_EQ((*store)->put("b", {}).error().code, ErrorCode::kInterrupted);
  ASSERT_TRUE(holder->run("ROLLBACK").ok());
  n_looks = 0;
  const auto lock = LockedFile::open(blob_path("a"));
  ASSERT_TRUE(lock.ok());
  EXPECT_EQ((*store)->remove("a").error().code, ErrorCode::kInterrupted);
}

// --- processes that open the index at the same moment

// Runs `work` in processes that begin together, and returns what they reported, "" for success.
std::vector<std::string> together(int n, const std::function<Result<void>(int)>& work) {
  std::array<int, 2> start{};
  std::array<int, 2> reports{};
  if (::pipe(start.data()) != 0 || ::pipe(reports.data()) != 0) return {"no pipes"};
  for (int i = 0; i < n; ++i) {
    if (::fork() != 0) continue;
    char none = 0;
    ::close(start[1]);
    (void)!::read(start[0], &none, 1);  // until the parent closes its end
    const Result<void> done = work(i);
    const std::string report = done ? "" : std::string(done.error().message).substr(0, 200);
    (void)!::write(reports[1], (report + '\n').c_str(), report.size() + 1);
    ::_exit(0);
  }
  ::close(start[0]);
  ::close(start[1]);
  ::close(reports[1]);
  std::string all;
  std::array<char, 256> some{};
  for (ssize_t bytes = 0; (bytes = ::read(reports[0], some.data(), some.size())) > 0;) {
    all.append(some.data(), static_cast<std::size_t>(bytes));
  }
  ::close(reports[0]);
  while (::wait(nullptr) > 0) {
  }
  std::vector<std::string> lines;
  std::istringstream text(all);
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

class DirIndexRace : public DirStore {
 protected:
  static constexpr int kProcesses = 8;

  // What the processes put is listed afterwards, whatever they found in place of an index.
  void expect_all_put() {
    const auto reports = together(kProcesses, [&](int i) -> Result<void> {
      TQC_TRY_ASSIGN(const auto store, store::open_backend("dir:" + root_.string(), {}));
      for (int k = 0; k < 3; ++k) {
        TQC_TRY(store->put(std::to_string(i) + "." + std::to_string(k), as_bytes("value")));
      }
      return store->list("", [](const Entry&) -> Result<void> { return {}; });
    });
    EXPECT_THAT(reports, testing::SizeIs(kProcesses));
    EXPECT_THAT(reports, testing::Each(""));
    EXPECT_THAT(keys(*open()), testing::SizeIs(testing::Ge(3u * kProcesses)));
  }
};

TEST_F(DirIndexRace, AMissingIndexIsMadeOnce) {
  for (int round = 0; round < 20; ++round) {
    open();
    expect_all_put();
    ASSERT_FALSE(HasFailure()) << "round " << round;
    std::filesystem::remove_all(root_);
  }
}

TEST_F(DirIndexRace, ADamagedIndexIsMadeAnewOnce) {
  for (int round = 0; round < 20; ++round) {
    open();
    write_all(index_, std::string(20'000, 'x'));
    expect_all_put();
    ASSERT_FALSE(HasFailure()) << "round " << round;
    std::filesystem::remove_all(root_);
  }
}

// --- what killed writers leave

TEST_F(DirStore, TakesAwayTheTemporariesOfKilledWriters) {
  const auto store = open();
  ASSERT_TRUE(store->put("a", as_bytes("value")).ok());
  const std::filesystem::path folder = blob_path("a").parent_path();
  const std::filesystem::path old = folder / ".b,never.tmp-abcdef";
  const std::filesystem::path nameless = folder / ".tqcache-abcdef";
  const std::filesystem::path young = folder / ".b,young.tmp-abcdef";
  const std::filesystem::path in_use = folder / ".b,used.tmp-abcdef";
  const std::filesystem::path foreign = folder / ".b,other.tmp-ABC";
  for (const auto& path : {old, nameless, young, in_use, foreign}) {
    write_all(path, "prompt");
    if (path == young) continue;
    std::filesystem::last_write_time(
        path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
  }
  const auto lock = LockedFile::open(in_use);
  ASSERT_TRUE(lock.ok());
  const auto stats = store::read_stats(*store);
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->leftovers.files, 2u);
  EXPECT_EQ(stats->leftovers.bytes, 12u);
  const auto dry = store::collect(*store, {.dry_run = true});
  EXPECT_EQ(dry->leftovers.files, 2u);
  EXPECT_TRUE(std::filesystem::exists(old));
  const auto report = store::collect(*store, {});
  EXPECT_EQ(report->leftovers.files, 2u);
  EXPECT_FALSE(std::filesystem::exists(old) || std::filesystem::exists(nameless));
  EXPECT_TRUE(std::filesystem::exists(young) && std::filesystem::exists(in_use) &&
              std::filesystem::exists(foreign));
  EXPECT_THAT(keys(*store), ElementsAre("a"));
}

TEST_F(DirStore, ACheckCountsTemporariesAndARepairRemovesThem) {
  const auto store = open();
  ASSERT_TRUE(store->put("a", as_bytes("value")).ok());
  const std::filesystem::path old = blob_path("a").parent_path() / ".b,never.tmp-abcdef";
  write_all(old, "prompt");
  std::filesystem::last_write_time(
      old, std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
  EXPECT_EQ(store::check(*store, {})->leftovers.bytes, 6u);
  EXPECT_TRUE(std::filesystem::exists(old));
  EXPECT_EQ(store::check(*store, {.repair = true})->leftovers.bytes, 6u);
  EXPECT_FALSE(std::filesystem::exists(old));
}

}  // namespace dir_backend_test
}  // namespace tqcache::test
