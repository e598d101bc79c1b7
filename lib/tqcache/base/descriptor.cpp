#include "tqcache/base/descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <system_error>

namespace tqcache {

int Descriptor::close() {
  if (!is_open()) return 0;
  // Linux has closed the descriptor even when it reports EINTR: trying again could close one
  // that another thread has just opened.
  const int status = ::close(std::exchange(fd_, -1));
  return status == 0 || errno == EINTR ? 0 : errno;
}

Error system_error(std::string_view action, int error_number) {
  return in_context(action, {ErrorCode::kIo, std::generic_category().message(error_number)});
}

Result<OpenedFile> open_for_reading(const std::filesystem::path& path) {
  // Without O_NONBLOCK a named pipe would keep us waiting for its writer before it is refused.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  Descriptor file(retry_interrupted([&] { return ::open(path.c_str(), kFlags); }));
  if (!file.is_open()) {
    if (errno == ENOENT || errno == ENOTDIR) return Error{ErrorCode::kNotFound, "no such file"};
    return system_error("open", errno);
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return system_error("stat", errno);
  if (S_ISDIR(info.st_mode)) return Error{ErrorCode::kIo, "is a folder, not a file"};
  if (!S_ISREG(info.st_mode)) return Error{ErrorCode::kIo, "is not a regular file"};
  return OpenedFile{std::move(file), static_cast<std::uint64_t>(info.st_size)};
}

}  // namespace tqcache
