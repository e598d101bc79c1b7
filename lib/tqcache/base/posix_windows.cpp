// posix::open and others on Windows.
//
// Descriptors are those of the C library, so that 0, 1 and 2 are the standard streams; their bytes
// go through the handles below them, because the library would translate line ends.

#ifdef _WIN32

#include <windows.h>
// after windows.h
#include <bcrypt.h>
#include <io.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tqcache/base/file_io.h"
#include "tqcache/base/posix.h"

namespace tqcache::posix {
namespace {

int errno_of(DWORD error) {
  switch (error) {
    case ERROR_FILE_NOT_FOUND:
    case ERROR_PATH_NOT_FOUND:
    case ERROR_INVALID_DRIVE:
    case ERROR_BAD_NETPATH:
    case ERROR_BAD_NET_NAME:
    case ERROR_INVALID_NAME:
      return ENOENT;
    case ERROR_ALREADY_EXISTS:
    case ERROR_FILE_EXISTS:
      return EEXIST;
    case ERROR_DIR_NOT_EMPTY:
      return ENOTEMPTY;
    case ERROR_ACCESS_DENIED:
    case ERROR_SHARING_VIOLATION:
    case ERROR_USER_MAPPED_FILE:
    case ERROR_WRITE_PROTECT:
      return EACCES;
    case ERROR_LOCK_VIOLATION:
    case ERROR_IO_PENDING:
      return EWOULDBLOCK;
    case ERROR_DISK_FULL:
    case ERROR_HANDLE_DISK_FULL:
      return ENOSPC;
    case ERROR_NOT_ENOUGH_MEMORY:
    case ERROR_OUTOFMEMORY:
    case ERROR_COMMITMENT_LIMIT:
      return ENOMEM;
    case ERROR_TOO_MANY_OPEN_FILES:
      return EMFILE;
    case ERROR_FILENAME_EXCED_RANGE:
    case ERROR_BUFFER_OVERFLOW:
      return ENAMETOOLONG;
    case ERROR_INVALID_HANDLE:
      return EBADF;
    case ERROR_NOT_SAME_DEVICE:
      return EXDEV;
    case ERROR_BROKEN_PIPE:
    case ERROR_NO_DATA:
      return EPIPE;
    case ERROR_OPERATION_ABORTED:  // Ctrl-C while a console is read
      return EINTR;
    case ERROR_NOT_SUPPORTED:
    case ERROR_INVALID_FUNCTION:
    case ERROR_CALL_NOT_IMPLEMENTED:
      return ENOTSUP;
    case ERROR_INVALID_PARAMETER:
    case ERROR_DIRECTORY:
      return EINVAL;
    default:
      return EIO;
  }
}

int fail(int error_number) {
  errno = error_number;
  return -1;
}

int fail_with_last_error() { return fail(errno_of(GetLastError())); }

// A handle that closes itself.
class Handle {
 public:
  explicit Handle(HANDLE handle) : handle_(handle) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (is_open()) CloseHandle(handle_);
  }
  bool is_open() const { return handle_ != INVALID_HANDLE_VALUE && handle_ != nullptr; }
  HANDLE get() const { return handle_; }
  HANDLE release() { return std::exchange(handle_, INVALID_HANDLE_VALUE); }

