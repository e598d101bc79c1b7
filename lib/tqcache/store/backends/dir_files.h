#pragma once
// store/backends/dir_files.h: the files of a store in a folder.
//
//   tqcache-store          marks the folder; locked while the index is rebuilt
//   blobs/00/ ... blobs/ff/  256 folders, by the first byte of the key's SHA-256
//   blobs/3f/b,0123,4567   the blob of key b/0123/4567
//   index.sqlite           sizes and times of last use; rebuilt from the files when lost
//
// Only for the sources of store. Spec: docs/reference/store.md, 3.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "tqcache/error.h"
#include "tqcache/file.h"

namespace tqcache::store {

class DirLayout {
 public:
  // Makes the folder a store if it is empty, or if it is missing and `create` is set. Several
  // processes may do so at once. The new store is on disk when this returns.
  // Errors: kNotFound without `create`; kInvalidArgument if the folder holds other things;
  //         kUnsupported for a layout of another version; kIo.
  static Result<DirLayout> open(const std::filesystem::path& root, bool create);

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path marker() const;
  std::filesystem::path index() const;
  std::filesystem::path blob(const std::string& key) const;  // Requires: a checked key
  // Makes the folder of this blob again where it is lost. Errors: kIo.
  Result<void> make_folder_of(const std::string& key) const;

  struct File {
    std::string key;
    std::uint64_t bytes = 0;    // 0 of what is no file, as is_no_file() says
    std::int64_t modified = 0;  // seconds since 1970
  };
  // Every existing blob, in no order. Files whose names are not keys are skipped.
  // Errors: kIo; those of `visit`.
  Result<void> visit(const std::function<Result<void>(const File&)>& visit) const;
  // Temporary files of killed writers, as find_abandoned().
  AbandonedFiles abandoned(std::chrono::seconds min_age, bool remove) const;

 private:
  explicit DirLayout(std::filesystem::path root) : root_(std::move(root)) {}
  Result<void> make() const;
  Result<void> check_marker() const;

  std::filesystem::path root_;
};

// Locks the file, waiting at most `timeout` while others hold the lock.
// Errors: as LockedFile::open; kInterrupted, as BackendOptions::interrupted says.
Result<std::unique_ptr<LockedFile>> lock_patiently(const std::filesystem::path& path,
                                                   std::chrono::milliseconds timeout,
                                                   const std::function<bool()>& interrupted);

// Whether something that is no regular file has this name: a pipe, a symbolic link, a folder. In
// the place of a blob it counts as a damaged one, without bytes, and is neither read nor followed.
bool is_no_file(const std::filesystem::path& path);

// Removes it; a folder with all that is in it. Errors: kIo.
Result<void> remove_no_file(const std::filesystem::path& path);

// Asks the system to read the start of a file, up to the size of a blob, in the background. Errors
// appear when the file is read.
void announce_reading(const std::filesystem::path& path);

}  // namespace tqcache::store
