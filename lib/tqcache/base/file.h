#pragma once
// base/file.h: files read by position, mapped, and written whole or not at all.
//
// A reader sees either the old file or the new one, never a part: a new file is written
// under a temporary name in the same folder, flushed, renamed, and the folder is flushed too.
// A process killed on the way can leave the temporary file behind: ".NAME.tmp-XXXXXX", or
// ".tqcache-XXXXXX" where that would be too long a name. The next one to write the same name takes
// such a file away: those in use are locked (flock), those left behind are not. Where the file
// system has no locks they stay.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "tqcache/base/bytes.h"
#include "tqcache/base/result.h"
#include "tqcache/base/shared_bytes.h"

namespace tqcache {

// Bytes that can be read by position: a file on disk, or memory.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Of a file: its size at this moment. Another process may be appending to it.
  virtual std::uint64_t size() const = 0;
  // Fills `out` from byte `offset` on.
  // Errors:  kTruncated when the source ends before, kIo.
  // Threads: may be called from several at once.
  virtual Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const = 0;
};

// Opens a regular file for reading by pread: a file that another process cuts short gives
// kTruncated, never a signal.
// Errors: kNotFound, kIo (a folder or a device, no permission).
Result<std::unique_ptr<ByteSource>> open_file(const std::filesystem::path& path);

std::unique_ptr<ByteSource> memory_source(Bytes bytes);
std::unique_ptr<ByteSource> memory_source(SharedBytes bytes);

// Reads a whole file. Errors: as open_file, and kTooLarge when it is larger than `max_bytes`.
Result<Bytes> read_file(const std::filesystem::path& path, std::uint64_t max_bytes);

// A file mapped read-only. Whoever cuts the file while it is mapped ends this process with
// SIGBUS: use it for the user's own files that nothing writes in place, as models are, and
// open_file() for what comes from anywhere.
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

// A file mapped read-only for as long as anyone keeps the bytes. Errors: as MappedFile::open.
Result<SharedBytes> map_file(const std::filesystem::path& path);

// A regular file that is read and written in place, locked against every other writer for as long
// as this lives: other LockedFiles, and AtomicFiles that would replace it. Readers are not kept
// out.
//
// The lock is advisory (flock), belongs to the open file and goes with the process, however that
// ends. Threads: reading from several at once; writing one at a time.
class LockedFile : public ByteSource {
 public:
  // The file that stands under the name at the moment of locking: one that is replaced meanwhile is
  // opened again.
  // Errors: kNotFound; kBusy; kIo (a symbolic link, a folder, a device, no permission, a file
  //         system without locks).
  static Result<std::unique_ptr<LockedFile>> open(const std::filesystem::path& path);

  ~LockedFile() override;
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  std::uint64_t size() const override;  // as it is now
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override;

  // Writes from byte `offset` on, which may lie at the end but not behind it. Errors: kIo;
  // kInvalidArgument.
  Result<void> write_at(std::uint64_t offset, ByteView bytes);
  // Cuts the file. Errors: kIo; kInvalidArgument for more than size().
  Result<void> truncate(std::uint64_t size);
  // Returns when all that was written is on disk. Errors: kIo.
  Result<void> flush();

 private:
  friend class AtomicFile;
  struct State;
  explicit LockedFile(std::unique_ptr<State> state);
  Result<bool> stands_under(int folder, const std::string& name) const;
  std::unique_ptr<State> state_;
};

enum class Overwrite { kRefuse, kAllow };

// A new file that appears under its name at commit(), whole and flushed, or not at all.
// Destroyed before commit(), it leaves nothing behind.
//
// Threads: one at a time. Ignore SIGXFSZ and SIGPIPE to be told of such failures as kIo.
class AtomicFile {
 public:
  // Permissions of the new file are 0600: a prompt can be read back from its cache.
  //
  // A path that names a symbolic link, a folder, a block device or a socket is refused. Written
  // in place, with nothing to be atomic about, are
  //   - an existing character device or named pipe (/dev/null, /dev/full, mkfifo);
  //   - a descriptor of this process, by one of its well-known names (/dev/stdout, /dev/stderr,
  //     /dev/fd/N, /proc/self/fd/N), which are links to whatever the shell has put there.
  // A regular file that is to be replaced is locked, as by LockedFile, until this ends. `held`, if
  // given, is the caller's own lock on it, which then stands for that one and must outlive this.
  // A file that nobody can lock (not to be opened, or its file system has no locks) is replaced
  // without.
  //
  // Errors: kIo; kInvalidArgument when the file exists and `overwrite` is kRefuse; kBusy when
  //         another process is writing it, or what stands there is not the file that is `held`.
  static Result<AtomicFile> create(const std::filesystem::path& path, Overwrite overwrite,
                                   const LockedFile* held = nullptr);

  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) noexcept;
  ~AtomicFile();

  // Appends. Errors: kIo (disk full, file too large, ...), which commit() then repeats.
  Result<void> write(ByteView bytes);
  // Writes over bytes that were already written. Errors: as write(); kInvalidArgument beyond
  // size(), or when the file is written in place.
  Result<void> write_at(std::uint64_t offset, ByteView bytes);
  // Reads what was written, before commit(). Errors: kTruncated, kIo; kInvalidArgument when the
  // file is written in place.
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const;
  // Bytes written so far.
  std::uint64_t size() const;

  // Ends the file: nothing can be written after it, whether it succeeded or not.
  // Errors: kIo; kInvalidArgument when another process made the file meanwhile and `overwrite`
  // was kRefuse; kBusy when it was kAllow and another process is writing what it made. After an
  // error the old file, if any, stands untouched and the temporary one is gone; only when the last
  // step failed, the flush of the folder, the new file stands already.
  Result<void> commit();

 private:
  struct State;
  explicit AtomicFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

Result<void> write_file_atomically(const std::filesystem::path& path, ByteView bytes,
                                   Overwrite overwrite);

}  // namespace tqcache