 private:
  HANDLE handle_;
};

HANDLE handle_of(int fd) {
  return fd < 0 ? INVALID_HANDLE_VALUE : reinterpret_cast<HANDLE>(_get_osfhandle(fd));
}

// Slashes, because a path that begins with \\?\ may have no others.
std::wstring wide(const char* utf8) {
  const int n = MultiByteToWideChar(CP_UTF8, 0, utf8, -1, nullptr, 0);
  std::wstring text(static_cast<std::size_t>(std::max(n, 1)), L'\0');
  MultiByteToWideChar(CP_UTF8, 0, utf8, -1, text.data(), n);
  text.pop_back();  // the final zero
  std::replace(text.begin(), text.end(), L'/', L'\\');
  return text;
}

// The path of `name` in an open folder; empty, and errno, if the folder has none.
std::wstring path_in(int folder, const char* name) {
  std::wstring path = wide(name);
  if (folder == AT_FDCWD) return path;
  std::wstring of_folder(32768, L'\0');
  const DWORD n =
      GetFinalPathNameByHandleW(handle_of(folder), of_folder.data(),
                                static_cast<DWORD>(of_folder.size()), FILE_NAME_NORMALIZED);
  if (n == 0 || n >= of_folder.size()) {
    fail_with_last_error();
    return {};
  }
  of_folder.resize(n);
  return path == L"." ? of_folder : of_folder + L"\\" + path;
}

constexpr DWORD kShared = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

// FILE_FLAG_BACKUP_SEMANTICS opens folders, too.
HANDLE open_handle(const wchar_t* path, DWORD access, DWORD disposition, bool follow) {
  const DWORD flags = FILE_ATTRIBUTE_NORMAL | FILE_FLAG_BACKUP_SEMANTICS |
                      (follow ? 0 : FILE_FLAG_OPEN_REPARSE_POINT);
  return CreateFileW(path, access, kShared, nullptr, disposition, flags, nullptr);
}

std::time_t unix_time(FILETIME time) {
  constexpr std::int64_t kSecondsFrom1601 = 11'644'473'600;
  const std::uint64_t ticks =
      std::uint64_t{time.dwHighDateTime} << 32 | std::uint64_t{time.dwLowDateTime};
  return static_cast<std::time_t>(static_cast<std::int64_t>(ticks / 10'000'000) - kSecondsFrom1601);
}

int status_of(HANDLE handle, Stat* info) {
  *info = {};
  const DWORD type = GetFileType(handle);
  if (type == FILE_TYPE_CHAR || type == FILE_TYPE_PIPE) {
    info->st_mode = type == FILE_TYPE_CHAR ? S_IFCHR : S_IFIFO;
    return 0;
  }
  BY_HANDLE_FILE_INFORMATION found{};
  if (!GetFileInformationByHandle(handle, &found)) return fail_with_last_error();
  FILE_ATTRIBUTE_TAG_INFO tag{};
  const bool is_link =
      (found.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT) != 0 &&
      GetFileInformationByHandleEx(handle, FileAttributeTagInfo, &tag, sizeof tag) &&
      (tag.ReparseTag == IO_REPARSE_TAG_SYMLINK || tag.ReparseTag == IO_REPARSE_TAG_MOUNT_POINT);
  const bool is_folder = (found.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) != 0;
  info->st_dev = found.dwVolumeSerialNumber;
  info->st_ino = std::uint64_t{found.nFileIndexHigh} << 32 | found.nFileIndexLow;
  info->st_mode = static_cast<mode_t>(is_link     ? S_IFLNK | 0700
                                      : is_folder ? S_IFDIR | 0700
                                                  : S_IFREG | 0600);
  info->st_nlink = found.nNumberOfLinks;
  info->st_size =
      static_cast<std::int64_t>(std::uint64_t{found.nFileSizeHigh} << 32 | found.nFileSizeLow);
  info->st_mtime = unix_time(found.ftLastWriteTime);
  return 0;
}

int status_of(const std::wstring& path, bool follow, Stat* info) {
  const Handle handle(open_handle(path.c_str(), FILE_READ_ATTRIBUTES, OPEN_EXISTING, follow));
  return handle.is_open() ? status_of(handle.get(), info) : fail_with_last_error();
}

int open_path(const std::wstring& path, int flags) {
  const int access = flags & (O_RDONLY | O_WRONLY | O_RDWR);
  const DWORD wanted = access == O_RDONLY   ? GENERIC_READ
                       : access == O_WRONLY ? GENERIC_WRITE
                                            : GENERIC_READ | GENERIC_WRITE;
  const bool creates = (flags & O_CREAT) != 0, truncates = (flags & O_TRUNC) != 0;
  const DWORD disposition = creates && (flags & O_EXCL) != 0 ? CREATE_NEW
                            : creates && truncates           ? CREATE_ALWAYS
                            : creates                        ? OPEN_ALWAYS
                            : truncates                      ? TRUNCATE_EXISTING
                                                             : OPEN_EXISTING;
  const bool follows = (flags & O_NOFOLLOW) == 0;
  Handle handle(open_handle(path.c_str(), wanted, disposition, follows));
  if (!handle.is_open()) {
    const DWORD failed = GetLastError();
    // Windows says "access denied" of a folder that is to be written or created.
    const DWORD attributes = GetFileAttributesW(path.c_str());
    const bool is_folder =
        attributes != INVALID_FILE_ATTRIBUTES && (attributes & FILE_ATTRIBUTE_DIRECTORY) != 0;
    if (failed == ERROR_ACCESS_DENIED && is_folder) return fail(creates ? EEXIST : EISDIR);
    return fail(errno_of(failed));
  }
  Stat info;
  if (status_of(handle.get(), &info) != 0) return -1;
  if (S_ISLNK(info.st_mode)) return fail(ELOOP);
  if ((flags & O_DIRECTORY) != 0 && !S_ISDIR(info.st_mode)) return fail(ENOTDIR);
  if (access != O_RDONLY && S_ISDIR(info.st_mode)) return fail(EISDIR);
  const int fd = _open_osfhandle(reinterpret_cast<std::intptr_t>(handle.get()), O_BINARY);
  if (fd < 0) return fail(EMFILE);
  handle.release();
  return fd;
}

// Reads or writes at an offset and leaves the position alone: Windows moves it.
template <class Transfer>
ssize_t at_offset(int fd, std::size_t bytes, Offset offset, Transfer transfer) {
  const HANDLE handle = handle_of(fd);
  LARGE_INTEGER before{};
  if (!SetFilePointerEx(handle, {}, &before, FILE_CURRENT)) return fail_with_last_error();
  OVERLAPPED place{};
  place.Offset = static_cast<DWORD>(static_cast<std::uint64_t>(offset));
  place.OffsetHigh = static_cast<DWORD>(static_cast<std::uint64_t>(offset) >> 32);
  DWORD done = 0;
  const DWORD count = static_cast<DWORD>(std::min<std::size_t>(bytes, 1 << 30));
  const bool worked = transfer(handle, count, &done, &place);
  const DWORD failed = worked ? ERROR_SUCCESS : GetLastError();
  SetFilePointerEx(handle, before, nullptr, FILE_BEGIN);
  if (worked) return static_cast<ssize_t>(done);
  return failed == ERROR_HANDLE_EOF ? 0 : fail(errno_of(failed));
}

// A console gives UTF-16; with its code page set to UTF-8 some versions of Windows replace all but
// ASCII by zeros.
ssize_t read_console(HANDLE console, char* out, std::size_t bytes) {
  // A unit becomes at most three bytes.
  std::vector<wchar_t> text(std::clamp<std::size_t>(bytes / 3, 1, 4096));
  DWORD n = 0;
  if (!ReadConsoleW(console, text.data(), static_cast<DWORD>(text.size()), &n, nullptr)) {
    return fail_with_last_error();
  }
  if (n == 0) return GetLastError() == ERROR_OPERATION_ABORTED ? fail(EINTR) : 0;
  if (text[0] == L'\x1a') return 0;  // Ctrl-Z ends the input
  const int size = WideCharToMultiByte(CP_UTF8, 0, text.data(), static_cast<int>(n), out,
                                       static_cast<int>(bytes), nullptr, nullptr);
  return size > 0 ? size : fail(EIO);
}

// Gives a file another name, which may be that of another file.
int rename_over(const std::wstring& from, const std::wstring& to) {
  const Handle file(open_handle(from.c_str(), DELETE | SYNCHRONIZE, OPEN_EXISTING, false));
  if (!file.is_open()) return fail_with_last_error();
  // Only in this way can a file be replaced that is open (Windows 10 of 2016 and later, NTFS).
  std::wstring full(32768, L'\0');
  const DWORD n =
      GetFullPathNameW(to.c_str(), static_cast<DWORD>(full.size()), full.data(), nullptr);
  if (n == 0 || n >= full.size()) return fail_with_last_error();
  full.resize(n);
  constexpr DWORD kReplaceIfExists = 1, kPosixSemantics = 2;
  constexpr int kFileRenameInfoEx = 22;
  std::vector<std::byte> memory(sizeof(FILE_RENAME_INFO) + full.size() * sizeof(wchar_t));
  auto* const info = reinterpret_cast<FILE_RENAME_INFO*>(memory.data());
  // Flags, where older versions have ReplaceIfExists.
  const DWORD flags = kReplaceIfExists | kPosixSemantics;
  std::memcpy(memory.data(), &flags, sizeof flags);
  info->FileNameLength = static_cast<DWORD>(full.size() * sizeof(wchar_t));
  std::memcpy(info->FileName, full.data(), info->FileNameLength);
  if (SetFileInformationByHandle(file.get(),
                                 static_cast<FILE_INFO_BY_HANDLE_CLASS>(kFileRenameInfoEx), info,
                                 static_cast<DWORD>(memory.size()))) {
    return 0;
  }
  if (MoveFileExW(from.c_str(), to.c_str(), MOVEFILE_REPLACE_EXISTING)) return 0;
  if (GetLastError() != ERROR_ACCESS_DENIED) return fail_with_last_error();
  // Another file system, or an older Windows: the file that is replaced is open. It can be renamed,
  // and what has it open keeps it. If the power fails here, it is found under that name.
  const std::wstring aside = to + L".replaced";
  if (!MoveFileExW(to.c_str(), aside.c_str(), MOVEFILE_REPLACE_EXISTING)) {
    return fail_with_last_error();
  }
  if (!MoveFileExW(from.c_str(), to.c_str(), 0)) {
    const DWORD failed = GetLastError();
    MoveFileExW(aside.c_str(), to.c_str(), 0);
    return fail(errno_of(failed));
  }
  DeleteFileW(aside.c_str());
  return 0;
}

int remove_path(const std::wstring& path) {
  // The name is free at once, also while the file is open (Windows 10 of 2017 and later, NTFS).
  const Handle file(open_handle(path.c_str(), DELETE, OPEN_EXISTING, false));
  if (!file.is_open()) return fail_with_last_error();
  Stat info;
  if (status_of(file.get(), &info) == 0 && S_ISDIR(info.st_mode)) return fail(EISDIR);
  constexpr int kFileDispositionInfoEx = 21;
  DWORD flags = 1 | 2;  // delete, with POSIX semantics
  if (SetFileInformationByHandle(file.get(),
                                 static_cast<FILE_INFO_BY_HANDLE_CLASS>(kFileDispositionInfoEx),
                                 &flags, sizeof flags)) {
    return 0;
  }
  return DeleteFileW(path.c_str()) ? 0 : fail_with_last_error();
}

int make_folder(const std::wstring& path) {
  return CreateDirectoryW(path.c_str(), nullptr) ? 0 : fail_with_last_error();
}

}  // namespace

