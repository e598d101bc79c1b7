// base/system.h on Linux and macOS.

#ifndef _WIN32

#include "tqcache/base/system.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <memory>

#ifdef __linux__
#include <linux/magic.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#endif
#ifdef __APPLE__
#include <sys/event.h>
#include <sys/sysctl.h>
#endif

namespace tqcache {

namespace {

// For file systems that have no files without a name.
int open_unlinked(const std::filesystem::path& folder) {
  std::string name = (folder / "tqcache-XXXXXX").string();
  const int fd = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd >= 0) ::unlink(name.c_str());
  return fd;
}

}  // namespace

#if defined(__linux__)

int flush_file(int fd) { return ::fsync(fd); }
int flush_data(int fd) { return ::fdatasync(fd); }

void start_writeback(int fd, std::uint64_t offset, std::uint64_t bytes) {
  ::sync_file_range(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                    SYNC_FILE_RANGE_WRITE);
}

int open_nameless(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  return fd >= 0 || errno == EINTR ? fd : open_unlinked(folder);
}

int open_in_memory() { return ::memfd_create("tqcache", MFD_CLOEXEC); }

int rename_exclusively(int folder, const char* from, const char* to) {
#ifdef __GLIBC__
  return ::renameat2(folder, from, folder, to, RENAME_NOREPLACE);
#else
  // musl before 1.2.6 has neither the function nor the flag.
  constexpr unsigned kNoReplace = 1;
  return static_cast<int>(::syscall(SYS_renameat2, folder, from, folder, to, kNoReplace));
#endif
}

