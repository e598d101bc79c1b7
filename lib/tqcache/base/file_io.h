#pragma once
// base/file_io.h: POSIX file descriptors: reading, writing, flushing, locking, and errno as an
// Error.
//
// Only for the sources of base; all other modules use tqcache/file.h.

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tqcache/bytes.h"
#include "tqcache/error.h"

namespace tqcache {

// A POSIX file descriptor that closes itself.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }

  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }
  // Returns the errno of close(), or 0. A late write error can show up here.
  int close();

 private:
  int fd_ = -1;
};

// Repeats a system call while signals interrupt it.
template <class Call>
auto retry_interrupted(Call call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

// kIo: "write: No space left on device".
Error system_error(std::string_view action, int error_number);

struct OpenedFile {
  Descriptor file;
  std::uint64_t size = 0;  // bytes, when it was opened
};

// Errors: kNotFound; kIo if it is not a regular file or cannot be opened.
Result<OpenedFile> open_for_reading(const std::filesystem::path& path);

// The current size of the file in bytes; 0 if fstat() fails, so that a later read fails.
std::uint64_t size_of(const Descriptor& file);

// Errors: kTruncated if the range of `count` bytes at `offset` exceeds `size`.
Result<void> check_range(std::uint64_t offset, std::uint64_t count, std::uint64_t size);

// Fills `out` from byte `offset` on, without moving the position in the file.
// Errors: kTruncated, kIo.
Result<void> read_fully_at(const Descriptor& file, std::uint64_t offset, std::span<std::byte> out);

// Writes all bytes. `put(rest, done)` writes some bytes of `rest`, which starts at `bytes[done]`,
// and returns their number or -1.
template <class Put>
Result<void> put_all(ByteView bytes, Put put) {
  for (std::size_t done = 0; done < bytes.size();) {
    const auto count = retry_interrupted([&] { return put(bytes.subspan(done), done); });
    if (count <= 0) return system_error("write", count == 0 ? EIO : errno);
    done += static_cast<std::size_t>(count);
  }
  return {};
}

// Six letters and digits, for the name of a temporary file. Errors: kIo.
Result<std::string> random_letters();

// A file without a name (ScratchFile), open for reading and writing. Errors: kIo.
Result<Descriptor> open_scratch();

Result<void> write_fully_at(const Descriptor& file, std::uint64_t offset, ByteView bytes);

// `sync` is flush_file or flush_data (base/system.h). Devices, pipes and some network file systems
// cannot flush; that is not an error.
Result<void> flush_with(int (*sync)(int), const Descriptor& file);

inline Error busy_error() { return {ErrorCode::kBusy, "another process is writing it"}; }

// Locks the open file against every other opening of it, also in this process, until it is closed.
// False if its file system has no locks.
// Errors: kBusy, kIo.
Result<bool> lock(const Descriptor& file);

// Whether `name` in `folder` (or AT_FDCWD) refers to the open file now.
Result<bool> is_named(const Descriptor& file, int folder, const std::string& name);

}  // namespace tqcache