int chmod(const char*, mode_t) { return 0; }
int chmod(const wchar_t*, mode_t) { return 0; }
int close(int fd) { return ::_close(fd); }

// Windows' locks keep others from reading the bytes, so a byte is locked that no file has.
int flock(int fd, int) {
  OVERLAPPED place{};
  place.Offset = 0xffff'fffe;
  place.OffsetHigh = 0x7fff'ffff;
  constexpr DWORD kFlags = LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY;
  return LockFileEx(handle_of(fd), kFlags, 0, 1, 0, &place) ? 0 : fail_with_last_error();
}

int fstat(int fd, Stat* info) { return status_of(handle_of(fd), info); }

int fstatat(int folder, const char* name, Stat* info, int flags) {
  const std::wstring path = path_in(folder, name);
  return path.empty() ? -1 : status_of(path, (flags & AT_SYMLINK_NOFOLLOW) == 0, info);
}

int ftruncate(int fd, Offset size) {
  FILE_END_OF_FILE_INFO end{};
  end.EndOfFile.QuadPart = size;
  const bool done =
      SetFileInformationByHandle(handle_of(fd), FileEndOfFileInfo, &end, sizeof end) != 0;
  return done ? 0 : fail_with_last_error();
}

int getentropy(void* out, std::size_t bytes) {
  const auto status = BCryptGenRandom(nullptr, static_cast<unsigned char*>(out),
                                      static_cast<ULONG>(bytes), BCRYPT_USE_SYSTEM_PREFERRED_RNG);
  return status >= 0 ? 0 : fail(EIO);
}

