// What holds for a folder alone: docs/reference/store.md, 3.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "store/values.h"
#include "support/temp_dir.h"
#include "tqcache/store.h"
#include "tqcache/store/backends/dir_files.h"
#include "tqcache/store/backends/dir_index.h"

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
    auto database = store::Sqlite::open(index_, std::chrono::milliseconds(1000));
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
    auto database = store::Sqlite::open(index_, std::chrono::milliseconds(1000));
    ASSERT_TRUE(database.ok());
    ASSERT_TRUE(database->run("DELETE FROM blob WHERE key = 'lost'").ok());
  }
  EXPECT_THAT(keys(*open()), ElementsAre("a"));
  {
    auto database = store::Sqlite::open(index_, std::chrono::milliseconds(1000));
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
  auto database = store::Sqlite::open(index_, std::chrono::milliseconds(1000));
  ASSERT_TRUE(database.ok() && database->run("UPDATE blob SET used = used - 5000").ok());
  ASSERT_TRUE(store->touch(std::vector<std::string>{"b"}).ok());
  const std::vector<Entry> entries = list(*store);
  EXPECT_GE(*entries[0].idle, std::chrono::seconds(5000));
  EXPECT_LE(*entries[1].idle, std::chrono::seconds(60));
}

TEST_F(DirStore, WorksWithAClockThatIsSetBack) {
  const auto store = open();
  ASSERT_TRUE(store->put("a", Bytes(10)).ok());
  auto database = store::Sqlite::open(index_, std::chrono::milliseconds(1000));
  ASSERT_TRUE(database.ok() && database->run("UPDATE blob SET used = used + 5000").ok());
  EXPECT_EQ(*list(*store)[0].idle, std::chrono::seconds(0));
}

TEST_F(DirStore, WorksWithImpossibleTimes) {
  const auto store = open();
  ASSERT_TRUE(store->put("a", Bytes(10)).ok());
  auto database = store::Sqlite::open(index_, std::chrono::milliseconds(1000));
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
  std::filesystem::remove(blob_path("a"));
  std::filesystem::create_directory(blob_path("a"));
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

}  // namespace dir_backend_test
}  // namespace tqcache::test
