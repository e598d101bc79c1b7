
#include "tqcache/base/file_io.h"

#include <string>
#include <system_error>

#include "tqcache/base/posix.h"

namespace tqcache {

namespace {

// The errors of flock on file systems without locks: NFS without a lock service, FUSE, and NFS with
// a descriptor that is not open for writing (EBADF).
bool means_no_locks(int error_number) {
  switch (error_number) {
    case ENOLCK:
    case EOPNOTSUPP:
    case ENOSYS:
    case EINVAL:
    case EBADF:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::uint64_t size_of(const Descriptor& file) {
  posix::Stat info{};
  return posix::fstat(file.get(), &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

Result<void> check_range(std::uint64_t offset, std::uint64_t count, std::uint64_t size) {
  const std::uint64_t left = offset < size ? size - offset : 0;
  if (count <= left && offset <= size) return {};
  return Error{ErrorCode::kTruncated, "byte " + std::to_string(offset) + ": " +
                                          std::to_string(count) + " bytes wanted, " +
                                          std::to_string(left) + " left"};
}

Result<void> read_fully_at(const Descriptor& file, std::uint64_t offset, std::span<std::byte> out) {
  // The size is asked only if a read fails: a cache has a thousand sections.
  const auto check = [&, begin = offset, n_bytes = out.size()] {
    return check_range(begin, n_bytes, size_of(file));
  };
  if (out.empty()) return check();
  while (!out.empty()) {
    const ssize_t count = retry_interrupted([&] {
      return posix::pread(file.get(), out.data(), out.size(), static_cast<posix::Offset>(offset));
    });
    const int error_number = errno;
    if (count <= 0) TQC_TRY(check());
    if (count < 0) return system_error("byte " + std::to_string(offset) + ": read", error_number);
    if (count == 0) {
      return Error{ErrorCode::kTruncated,
                   "byte " + std::to_string(offset) + ": the file was cut short while it was read"};
    }
    out = out.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return {};
}

Result<void> write_fully_at(const Descriptor& file, std::uint64_t offset, ByteView bytes) {
  return put_all(bytes, [&](ByteView rest, std::size_t done) {
    return posix::pwrite(file.get(), rest.data(), rest.size(),
                         static_cast<posix::Offset>(offset + done));
  });
}

Result<void> flush_with(int (*sync)(int), const Descriptor& file) {
  if (retry_interrupted([&] { return sync(file.get()); }) == 0) return {};
  if (errno == EINVAL || errno == ENOTSUP) return {};
  return system_error("flush", errno);
}

Result<bool> lock(const Descriptor& file) {
  if (retry_interrupted([&] { return posix::flock(file.get(), LOCK_EX | LOCK_NB); }) == 0)
    return true;
  if (errno == EWOULDBLOCK) return busy_error();
  if (means_no_locks(errno)) return false;
  return system_error("lock", errno);
}

Result<bool> is_named(const Descriptor& file, int folder, const std::string& name) {
  posix::Stat ours{};
  posix::Stat named{};
  if (posix::fstat(file.get(), &ours) != 0) return system_error("stat", errno);
  if (posix::fstatat(folder, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return false;
    return system_error("stat", errno);
  }
  return ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
}

int Descriptor::close() {
  if (!is_open()) return 0;
  // Linux has closed the descriptor even when it reports EINTR: trying again could close one
  // that another thread has just opened.
  const int status = posix::close(std::exchange(fd_, -1));
  return status == 0 || errno == EINTR ? 0 : errno;
}

Error system_error(std::string_view action, int error_number) {
  return in_context(action, {ErrorCode::kIo, std::generic_category().message(error_number)});
}

Result<OpenedFile> open_for_reading(const std::filesystem::path& path) {
  // Without O_NONBLOCK opening a named pipe would block until it has a writer.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  Descriptor file(retry_interrupted([&] { return posix::open(path.c_str(), kFlags); }));
  if (!file.is_open()) {
    if (errno == ENOENT || errno == ENOTDIR) return Error{ErrorCode::kNotFound, "no such file"};
    return system_error("open", errno);
  }
  posix::Stat info{};
  if (posix::fstat(file.get(), &info) != 0) return system_error("stat", errno);
  if (S_ISDIR(info.st_mode)) return Error{ErrorCode::kIo, "is a folder, not a file"};
  if (!S_ISREG(info.st_mode)) return Error{ErrorCode::kIo, "is not a regular file"};
  return OpenedFile{std::move(file), static_cast<std::uint64_t>(info.st_size)};
}

}  // namespace tqcache