unsigned geteuid() { return 0; }
int getpid() { return static_cast<int>(GetCurrentProcessId()); }

// The C library takes NUL for a terminal.
int isatty(int fd) {
  DWORD mode = 0;
  return GetConsoleMode(handle_of(fd), &mode) ? 1 : 0;
}

int linkat(int from_folder, const char* from, int to_folder, const char* to, int) {
  const std::wstring source = path_in(from_folder, from), target = path_in(to_folder, to);
  if (source.empty() || target.empty()) return -1;
  return CreateHardLinkW(target.c_str(), source.c_str(), nullptr) ? 0 : fail_with_last_error();
}

Offset lseek(int fd, Offset offset, int from) {
  LARGE_INTEGER distance{}, now{};
  distance.QuadPart = offset;
  const DWORD method = from == SEEK_SET ? FILE_BEGIN : from == SEEK_END ? FILE_END : FILE_CURRENT;
  if (!SetFilePointerEx(handle_of(fd), distance, &now, method)) return fail_with_last_error();
  return now.QuadPart;
}

int stat(const char* path, Stat* info) { return status_of(wide(path), true, info); }
int stat(const wchar_t* path, Stat* info) { return status_of(std::wstring(path), true, info); }
int lstat(const char* path, Stat* info) { return status_of(wide(path), false, info); }
int lstat(const wchar_t* path, Stat* info) { return status_of(std::wstring(path), false, info); }
int mkdir(const char* path, mode_t) { return make_folder(wide(path)); }
int mkdir(const wchar_t* path, mode_t) { return make_folder(path); }

