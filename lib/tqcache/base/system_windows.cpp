// base/system.h on Windows.

#ifdef _WIN32

#include <windows.h>
// after windows.h
#include <io.h>
#include <psapi.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <utility>

#include "tqcache/base/file_io.h"
#include "tqcache/base/posix.h"
#include "tqcache/base/system.h"

namespace tqcache {
namespace {

constexpr const wchar_t* kProcessorKey = L"HARDWARE\\DESCRIPTION\\System\\CentralProcessor\\0";
constexpr const wchar_t* kBootKey =
    L"SYSTEM\\CurrentControlSet\\Control\\Session Manager\\Memory Management\\PrefetchParameters";

std::wstring path_of(int fd) {
  std::wstring path(32768, L'\0');
  const DWORD n =
      GetFinalPathNameByHandleW(reinterpret_cast<HANDLE>(_get_osfhandle(fd)), path.data(),
                                static_cast<DWORD>(path.size()), FILE_NAME_NORMALIZED);
  path.resize(n < path.size() ? n : 0);
  return path;
}

std::string utf8(const wchar_t* text) {
  const int n = WideCharToMultiByte(CP_UTF8, 0, text, -1, nullptr, 0, nullptr, nullptr);
  std::string out(static_cast<std::size_t>(std::max(n, 1)), '\0');
  WideCharToMultiByte(CP_UTF8, 0, text, -1, out.data(), n, nullptr, nullptr);
  out.pop_back();  // the final zero
  return out;
}

int fail(int error_number) {
  errno = error_number;
  return -1;
}

}  // namespace

// A folder cannot be flushed, and a descriptor for reading has nothing to flush.
int flush_file(int fd) {
  if (FlushFileBuffers(reinterpret_cast<HANDLE>(_get_osfhandle(fd)))) return 0;
  const DWORD failed = GetLastError();
  if (failed == ERROR_ACCESS_DENIED || failed == ERROR_INVALID_HANDLE) return fail(EINVAL);
  return fail(failed == ERROR_DISK_FULL ? ENOSPC : EIO);
}

int flush_data(int fd) { return flush_file(fd); }

void start_writeback(int, std::uint64_t, std::uint64_t) {}

int open_nameless(const std::filesystem::path& folder) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const Result<std::string> letters = random_letters();
    if (!letters) return fail(EIO);
    const HANDLE handle = CreateFileW(
        (folder / ("tqcache-" + *letters)).c_str(), GENERIC_READ | GENERIC_WRITE | DELETE,
        FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, nullptr, CREATE_NEW,
        FILE_ATTRIBUTE_TEMPORARY | FILE_FLAG_DELETE_ON_CLOSE, nullptr);
    if (handle == INVALID_HANDLE_VALUE) {
      if (GetLastError() == ERROR_FILE_EXISTS) continue;
      return fail(EACCES);
    }
    const int fd = _open_osfhandle(reinterpret_cast<std::intptr_t>(handle), O_BINARY);
    if (fd < 0) CloseHandle(handle);
    return fd;
  }
  return fail(EEXIST);
}

int open_in_memory() { return fail(ENOTSUP); }

// The C library would let children inherit the handle.
int duplicate_descriptor(int fd) {
  const HANDLE process = GetCurrentProcess();
  HANDLE copy = nullptr;
  if (!DuplicateHandle(process, reinterpret_cast<HANDLE>(_get_osfhandle(fd)), process, &copy, 0,
                       FALSE, DUPLICATE_SAME_ACCESS)) {
    return fail(EBADF);
  }
  const int made = _open_osfhandle(reinterpret_cast<std::intptr_t>(copy), O_BINARY);
  if (made < 0) CloseHandle(copy);
  return made;
}

std::vector<std::string> names_in(int folder) {
  std::vector<std::string> names;
  WIN32_FIND_DATAW entry{};
  const HANDLE search = FindFirstFileW((path_of(folder) + L"\\*").c_str(), &entry);
  if (search == INVALID_HANDLE_VALUE) return names;
  do {
    names.push_back(utf8(entry.cFileName));
  } while (FindNextFileW(search, &entry));
  FindClose(search);
  return names;
}

int rename_exclusively(int folder, const char* from, const char* to) {
  const std::filesystem::path place = path_of(folder);
  const auto path_for = [&](const char* name) {
    return place / std::filesystem::path(reinterpret_cast<const char8_t*>(name));
  };
  if (MoveFileExW(path_for(from).c_str(), path_for(to).c_str(), 0)) return 0;
  const DWORD failed = GetLastError();
  if (failed == ERROR_ALREADY_EXISTS || failed == ERROR_FILE_EXISTS) return fail(EEXIST);
  return fail(failed == ERROR_ACCESS_DENIED || failed == ERROR_SHARING_VIOLATION ? EACCES : EIO);
}

void read_ahead(int, std::size_t) {}
void use_huge_pages(void*, std::size_t) {}
bool is_in_memory(const char*) { return false; }
std::string certificate_file() { return {}; }

// Windows counts its starts.
std::string boot_name() {
  DWORD number = 0, size = sizeof number;
  const auto status = RegGetValueW(HKEY_LOCAL_MACHINE, kBootKey, L"BootId", RRF_RT_REG_DWORD,
                                   nullptr, &number, &size);
  return status == ERROR_SUCCESS ? "windows-" + std::to_string(number) : std::string();
}

SystemName system_name() {
  // GetVersionEx() tells the version that a program was made for.
  using GetVersion = LONG(WINAPI*)(OSVERSIONINFOW*);
  OSVERSIONINFOW info{};
  info.dwOSVersionInfoSize = sizeof info;
  const HMODULE library = GetModuleHandleW(L"ntdll.dll");
  const auto get_version = reinterpret_cast<GetVersion>(
      reinterpret_cast<void*>(library ? GetProcAddress(library, "RtlGetVersion") : nullptr));
  SystemName name{.name = "Windows", .release = {}, .machine = "x86_64"};
#ifdef __aarch64__
  name.machine = "aarch64";
#endif
  if (get_version != nullptr && get_version(&info) == 0) {
    name.release = std::to_string(info.dwMajorVersion) + "." + std::to_string(info.dwMinorVersion) +
                   "." + std::to_string(info.dwBuildNumber);
  }
  return name;
}

std::string cpu_name() {
  std::array<wchar_t, 256> text{};
  DWORD size = sizeof text;
  const auto status = RegGetValueW(HKEY_LOCAL_MACHINE, kProcessorKey, L"ProcessorNameString",
                                   RRF_RT_REG_SZ, nullptr, text.data(), &size);
  return status == ERROR_SUCCESS ? utf8(text.data()) : std::string();
}

std::uint64_t machine_memory() {
  MEMORYSTATUSEX status{};
  status.dwLength = sizeof status;
  return GlobalMemoryStatusEx(&status) ? status.ullTotalPhys
                                       : std::numeric_limits<std::uint64_t>::max();
}

std::uint64_t process_memory_limit() { return std::numeric_limits<std::uint64_t>::max(); }

std::uint64_t peak_memory() {
  PROCESS_MEMORY_COUNTERS counters{};
  const bool found = GetProcessMemoryInfo(GetCurrentProcess(), &counters, sizeof counters) != 0;
  return found ? counters.PeakWorkingSetSize : 0;
}

}  // namespace tqcache

#endif  // _WIN32
