#include "tqcache/base/file_io.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tqcache {
namespace {

// What flock says where it cannot work: NFS without a lock service, FUSE file systems, and NFS
// again for a descriptor that is not open for writing (EBADF).
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
  struct stat info {};
  return ::fstat(file.get(), &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

Result<void> check_range(std::uint64_t offset, std::uint64_t count, std::uint64_t size) {
  const std::uint64_t left = offset < size ? size - offset : 0;
  if (count <= left && offset <= size) return {};
  return Error{ErrorCode::kTruncated, "byte " + std::to_string(offset) + ": " +
                                          std::to_string(count) + " bytes wanted, " +
                                          std::to_string(left) + " left"};
}

Result<void> read_fully_at(const Descriptor& file, std::uint64_t offset, std::span<std::byte> out) {
  TQC_TRY(check_range(offset, out.size(), size_of(file)));
  while (!out.empty()) {
    const ssize_t count = retry_interrupted(
        [&] { return ::pread(file.get(), out.data(), out.size(), static_cast<off_t>(offset)); });
    if (count < 0) return system_error("byte " + std::to_string(offset) + ": read", errno);
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
    return ::pwrite(file.get(), rest.data(), rest.size(), static_cast<off_t>(offset + done));
  });
}

Result<void> flush_with(int (*sync)(int), const Descriptor& file) {
  if (retry_interrupted([&] { return sync(file.get()); }) == 0) return {};
  if (errno == EINVAL || errno == ENOTSUP) return {};
  return system_error("flush", errno);
}

Result<bool> lock(const Descriptor& file) {
  if (retry_interrupted([&] { return ::flock(file.get(), LOCK_EX | LOCK_NB); }) == 0) return true;
  if (errno == EWOULDBLOCK) return busy_error();
  if (means_no_locks(errno)) return false;
  return system_error("lock", errno);
}

Result<bool> stands_under(const Descriptor& file, int folder, const std::string& name) {
  struct stat ours {};
  struct stat named {};
  if (::fstat(file.get(), &ours) != 0) return system_error("stat", errno);
  if (::fstatat(folder, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return false;
    return system_error("stat", errno);
  }
  return ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
}

}  // namespace tqcache
