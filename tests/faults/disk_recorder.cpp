#include "disk_recorder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <span>
#include <utility>

#include "support/libc.h"

namespace tqcache::faults {
namespace {

std::vector<DiskStep>* recording = nullptr;

void record(DiskStep step) {
  if (recording != nullptr) recording->push_back(std::move(step));
}

DiskStep step_on(DiskStep::Kind kind, int fd) {
  struct stat info {};
  ::fstat(fd, &info);
  DiskStep step;
  step.kind = kind;
  step.inode = info.st_ino;
  step.is_folder = S_ISDIR(info.st_mode);
  return step;
}

void record_write(int fd, const void* bytes, long count, long offset) {
  if (recording == nullptr || count <= 0) return;
  DiskStep step = step_on(DiskStep::Kind::kWrite, fd);
  const std::span written(static_cast<const std::byte*>(bytes), static_cast<std::size_t>(count));
  step.offset = static_cast<std::uint64_t>(offset);
  step.bytes.assign(written.begin(), written.end());
  record(std::move(step));
}

int flushed(int fd, long number) {
  const int result = static_cast<int>(::syscall(number, fd));
  if (result == 0) record(step_on(DiskStep::Kind::kFlush, fd));
  return result;
}

int named(long result, int folder, const char* name) {
  struct stat info {};
  if (result == 0 && ::fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) == 0) {
    DiskStep step;
    step.kind = DiskStep::Kind::kName;
    step.inode = info.st_ino;
    record(std::move(step));
  }
  return static_cast<int>(result);
}

}  // namespace

DiskRecording::DiskRecording() { recording = &steps_; }
DiskRecording::~DiskRecording() { recording = nullptr; }

}  // namespace tqcache::faults

namespace faults = tqcache::faults;

extern "C" {

ssize_t write(int fd, const void* bytes, std::size_t count) {
  const long offset = ::syscall(SYS_lseek, fd, 0, SEEK_CUR);
  const long result = ::syscall(SYS_write, fd, bytes, count);
  faults::record_write(fd, bytes, result, offset);
  return result;
}

ssize_t pwrite(int fd, const void* bytes, std::size_t count, off_t offset) {
  const long result = ::syscall(SYS_pwrite64, fd, bytes, count, offset);
  faults::record_write(fd, bytes, result, offset);
  return result;
}

int ftruncate(int fd, off_t size) TQCACHE_LIBC_NOEXCEPT {
  const int result = static_cast<int>(::syscall(SYS_ftruncate, fd, size));
  faults::DiskStep step = faults::step_on(faults::DiskStep::Kind::kCut, fd);
  step.offset = static_cast<std::uint64_t>(size);
  if (result == 0) faults::record(std::move(step));
  return result;
}

int fsync(int fd) { return faults::flushed(fd, SYS_fsync); }
int fdatasync(int fd) { return faults::flushed(fd, SYS_fdatasync); }

int renameat(int from, const char* old_name, int to, const char* new_name) TQCACHE_LIBC_NOEXCEPT {
  return faults::named(::syscall(SYS_renameat, from, old_name, to, new_name), to, new_name);
}

int renameat2(int from, const char* old_name, int to, const char* new_name,
              unsigned flags) TQCACHE_LIBC_NOEXCEPT {
  return faults::named(::syscall(SYS_renameat2, from, old_name, to, new_name, flags), to, new_name);
}

int link(const char* old_name, const char* new_name) TQCACHE_LIBC_NOEXCEPT {
  return faults::named(::syscall(SYS_linkat, AT_FDCWD, old_name, AT_FDCWD, new_name, 0), AT_FDCWD,
                       new_name);
}

}  // extern "C"
