#pragma once
// base/posix.h: the POSIX calls on files, folders and memory that this project makes, as
// posix::open.
//
// On Linux and macOS they are the system's own. On Windows base/posix_windows.cpp makes them of
// Windows' calls, with the same results and values of errno. There
//   - paths are UTF-8 or wide, and a file that is open can be renamed, replaced and removed;
//   - permissions are those of the folder: every file counts as private (0600), chmod() does
//   nothing;
//   - a file has one user, 0.
//
// What differs between Linux and macOS is in base/system.h.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>

#ifndef _WIN32
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>  // macOS declares getentropy() here
#include <unistd.h>

namespace tqcache::posix {

using Stat = struct ::stat;
using Offset = ::off_t;

using ::chmod;
using ::close;
using ::flock;
using ::fstat;
using ::fstatat;
using ::ftruncate;
using ::getentropy;
using ::geteuid;
using ::getpid;
using ::isatty;
using ::linkat;
using ::lseek;
using ::lstat;
using ::mkdir;
using ::mkdtemp;
using ::mmap;
using ::munmap;
using ::open;
using ::openat;
using ::pread;
using ::pwrite;
using ::read;
using ::renameat;
using ::stat;
using ::unlink;
using ::unlinkat;
using ::write;

}  // namespace tqcache::posix

#else

#include <cstddef>
#include <cstdint>
#include <ctime>

// Windows' C library has the other flags. These are bits that it does not use.
constexpr int O_CLOEXEC = 1 << 24;  // every descriptor has it
constexpr int O_NONBLOCK = 0;       // opening never waits
constexpr int O_NOCTTY = 0;
constexpr int O_NOFOLLOW = 1 << 25;
constexpr int O_DIRECTORY = 1 << 26;
constexpr int AT_FDCWD = -100;
constexpr int AT_SYMLINK_NOFOLLOW = 1;
constexpr int LOCK_EX = 2;
constexpr int LOCK_NB = 4;
constexpr int PROT_READ = 1;
constexpr int PROT_WRITE = 2;
constexpr int MAP_PRIVATE = 2;
constexpr int MAP_ANONYMOUS = 32;
#define MAP_FAILED reinterpret_cast<void*>(-1)
constexpr int S_IFLNK = 0xa000;
constexpr bool S_ISLNK(int mode) { return (mode & S_IFMT) == S_IFLNK; }
using mode_t = unsigned short;

namespace tqcache::posix {

struct Stat {
  std::uint64_t st_dev = 0;  // number of the volume
  std::uint64_t st_ino = 0;  // number of the file on it
  mode_t st_mode = 0;
  unsigned st_nlink = 0;
  unsigned st_uid = 0;
  std::int64_t st_size = 0;
  std::time_t st_mtime = 0;
};

using Offset = std::int64_t;

int chmod(const char* path, mode_t mode);
int chmod(const wchar_t* path, mode_t mode);
int close(int fd);
int flock(int fd, int operation);  // LOCK_EX | LOCK_NB alone
int fstat(int fd, Stat* info);
int fstatat(int folder, const char* name, Stat* info, int flags);
int ftruncate(int fd, Offset size);
int getentropy(void* out, std::size_t bytes);
unsigned geteuid();
int getpid();
int isatty(int fd);
int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags);
Offset lseek(int fd, Offset offset, int from);
int lstat(const char* path, Stat* info);
int lstat(const wchar_t* path, Stat* info);
int mkdir(const char* path, mode_t mode);
int mkdir(const wchar_t* path, mode_t mode);
char* mkdtemp(char* name);
// A whole file for reading, or memory without a file.
void* mmap(void* at, std::size_t bytes, int protection, int flags, int fd, Offset offset);
int munmap(void* memory, std::size_t bytes);
int open(const char* path, int flags, mode_t mode = 0);
int open(const wchar_t* path, int flags, mode_t mode = 0);
int openat(int folder, const char* name, int flags, mode_t mode = 0);
ssize_t pread(int fd, void* out, std::size_t bytes, Offset offset);
ssize_t pwrite(int fd, const void* data, std::size_t bytes, Offset offset);
ssize_t read(int fd, void* out, std::size_t bytes);  // of a console: UTF-8
int renameat(int from_folder, const char* from, int to_folder, const char* to);
int stat(const char* path, Stat* info);
int stat(const wchar_t* path, Stat* info);
int unlink(const char* path);
int unlink(const wchar_t* path);
int unlinkat(int folder, const char* name, int flags);
ssize_t write(int fd, const void* data, std::size_t bytes);

}  // namespace tqcache::posix

#endif