// Asking for all bytes would be slow even if they are in memory, so the first byte answers for all.
void read_ahead(int fd, std::size_t bytes) {
  std::byte first{};
  iovec one{&first, 1};
  if (::preadv2(fd, &one, 1, 0, RWF_NOWAIT) >= 0) return;
  (void)::posix_fadvise(fd, 0, static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

void use_huge_pages(void* memory, std::size_t bytes) { ::madvise(memory, bytes, MADV_HUGEPAGE); }

int open_pipe(int (&ends)[2]) { return ::pipe2(ends, O_CLOEXEC | O_NONBLOCK); }

int open_socket(int family) {
  return ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

int accept_connection(int listener, sockaddr* from, socklen_t* size) {
  return ::accept4(listener, from, size, SOCK_CLOEXEC);
}

const int kNoSignal = MSG_NOSIGNAL;

PeerState peer_state(int fd) {
  pollfd now = {.fd = fd, .events = POLLRDHUP, .revents = 0};
  ::poll(&now, 1, 0);
  if ((now.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) return PeerState::kGone;
  return (now.revents & POLLRDHUP) != 0 ? PeerState::kHalfClosed : PeerState::kOpen;
}

bool is_in_memory(const char* folder) {
  struct statfs info {};
  if (::statfs(folder, &info) != 0) return false;
  const auto type = static_cast<std::uint32_t>(info.f_type);
  return type == TMPFS_MAGIC || type == RAMFS_MAGIC;
}

std::string path_of_descriptor(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

std::string boot_name() {
  std::string name;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> name;
  return name;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t at = line.find_first_not_of(" \t", line.find(':') + 1);
    return at == std::string::npos ? std::string() : line.substr(at);
  }
  return {};
}

std::uint64_t peak_memory() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

#elif defined(__APPLE__)

namespace {

// Adds flags to those that F_GETFD or F_GETFL returns.
bool add_flags(int fd, int get, int set, int flags) {
  const int before = ::fcntl(fd, get);
  return before >= 0 && ::fcntl(fd, set, before | flags) == 0;
}

bool close_on_exec(int fd) { return add_flags(fd, F_GETFD, F_SETFD, FD_CLOEXEC); }

// -1, with the errno of what failed before.
int give_up(int fd) {
  const int failed = errno;
  ::close(fd);
  errno = failed;
  return -1;
}

std::string system_text(const char* name) {
  std::array<char, 256> text{};
  std::size_t size = text.size() - 1;
  return ::sysctlbyname(name, text.data(), &size, nullptr, 0) == 0 ? text.data() : "";
}

}  // namespace

// fsync() hands the bytes to the disk, which may keep them in its own memory. Not every file system
// knows the other call.
int flush_file(int fd) {
  if (::fcntl(fd, F_FULLFSYNC) == 0) return 0;
  return errno == EINTR || errno == EIO || errno == ENOSPC ? -1 : ::fsync(fd);
}

int flush_data(int fd) { return flush_file(fd); }

void start_writeback(int, std::uint64_t, std::uint64_t) {}

int open_nameless(const std::filesystem::path& folder) { return open_unlinked(folder); }

int open_in_memory() {
  errno = EOPNOTSUPP;
  return -1;
}

int rename_exclusively(int folder, const char* from, const char* to) {
  return ::renameatx_np(folder, from, folder, to, RENAME_EXCL);
}

void read_ahead(int fd, std::size_t bytes) {
  radvisory advice = {.ra_offset = 0, .ra_count = static_cast<int>(bytes)};
  ::fcntl(fd, F_RDADVISE, &advice);
}

void use_huge_pages(void*, std::size_t) {}

int open_pipe(int (&ends)[2]) {
  if (::pipe(ends) != 0) return -1;
  for (const int fd : ends) {
    if (close_on_exec(fd) && add_flags(fd, F_GETFL, F_SETFL, O_NONBLOCK)) continue;
    give_up(ends[0]);
    return give_up(ends[1]);
  }
  return 0;
}

int open_socket(int family) {
  const int fd = ::socket(family, SOCK_STREAM, 0);
  if (fd < 0) return -1;
  // There is no MSG_NOSIGNAL.
  const int yes = 1;
  const bool is_quiet = ::setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &yes, sizeof(yes)) == 0;
  if (is_quiet && close_on_exec(fd) && add_flags(fd, F_GETFL, F_SETFL, O_NONBLOCK)) return fd;
  return give_up(fd);
}

int accept_connection(int listener, sockaddr* from, socklen_t* size) {
  const int fd = ::accept(listener, from, size);
  if (fd < 0) return -1;
  // A connection does not block if the listener does not.
  const int yes = 1;
  const int flags = ::fcntl(fd, F_GETFL);
  const bool blocks = flags >= 0 && ::fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0;
  const bool is_quiet = ::setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &yes, sizeof(yes)) == 0;
  return blocks && is_quiet && close_on_exec(fd) ? fd : give_up(fd);
}

const int kNoSignal = 0;

// poll() does not tell that the other side has ended as long as there are bytes to read.
PeerState peer_state(int fd) {
  pollfd now = {.fd = fd, .events = 0, .revents = 0};
  ::poll(&now, 1, 0);
  if ((now.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) return PeerState::kGone;
  const int queue = ::kqueue();
  if (queue < 0) return PeerState::kOpen;
  struct kevent wanted {};
  struct kevent found {};
  EV_SET(&wanted, static_cast<uintptr_t>(fd), EVFILT_READ, EV_ADD, 0, 0, nullptr);
  const timespec now_only = {};
  const int n = ::kevent(queue, &wanted, 1, &found, 1, &now_only);
  ::close(queue);
  return n == 1 && (found.flags & EV_EOF) != 0 ? PeerState::kHalfClosed : PeerState::kOpen;
}

bool is_in_memory(const char*) { return false; }

std::string path_of_descriptor(int fd) { return "/dev/fd/" + std::to_string(fd); }

std::string boot_name() { return system_text("kern.bootsessionuuid"); }
std::string cpu_name() { return system_text("machdep.cpu.brand_string"); }

std::uint64_t peak_memory() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss);  // bytes, not KiB
}

#else
#error "no system calls for this system: docs/support.md tells which there are"
#endif

int duplicate_descriptor(int fd) { return ::fcntl(fd, F_DUPFD_CLOEXEC, 0); }

std::vector<std::string> names_in(int folder) {
  // A new descriptor, because listing moves the position.
  const int fd = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(fd < 0 ? nullptr : ::fdopendir(fd), ::closedir);
  if (!entries) {
    if (fd >= 0) ::close(fd);
    return {};
  }
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(entries.get())) names.emplace_back(entry->d_name);
  return names;
}

SystemName system_name() {
  utsname found{};
  if (::uname(&found) != 0) return {};
  return {found.sysname, found.release, found.machine};
}

std::uint64_t machine_memory() {
  const long n_pages = ::sysconf(_SC_PHYS_PAGES);
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  if (n_pages <= 0 || page_bytes <= 0) return std::numeric_limits<std::uint64_t>::max();
  return static_cast<std::uint64_t>(n_pages) * static_cast<std::uint64_t>(page_bytes);
}

std::uint64_t process_memory_limit() {
  rlimit limit{};
  const bool is_limited = ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return is_limited ? limit.rlim_cur : std::numeric_limits<std::uint64_t>::max();
}

std::string certificate_file() {
  constexpr const char* kPlaces[] = {
      "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch, Gentoo
      "/etc/pki/tls/certs/ca-bundle.crt",                   // Fedora, RHEL, Amazon Linux
      "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // RHEL
      "/etc/ssl/ca-bundle.pem",                             // openSUSE
      "/etc/ssl/cert.pem",                                  // Alpine, macOS
  };
  for (const char* place : kPlaces) {
    if (::access(place, R_OK) == 0) return place;
  }
  return {};
}

}  // namespace tqcache

#endif  // _WIN32
