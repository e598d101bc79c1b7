#pragma once
// server/tqcache/serve/slot_folder.h: the folder of llama-server's --slot-save-path, and the files
// in it that the proxy and llama-server exchange.
//
//   TQC_TRY_ASSIGN(const auto folder, SlotFolder::open("slots"));
//   const SlotFile file(*folder);
//   TQC_TRY(file.create());
//   // llama-server: POST /slots/0?action=save {"filename": file.name()}
//   TQC_TRY_ASSIGN(const auto bytes, file.open());
//
// Our files are `tqcache-<16 hexadecimal digits>-<number>.slot`, for moments only, and
// `.tqcache-serve.*`. Other programs write files beside them that begin with the name of the slot
// file and a dot (`.ckpt`, `.checkpoints`): they go with it. All other files stay.
//
// Threads: any number.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/file.h"

namespace tqcache::serve {

// Whether a file of this name is a slot file of a proxy, one that belongs to such a file, or a
// temporary file of a proxy. If no proxy runs, it is left over.
bool is_left_over(std::string_view name);

// Opens a file in the slot folder, in place of open_file().
// Errors: kNotFound; kIo (a symbolic link, which is never followed; not a regular file; no
//         permission).
Result<std::shared_ptr<const ByteSource>> open_regular_file(const std::filesystem::path& path);

class SlotFolder {
 public:
  // Removes what a proxy that was killed has left. Until the end, no other proxy opens the folder.
  //
  // Errors: kNotFound; kBusy (another proxy uses it); kIo (cannot be written to; the lock file is a
  //         symbolic link).
  static Result<std::unique_ptr<SlotFolder>> open(const std::filesystem::path& path);
  ~SlotFolder();
  SlotFolder(const SlotFolder&) = delete;
  SlotFolder& operator=(const SlotFolder&) = delete;

  std::filesystem::path path_of(const std::string& name) const { return path_ / name; }
  // The name of a file that does not exist, and that nobody can foresee.
  std::string new_name();

  // Whether its files are in memory (tmpfs, ramfs). Otherwise each of them wears a disk.
  bool is_in_memory() const;
  // What is dangerous about the folder, for the log:
  //   - Its file system has no locks. Then a second proxy is not noticed; the two never use the
  //     same files, and left-over files are only removed when they are an hour old. (A file with
  //     the number of a process would not do: containers that share a folder use the same numbers,
  //     and hosts do, too.)
  //   - Every user of the machine can replace files in it.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Files that were left over, and their bytes.
  AbandonedFiles swept() const { return swept_; }

 private:
  explicit SlotFolder(std::filesystem::path path) : path_(std::move(path)) {}
  Result<void> take();
  void sweep(std::chrono::seconds min_age);

  std::filesystem::path path_;
  int lock_ = -1;
  std::atomic<std::uint64_t> n_files_ = 0;
  std::vector<std::string> warnings_;
  AbandonedFiles swept_;
};

// The name of a file in the folder. The file, if there is one at the end, is removed then, with all
// that begin with its name and a dot.
class SlotFile {
 public:
  explicit SlotFile(SlotFolder& folder) : name_(folder.new_name()), path_(folder.path_of(name_)) {}
  ~SlotFile();
  SlotFile(SlotFile&& other) noexcept
      : name_(std::move(other.name_)), path_(std::exchange(other.path_, {})) {}
  SlotFile(const SlotFile&) = delete;
  SlotFile& operator=(const SlotFile&) = delete;
  SlotFile& operator=(SlotFile&&) = delete;

  const std::string& name() const { return name_; }
  const std::filesystem::path& path() const { return path_; }

  // Makes an empty file with permissions 0600, for llama-server to write into: one that it makes
  // itself, others may read. Errors: kIo (also if there is something of that name).
  Result<void> create() const;
  // Opens what llama-server wrote. Errors: as open_regular_file().
  Result<std::shared_ptr<const ByteSource>> open() const;

 private:
  std::string name_;
  std::filesystem::path path_;
};

}  // namespace tqcache::serve