char* mkdtemp(char* name) {
  const std::size_t length = std::strlen(name);
  if (length < 6) {
    errno = EINVAL;
    return nullptr;
  }
  for (int attempt = 0; attempt < 100; ++attempt) {
    const Result<std::string> letters = random_letters();
    if (!letters) return nullptr;
    letters->copy(name + length - 6, 6);
    if (mkdir(name, 0700) == 0) return name;
    if (errno != EEXIST) return nullptr;
  }
  return nullptr;
}

void* mmap(void*, std::size_t bytes, int, int flags, int fd, Offset) {
  if ((flags & MAP_ANONYMOUS) != 0) {
    void* const memory = VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
    if (memory != nullptr) return memory;
    fail_with_last_error();
    return MAP_FAILED;
  }
  // The view keeps the mapping.
  const Handle mapping(CreateFileMappingW(handle_of(fd), nullptr, PAGE_READONLY, 0, 0, nullptr));
  void* const view =
      mapping.is_open() ? MapViewOfFile(mapping.get(), FILE_MAP_READ, 0, 0, bytes) : nullptr;
  if (view != nullptr) return view;
  fail_with_last_error();
  return MAP_FAILED;
}

int munmap(void* memory, std::size_t) {
  MEMORY_BASIC_INFORMATION info{};
  VirtualQuery(memory, &info, sizeof info);
  const bool done = info.Type == MEM_MAPPED ? UnmapViewOfFile(memory) != 0
                                            : VirtualFree(memory, 0, MEM_RELEASE) != 0;
  return done ? 0 : fail_with_last_error();
}

int open(const char* path, int flags, mode_t) { return open_path(wide(path), flags); }
int open(const wchar_t* path, int flags, mode_t) { return open_path(path, flags); }

int openat(int folder, const char* name, int flags, mode_t) {
  const std::wstring path = path_in(folder, name);
  return path.empty() ? -1 : open_path(path, flags);
}

ssize_t pread(int fd, void* out, std::size_t bytes, Offset offset) {
  return at_offset(fd, bytes, offset,
                   [&](HANDLE file, DWORD count, DWORD* done, OVERLAPPED* place) {
                     return ReadFile(file, out, count, done, place) != 0;
                   });
}

ssize_t pwrite(int fd, const void* data, std::size_t bytes, Offset offset) {
  return at_offset(fd, bytes, offset,
                   [&](HANDLE file, DWORD count, DWORD* done, OVERLAPPED* place) {
                     return WriteFile(file, data, count, done, place) != 0;
                   });
}

ssize_t read(int fd, void* out, std::size_t bytes) {
  const HANDLE file = handle_of(fd);
  DWORD mode = 0;
  if (bytes >= 3 && GetConsoleMode(file, &mode)) {
    return read_console(file, static_cast<char*>(out), bytes);
  }
  DWORD done = 0;
  const DWORD count = static_cast<DWORD>(std::min<std::size_t>(bytes, 1 << 30));
  if (ReadFile(file, out, count, &done, nullptr)) return static_cast<ssize_t>(done);
  return GetLastError() == ERROR_BROKEN_PIPE ? 0 : fail_with_last_error();  // its writer has ended
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  const std::wstring source = path_in(from_folder, from), target = path_in(to_folder, to);
  return source.empty() || target.empty() ? -1 : rename_over(source, target);
}

int unlink(const char* path) { return remove_path(wide(path)); }
int unlink(const wchar_t* path) { return remove_path(path); }

int unlinkat(int folder, const char* name, int) {
  const std::wstring path = path_in(folder, name);
  return path.empty() ? -1 : remove_path(path);
}

ssize_t write(int fd, const void* data, std::size_t bytes) {
  DWORD done = 0;
  const DWORD count = static_cast<DWORD>(std::min<std::size_t>(bytes, 1 << 30));
  if (WriteFile(handle_of(fd), data, count, &done, nullptr)) return static_cast<ssize_t>(done);
  return fail_with_last_error();
}

}  // namespace tqcache::posix

#endif  // _WIN32
