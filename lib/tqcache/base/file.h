#pragma once
// base/file.h: files read by position, mapped, and written whole or not at all.
//
// A reader sees either the old file or the new one, never a part: a new file is written
// under a temporary name in the same folder, flushed, renamed, and the folder is flushed too.
// A process killed on the way can leave the temporary file behind: ".NAME.tmp-XXXXXX", or
// ".tqcache-XXXXXX" where that would be too long a name.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "tqcache/base/bytes.h"
#include "tqcache/base/result.h"
#include "tqcache/base/shared_bytes.h"

namespace tqcache {

// Bytes that can be read by position: a file on disk, or memory.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
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
  // Errors: kIo; kInvalidArgument when the file exists and `overwrite` is kRefuse.
  static Result<AtomicFile> create(const std::filesystem::path& path, Overwrite overwrite);

  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) noexcept;
  ~AtomicFile();

  // Appends. Errors: kIo (disk full, file too large, ...), which commit() then repeats.
  Result<void> write(ByteView bytes);
  // Writes over bytes that were already written. Errors: as write(); kInvalidArgument beyond
  // size(), or when the file is written in place.
  Result<void> write_at(std::uint64_t offset, ByteView bytes);
  // Bytes written so far.
  std::uint64_t size() const;

  // Ends the file: nothing can be written after it, whether it succeeded or not.
  // Errors: kIo; kInvalidArgument when another process made the file meanwhile and `overwrite`
  // was kRefuse. After an error the old file, if any, stands untouched and the temporary one is
  // gone; only when the last step failed, the flush of the folder, the new file stands already.
  Result<void> commit();

 private:
  struct State;
  explicit AtomicFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

Result<void> write_file_atomically(const std::filesystem::path& path, ByteView bytes,
                                   Overwrite overwrite);

}  // namespace tqcache
