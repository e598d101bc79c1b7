// Folders in which something that is no file has the name of a blob, and folders that lost theirs.

#include "store/no_blobs.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "support/temp_dir.h"
#include "tqcache/store/backends/dir_files.h"

namespace tqcache::test {
namespace no_blobs_test {

namespace fs = std::filesystem;

class NoBlobs : public testing::Test {
 protected:
  fs::path emptied(const std::string& key) const {
    const fs::path path = must(store::DirLayout::open(root_, false)).blob(key);
    fs::remove_all(path);
    return path;
  }

  TempDir folder_;
  fs::path root_ = folder_ / "store";
  std::unique_ptr<store::Backend> backend_ = open_store("dir:" + root_.string());
};

TEST_F(NoBlobs, APipeIsADamagedBlob) {
  expect_no_blob_is_damage(*backend_, [&](const std::string& key) {
    ASSERT_EQ(::mkfifo(emptied(key).c_str(), 0600), 0);
  });
}

TEST_F(NoBlobs, ALinkIsADamagedBlobAndIsNotFollowed) {
  const fs::path target = folder_ / "target";
  write_all(target, "something of the user");
  expect_no_blob_is_damage(
      *backend_, [&](const std::string& key) { fs::create_symlink(target, emptied(key)); });
  EXPECT_EQ(read_all(target).size(), 21u);
}

TEST_F(NoBlobs, ALinkToNothingIsADamagedBlobAndIsNotFollowed) {
  const fs::path target = folder_ / "target";
  expect_no_blob_is_damage(
      *backend_, [&](const std::string& key) { fs::create_symlink(target, emptied(key)); });
  EXPECT_FALSE(fs::exists(target));
}

TEST_F(NoBlobs, AFolderIsADamagedBlob) {
  expect_no_blob_is_damage(*backend_, [&](const std::string& key) {
    const fs::path path = emptied(key);
    fs::create_directory(path);
    write_all(path / "file", "something");
  });
}

// A truncated file without a byte, too.
TEST_F(NoBlobs, AnEmptyFileIsADamagedBlob) {
  expect_no_blob_is_damage(*backend_, [&](const std::string& key) { write_all(emptied(key), ""); });
}

TEST_F(NoBlobs, AreDamagedInAnEncryptedStore) {
  store::BackendOptions options;
  options.keys = must(KeyRing::parse(Bytes(32, std::byte(7))));
  const auto encrypted = must(store::open_backend("dir:" + root_.string(), options));
  expect_no_blob_is_damage(*encrypted, [&](const std::string& key) {
    ASSERT_EQ(::mkfifo(emptied(key).c_str(), 0600), 0);
  });
}

// They are found when the index is built from the files, too.
TEST_F(NoBlobs, AreFoundWithoutTheIndex) {
  ASSERT_TRUE(backend_->put("b/0123/4567", as_bytes("value")).ok());
  ASSERT_EQ(::mkfifo(emptied("b/0123/4567").c_str(), 0600), 0);
  backend_.reset();
  for (const char* end : {"", "-wal", "-shm"})
    fs::remove(root_ / ("index.sqlite" + std::string(end)));
  backend_ = open_store("dir:" + root_.string());
  EXPECT_EQ(all_keys(*backend_), std::vector<std::string>{"b/0123/4567"});
}

TEST_F(NoBlobs, APutMakesLostFoldersAgain) {
  ToldLibrary library(*backend_);
  const cache::Cache cache = trunk_of(600);
  must(library->put_cache(cache, "kept"));
  for (const bool record_alone : {false, true}) {
    fs::remove_all(root_ / "blobs");
    if (record_alone) must(backend_->replace("n/0123/4567", as_bytes("value")));
    must(library->put_cache(cache, "kept"));
    EXPECT_EQ(load(fetched_file(library.library, "kept")).tokens, cache.tokens);
    struct stat info {};
    ASSERT_EQ(::stat((root_ / "blobs").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
  }
}

}  // namespace no_blobs_test
}  // namespace tqcache::test
