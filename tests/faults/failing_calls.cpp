#include "failing_calls.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstddef>

#include "support/libc.h"

namespace tqcache::faults {
namespace {

bool armed = false;
CallFailures wish;
std::int64_t n_calls = 0;
const char* failed_name = nullptr;

// Whether this call fails; errno then says how.
bool fails(const char* name) {
  if (!armed) return false;
  if (wish.always == name) {
    errno = wish.always_error;
    return true;
  }
  ++n_calls;
  if (n_calls < wish.number || (n_calls > wish.number && !wish.for_good)) return false;
  if (failed_name == nullptr) failed_name = name;
  errno = wish.error;
  return true;
}

int pass_on(const char* name, long number, auto... arguments) {
  if (fails(name)) return -1;
  return static_cast<int>(::syscall(number, arguments...));
}

}  // namespace

FailingCalls::FailingCalls(CallFailures failures) {
  wish = failures;
  n_calls = 0;
  failed_name = nullptr;
  armed = true;
}

FailingCalls::~FailingCalls() { armed = false; }

bool FailingCalls::came() const { return failed_name != nullptr; }

std::string_view FailingCalls::name() const { return came() ? failed_name : ""; }

}  // namespace tqcache::faults

using tqcache::faults::fails;
using tqcache::faults::pass_on;

extern "C" {

ssize_t pread(int fd, void* bytes, std::size_t count, off_t offset) {
  if (fails("pread")) return -1;
  return ::syscall(SYS_pread64, fd, bytes, count, offset);
}

ssize_t write(int fd, const void* bytes, std::size_t count) {
  if (fails("write")) return -1;
  return ::syscall(SYS_write, fd, bytes, count);
}

ssize_t pwrite(int fd, const void* bytes, std::size_t count, off_t offset) {
  if (fails("pwrite")) return -1;
  return ::syscall(SYS_pwrite64, fd, bytes, count, offset);
}

// The names with _chk and _2 are those that _FORTIFY_SOURCE calls: pread() into a buffer of a known
// size, open() without a mode.
ssize_t __pread_chk(int fd, void* bytes, std::size_t count, off_t offset, std::size_t /*size*/) {
  return pread(fd, bytes, count, offset);
}

int __open_2(const char* name, int flags) {
  return pass_on("open", SYS_openat, AT_FDCWD, name, flags, 0U);
}

int __openat_2(int folder, const char* name, int flags) {
  return pass_on("openat", SYS_openat, folder, name, flags, 0U);
}

#ifdef __GLIBC__
// The names with 64 are those that SQLite calls.
ssize_t pread64(int fd, void* bytes, std::size_t count, off64_t offset) {
  return pread(fd, bytes, count, offset);
}

ssize_t pwrite64(int fd, const void* bytes, std::size_t count, off64_t offset) {
  return pwrite(fd, bytes, count, offset);
}

int ftruncate64(int fd, off64_t size) TQCACHE_LIBC_NOEXCEPT {
  return pass_on("ftruncate", SYS_ftruncate, fd, size);
}
#endif

int open(const char* name, int flags, ...) {
  std::va_list rest;
  va_start(rest, flags);
  const unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, unsigned) : 0;
  va_end(rest);
  return pass_on("open", SYS_openat, AT_FDCWD, name, flags, mode);
}

#ifdef __GLIBC__
int open64(const char* name, int flags, ...) {
  std::va_list rest;
  va_start(rest, flags);
  const unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, unsigned) : 0;
  va_end(rest);
  return pass_on("open", SYS_openat, AT_FDCWD, name, flags, mode);
}
#endif

int openat(int folder, const char* name, int flags, ...) {
  std::va_list rest;
  va_start(rest, flags);
  const unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, unsigned) : 0;
  va_end(rest);
  return pass_on("openat", SYS_openat, folder, name, flags, mode);
}

int flock(int fd, int operation) TQCACHE_LIBC_NOEXCEPT {
  return pass_on("flock", SYS_flock, fd, operation);
}

int ftruncate(int fd, off_t size) TQCACHE_LIBC_NOEXCEPT {
  return pass_on("ftruncate", SYS_ftruncate, fd, size);
}

int fsync(int fd) { return pass_on("fsync", SYS_fsync, fd); }

int fdatasync(int fd) { return pass_on("fdatasync", SYS_fdatasync, fd); }

int renameat(int from, const char* old_name, int to, const char* new_name) TQCACHE_LIBC_NOEXCEPT {
  return pass_on("renameat", SYS_renameat, from, old_name, to, new_name);
}

int renameat2(int from, const char* old_name, int to, const char* new_name,
              unsigned flags) TQCACHE_LIBC_NOEXCEPT {
  return pass_on("renameat2", SYS_renameat2, from, old_name, to, new_name, flags);
}

int link(const char* old_name, const char* new_name) TQCACHE_LIBC_NOEXCEPT {
  return pass_on("link", SYS_linkat, AT_FDCWD, old_name, AT_FDCWD, new_name, 0);
}

int linkat(int from, const char* old_name, int to, const char* new_name,
           int flags) TQCACHE_LIBC_NOEXCEPT {
  return pass_on("linkat", SYS_linkat, from, old_name, to, new_name, flags);
}

}  // extern "C"
