// Migrating a file by its path: what stands at the target and at the backup's name beforehand, and
// callers who stop. tests/faults has the calls that fail in between.

#include "migrations/migrate_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support/temp_dir.h"
#include "support/v1_builder.h"
#include "support/v1_writer.h"
#include "tqcache/quantize.h"

namespace tqcache::test {
namespace migrate_file_test {

namespace fs = std::filesystem;
using migrations::FileMigration;
using migrations::migrate_file;
using migrations::MigrateOptions;
using migrations::MigrateStatus;
using testing::HasSubstr;

// Longer than the pieces in which files are copied and compared.
Bytes large_file() {
  return write_v1(V1Builder(5000).dense({4, 64}, V1Dtype::kF16).facts().build());
}

Bytes small_file() {
  return write_v1(V1Builder(3).dense({1, 8}, V1Dtype::kF16).arrays().facts().build());
}

// Read without an error, and of no class that anyone knows.
Bytes strange_file() {
  return write_v1({.entries = {{.class_path = "strange.Cache"}}, .metadata = {}});
}

class MigrateFile : public testing::Test {
 protected:
  Result<FileMigration> in_place(const Progress& progress = {}) const {
    return migrate_file(old_, old_, options_, progress);
  }
  Result<FileMigration> beside(const Progress& progress = {}) const {
    return migrate_file(old_, new_, options_, progress);
  }
  static void expect_error(const Result<FileMigration>& result, ErrorCode code,
                           const std::string& message) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_THAT(result.error().message, HasSubstr(message));
  }

  const TempDir dir_;
  const fs::path old_ = dir_ / "a.tqkv";
  const fs::path new_ = dir_ / "b.tqkv";
  const fs::path backup_ = dir_ / "a.tqkv.v1.bak";
  MigrateOptions options_ = [] {
    MigrateOptions options;
    options.write.n_threads = 1;
    return options;
  }();
};

TEST_F(MigrateFile, LeavesEverythingWhenTheCallerStopsAtAnyMoment) {
  const Bytes bytes = small_file();
  write_all(old_, bytes);
  for (const bool is_in_place : {true, false}) {
    int n_asked = 0;
    int n_allowed = 0;
    const Progress progress = [&](std::uint64_t, std::uint64_t) { return n_asked++ < n_allowed; };
    for (;; ++n_allowed) {
      n_asked = 0;
      const auto result = is_in_place ? in_place(progress) : beside(progress);
      if (result) break;
      EXPECT_EQ(result.error().code, ErrorCode::kInterrupted) << result.error().message;
      EXPECT_EQ(read_all(old_), bytes);
      EXPECT_EQ(dir_.entry_count(), 1u);
    }
    EXPECT_GE(n_allowed, 4);  // having read, converted, written and read back
    if (is_in_place) {
      fs::rename(backup_, old_);
    }
  }
}

TEST_F(MigrateFile, LeavesWhatItCannotConvert) {
  const Bytes bytes = strange_file();
  write_all(old_, bytes);
  expect_error(in_place(), ErrorCode::kUnsupported, "strange.Cache");
  expect_error(beside(), ErrorCode::kUnsupported, "strange.Cache");
  EXPECT_EQ(read_all(old_), bytes);
  EXPECT_EQ(dir_.entry_count(), 1u);
}

TEST_F(MigrateFile, TakesABackupOfTheSameBytesForItsOwn) {
  const Bytes bytes = large_file();
  ASSERT_GT(bytes.size(), std::size_t{2} << 20);
  write_all(old_, bytes);
  write_all(backup_, bytes);
  const auto report = must(in_place());
  EXPECT_EQ(report.status, MigrateStatus::kMigrated);
  EXPECT_EQ(report.backup, backup_);
  EXPECT_EQ(read_all(backup_), bytes);
  EXPECT_NE(read_all(old_), bytes);
}

TEST_F(MigrateFile, RefusesABackupThatIsAnotherFile) {
  const Bytes bytes = large_file();
  write_all(old_, bytes);
  for (const std::size_t at : {std::size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
    Bytes other = bytes;
    other[at] ^= std::byte{1};
    write_all(backup_, other);
    expect_error(in_place(), ErrorCode::kInvalidArgument, "another file exists there");
    EXPECT_EQ(read_all(backup_), other);
    EXPECT_EQ(read_all(old_), bytes);
  }
  write_all(backup_, ByteView(bytes).first(100));
  expect_error(in_place(), ErrorCode::kInvalidArgument, "another file exists there");
  fs::remove(backup_);
  fs::create_directory(backup_);
  EXPECT_FALSE(in_place().ok());
  EXPECT_EQ(read_all(old_), bytes);
}

// What is not the content of this file, whatever it is, is nothing that an earlier run has left.
TEST_F(MigrateFile, KnowsWhatAnEarlierRunHasLeft) {
  write_all(old_, small_file());
  must(beside());
  EXPECT_EQ(must(beside()).status, MigrateStatus::kDone);

  const Bytes good = read_all(new_);
  Bytes damaged = good;
  damaged[damaged.size() / 2] ^= std::byte{1};
  const cache::Cache other = CacheBuilder(3).dense({1, 8}).build();
  for (const Bytes& there :
       {damaged, small_file(), must(format::write_cache_bytes(other, {.n_threads = 1}))}) {
    write_all(new_, there);
    expect_error(beside(), ErrorCode::kInvalidArgument, "another file exists there");
    EXPECT_EQ(read_all(new_), there);
  }
  options_.write.overwrite = Overwrite::kAllow;
  EXPECT_EQ(must(beside()).status, MigrateStatus::kMigrated);
  EXPECT_EQ(read_all(new_), good);

  fs::remove(new_);
  fs::create_directory(new_);
  EXPECT_FALSE(beside().ok());
  EXPECT_TRUE(fs::is_directory(new_));
}

TEST_F(MigrateFile, SaysWhereItCannotWrite) {
  write_all(old_, small_file());
  expect_error(migrate_file(old_, dir_ / "absent" / "b.tqkv", options_), ErrorCode::kIo, "absent");
  EXPECT_EQ(dir_.entry_count(), 1u);
}

}  // namespace migrate_file_test
}  // namespace tqcache::test
