#pragma once
// tqcache/file.h: files that are read by position, mapped, locked, or written atomically.
//
//   TQC_TRY_ASSIGN(auto file, tqcache::AtomicFile::create("out.bin", tqcache::Overwrite::kRefuse));
//   TQC_TRY(file.write(bytes));
//   TQC_TRY(file.commit());
//
// A reader sees either the old file or the new one, never a part of it: a new file is written
// under a temporary name in the same folder, flushed and renamed, and then the folder is flushed.
// A process that is killed meanwhile can leave the temporary file behind: ".NAME.tmp-XXXXXX", or
// ".tqcache-XXXXXX" if that name would be too long. The next writer of the same name removes it:
// temporary files in use are locked (flock), abandoned ones are not; find_abandoned() removes those
// of all names. On a file system without locks abandoned files stay.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "tqcache/bytes.h"
#include "tqcache/error.h"

namespace tqcache {

// Bytes that can be read by position, in a file or in memory.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // The current size in bytes. It can grow: another process may be appending to the file.
  virtual std::uint64_t size() const = 0;
  // Fills `out` with the bytes from `offset` on.
  // Errors:  kTruncated if the source ends earlier, kIo.
  // Threads: may be called from several at once.
  virtual Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const = 0;
};

// Opens a regular file for reading with pread: if another process truncates it, reads fail with
// kTruncated and never with a signal.
// Errors: kNotFound, kIo (a folder or a device, no permission).
Result<std::unique_ptr<ByteSource>> open_file(const std::filesystem::path& path);

std::unique_ptr<ByteSource> memory_source(Bytes bytes);
std::unique_ptr<ByteSource> memory_source(SharedBytes bytes);

// Reads a whole file. Errors: as open_file, and kTooLarge if it is larger than `max_bytes`.
Result<Bytes> read_file(const std::filesystem::path& path, std::uint64_t max_bytes);

// A file mapped read-only. If another process truncates the mapped file, this process dies with
// SIGBUS. Use it for files that no program writes in place, such as models, and open_file() for all
// others.
class MappedFile {
 public:
  // Errors: kNotFound, kIo. An empty file gives an empty view.
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  ByteView bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::byte* data, std::size_t size) : data_(data), size_(size) {}
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// A file that stays mapped read-only while any copy of the bytes exists.
// Errors: as MappedFile::open.
Result<SharedBytes> map_file(const std::filesystem::path& path);

// A regular file that is read and written in place. While the object exists, the file is locked
// against all other writers: LockedFiles, and AtomicFiles that would replace it. Readers are not
// locked out.
//
// The lock is advisory (flock), belongs to the open file and ends with the process.
// Threads: reading from several at once; writing one at a time.
class LockedFile : public ByteSource {
 public:
  // If the file is replaced between opening and locking, the new file is opened.
  // Errors: kNotFound; kBusy; kIo (a symbolic link, a folder, a device, no permission, a file
  //         system without locks).
  static Result<std::unique_ptr<LockedFile>> open(const std::filesystem::path& path);

  ~LockedFile() override;
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  std::uint64_t size() const override;  // at this moment
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override;

  // Writes at byte `offset`, which is at most size(). Errors: kIo; kInvalidArgument.
  Result<void> write_at(std::uint64_t offset, ByteView bytes);
  // Shortens the file. Errors: kIo; kInvalidArgument for more than size().
  Result<void> truncate(std::uint64_t size);
  // Returns when all written bytes are on disk. Errors: kIo.
  Result<void> flush();

 private:
  friend class AtomicFile;
  struct State;
  explicit LockedFile(std::unique_ptr<State> state);
  Result<bool> is_named(int folder, const std::string& name) const;
  std::unique_ptr<State> state_;
};

// A file without a name, for bytes that are read by position later: a pipe's, for example. It is in
// the folder for temporary files (TMPDIR, or /tmp), or in memory if that folder cannot be written,
// and is gone when the object or the process ends.
//
// Threads: reading from several at once; appending one at a time.
class ScratchFile : public ByteSource {
 public:
  // Errors: kIo.
  static Result<std::unique_ptr<ScratchFile>> create();

  ~ScratchFile() override;
  std::uint64_t size() const override;
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override;
  // Errors: kIo (disk full, ...).
  Result<void> append(ByteView bytes);

 private:
  struct State;
  explicit ScratchFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

enum class Overwrite { kRefuse, kAllow };

// A new file that appears under its name, complete and flushed, at commit(). If it is destroyed
// before commit(), it leaves nothing behind.
//
// Threads: one at a time. Ignore SIGXFSZ and SIGPIPE to get such failures as kIo.
class AtomicFile {
 public:
  // Permissions of the new file are 0600: a prompt can be read back from its cache.
  //
  // A path that names a symbolic link, a folder, a block device or a socket is refused. Two kinds
  // of targets are streams. What is written is kept as in a ScratchFile until commit(), which sends
  // it, so that a stream gets a complete file or nothing:
  //   - an existing character device or named pipe (/dev/null, /dev/full, mkfifo);
  //   - a descriptor of this process under one of its well-known names (/dev/stdout, /dev/stderr,
  //     /dev/fd/N, /proc/self/fd/N), which the shell may have redirected.
  // A regular file that will be replaced is locked, as by LockedFile, until this object ends. If
  // the caller has locked it already, it passes that lock as `held`, which must outlive this
  // object. A file that cannot be locked (it cannot be opened, or its file system has no locks) is
  // replaced without a lock.
  //
  // Errors: kIo; kInvalidArgument if the file exists and `overwrite` is kRefuse; kBusy if another
  //         process is writing it, or if the path does not refer to the `held` file.
  static Result<AtomicFile> create(const std::filesystem::path& path, Overwrite overwrite,
                                   const LockedFile* held = nullptr);

  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) noexcept;
  ~AtomicFile();

  // Appends. Errors: kIo (disk full, file too large, ...), which commit() then returns again.
  Result<void> write(ByteView bytes);
  // Overwrites bytes that were already written.
  // Errors: as write(); kInvalidArgument beyond size().
  Result<void> write_at(std::uint64_t offset, ByteView bytes);
  // Reads written bytes, before commit().
  // Errors: kTruncated, kIo.
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const;
  // Shortens the file; write() goes on at its new end.
  // Errors: as write(); kInvalidArgument for more than size().
  Result<void> truncate(std::uint64_t size);
  // Bytes written so far.
  std::uint64_t size() const;

  // For a file that another program reads at once, and that nobody needs after a crash: commit()
  // does not wait until it is on disk.
  void skip_flush();

  // Finishes the file. Nothing can be written afterwards, even if commit() failed.
  // Errors: kIo; kInvalidArgument if another process created the file meanwhile and `overwrite` is
  // kRefuse; kBusy if it is kAllow and another process is writing the file. After an error the old
  // file, if any, is unchanged and the temporary file is removed. One exception: if the last step,
  // the flush of the folder, fails, the new file is already in place.
  Result<void> commit();

 private:
  struct State;
  explicit AtomicFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

Result<void> write_file_atomically(const std::filesystem::path& path, ByteView bytes,
                                   Overwrite overwrite);

// Temporary files in a folder whose writers were killed, of whatever name: nobody has locked them,
// they are this user's, and at least `min_age` old. `remove` removes them. A folder that cannot be
// listed has none.
struct AbandonedFiles {
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;
};
AbandonedFiles find_abandoned(const std::filesystem::path& folder, std::chrono::seconds min_age,
                              bool remove);

// Returns when all names in the folder are on disk. Errors: kIo.
Result<void> flush_folder(const std::filesystem::path& folder);

}  // namespace tqcache
