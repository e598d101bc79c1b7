#pragma once
// base/descriptor.h: POSIX file descriptors that close themselves, and errno told as an Error.
//
// Only for the sources of base: everyone else reads and writes through base/file.h.

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>

#include "tqcache/base/result.h"

namespace tqcache {

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
  // Gives the errno of close(), or 0. It can be a write's that failed late.
  int close();

 private:
  int fd_ = -1;
};

// Makes a system call again for as long as signals interrupt it.
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

// Errors: kNotFound; kIo when it is no regular file or cannot be opened.
Result<OpenedFile> open_for_reading(const std::filesystem::path& path);

}  // namespace tqcache
