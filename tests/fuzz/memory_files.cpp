#include "fuzz/memory_files.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/fuzz.h"

namespace tqcache::fuzz {
namespace {

constexpr sqlite3_int64 kMostBytes = 16 << 20;

// Which file on disk a name stands for. File systems give the number of a removed file to the next.
struct OnDisk {
  ino_t inode = 0;
  std::int64_t seconds = 0, nanoseconds = 0;  // of its last change, as nobody writes into it

  bool operator==(const OnDisk&) const = default;
};

OnDisk on_disk(const char* path) {
  struct stat info {};
  if (::stat(path, &info) != 0) return {};
  return {info.st_ino, info.st_ctim.tv_sec, info.st_ctim.tv_nsec};
}

struct File {
  Bytes bytes;
  OnDisk on_disk;                              // of a database
  std::vector<std::unique_ptr<Bytes>> shared;  // regions of its -shm file
};

std::map<std::string, File>& files() {
  static std::map<std::string, File> all;
  return all;
}

void forget(const std::string& path) {
  for (const char* end : {"", "-wal", "-journal"}) files().erase(path + end);
}

// What SQLite allocates for an open file.
struct Open {
  sqlite3_file base;
  File* file;
  File own;  // of a temporary file
  bool keeps_wal;
};

Open& open_of(sqlite3_file* file) { return *reinterpret_cast<Open*>(file); }

int close_file(sqlite3_file* file) {
  open_of(file).own.~File();
  return SQLITE_OK;
}

int read_file(sqlite3_file* file, void* to, int n, sqlite3_int64 offset) {
  const Bytes& bytes = open_of(file).file->bytes;
  const auto at = std::min(static_cast<std::size_t>(offset), bytes.size());
  const auto size = std::min(static_cast<std::size_t>(n), bytes.size() - at);
  if (size > 0) std::memcpy(to, bytes.data() + at, size);
  if (size == static_cast<std::size_t>(n)) return SQLITE_OK;
  std::memset(static_cast<char*>(to) + size, 0, static_cast<std::size_t>(n) - size);
  return SQLITE_IOERR_SHORT_READ;
}

int write_file(sqlite3_file* file, const void* from, int n, sqlite3_int64 offset) {
  if (offset > kMostBytes - n) return SQLITE_FULL;
  Bytes& bytes = open_of(file).file->bytes;
  const auto at = static_cast<std::size_t>(offset);
  const auto size = static_cast<std::size_t>(n);
  if (bytes.size() < at + size) bytes.resize(at + size);
  std::memcpy(bytes.data() + at, from, size);
  return SQLITE_OK;
}

int truncate_file(sqlite3_file* file, sqlite3_int64 size) {
  if (size > kMostBytes) return SQLITE_FULL;
  open_of(file).file->bytes.resize(static_cast<std::size_t>(size));
  return SQLITE_OK;
}

int sync_file(sqlite3_file*, int) { return SQLITE_OK; }

int size_of_file(sqlite3_file* file, sqlite3_int64* size) {
  *size = static_cast<sqlite3_int64>(open_of(file).file->bytes.size());
  return SQLITE_OK;
}

int lock_file(sqlite3_file*, int) { return SQLITE_OK; }

int is_reserved(sqlite3_file*, int* reserved) {
  *reserved = 0;
  return SQLITE_OK;
}

int control_file(sqlite3_file* file, int operation, void* argument) {
  if (operation != SQLITE_FCNTL_PERSIST_WAL) return SQLITE_NOTFOUND;
  int& keeps = *static_cast<int*>(argument);
  if (keeps >= 0) open_of(file).keeps_wal = keeps != 0;
  keeps = open_of(file).keeps_wal ? 1 : 0;
  return SQLITE_OK;
}

int sector_size(sqlite3_file*) { return 4096; }
int characteristics(sqlite3_file*) { return 0; }

int map_shared(sqlite3_file* file, int region, int size, int extend, void volatile** at) {
  auto& shared = open_of(file).file->shared;
  const auto wanted = static_cast<std::size_t>(region);
  *at = nullptr;
  if (wanted >= shared.size() && extend == 0) return SQLITE_OK;
  while (shared.size() <= wanted) {
    shared.push_back(std::make_unique<Bytes>(static_cast<std::size_t>(size)));
  }
  *at = shared[wanted]->data();
  return SQLITE_OK;
}

int lock_shared(sqlite3_file*, int, int, int) { return SQLITE_OK; }
void shared_barrier(sqlite3_file*) {}
int unmap_shared(sqlite3_file* file, int) {
  open_of(file).file->shared.clear();
  return SQLITE_OK;
}

constexpr sqlite3_io_methods kMethods = {2,
                                         close_file,
                                         read_file,
                                         write_file,
                                         truncate_file,
                                         sync_file,
                                         size_of_file,
                                         lock_file,
                                         lock_file,
                                         is_reserved,
                                         control_file,
                                         sector_size,
                                         characteristics,
                                         map_shared,
                                         lock_shared,
                                         shared_barrier,
                                         unmap_shared,
                                         nullptr,
                                         nullptr};

int open_file(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  Open& open = open_of(file);
  open.base.pMethods = nullptr;
  if ((flags & SQLITE_OPEN_MAIN_DB) != 0 && name != nullptr) {
    const int made = ::open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (made < 0) return SQLITE_CANTOPEN;
    ::close(made);
    const OnDisk found = on_disk(name);
    if (files()[name].on_disk != found) forget(name);
    files()[name].on_disk = found;
  }
  new (&open.own) File();
  open.file = name == nullptr ? &open.own : &files()[name];
  open.keeps_wal = false;
  open.base.pMethods = &kMethods;
  if (out_flags != nullptr) *out_flags = flags;
  return SQLITE_OK;
}

int delete_file(sqlite3_vfs*, const char* name, int) {
  return files().erase(name) > 0 ? SQLITE_OK : SQLITE_IOERR_DELETE_NOENT;
}

int has_file(sqlite3_vfs*, const char* name, int, int* found) {
  const auto at = files().find(name);
  *found = at != files().end() && !at->second.bytes.empty() ? 1 : 0;
  return SQLITE_OK;
}

int full_name(sqlite3_vfs*, const char* name, int n, char* full) {
  sqlite3_snprintf(n, full, "%s", name);
  return SQLITE_OK;
}

// SQLite's own allocations, a thousand for an input, are not those that AddressSanitizer should
// look at: it does not see SQLite's code either. The size of a block stands in front of it.
extern "C" void* __libc_malloc(std::size_t);
extern "C" void __libc_free(void*);
constexpr std::size_t kFront = 16;

void* allocate(int n) {
  auto* const block = static_cast<char*>(__libc_malloc(static_cast<std::size_t>(n) + kFront));
  if (block == nullptr) return nullptr;
  std::memcpy(block, &n, sizeof n);
  return block + kFront;
}

void release(void* block) { __libc_free(static_cast<char*>(block) - kFront); }

int size_of(void* block) {
  int n = 0;
  std::memcpy(&n, static_cast<char*>(block) - kFront, sizeof n);
  return n;
}

void* reallocate(void* block, int n) {
  void* const grown = allocate(n);
  if (grown == nullptr) return nullptr;
  std::memcpy(grown, block, static_cast<std::size_t>(std::min(n, size_of(block))));
  release(block);
  return grown;
}

int round_up(int n) { return (n + 7) & ~7; }

constexpr sqlite3_mem_methods kMemory = {allocate,     release,  reallocate,
                                         size_of,      round_up, [](void*) { return SQLITE_OK; },
                                         [](void*) {}, nullptr};

}  // namespace

void keep_sqlite_files_in_memory() {
  require(sqlite3_config(SQLITE_CONFIG_MALLOC, &kMemory) == SQLITE_OK, "SQLite's memory");
  require(sqlite3_initialize() == SQLITE_OK, "SQLite starts");
  static sqlite3_vfs memory = *sqlite3_vfs_find(nullptr);  // its clock and random numbers stay
  memory.szOsFile = sizeof(Open);
  memory.zName = "tqcache-fuzz";
  memory.pNext = nullptr;
  memory.xOpen = open_file;
  memory.xDelete = delete_file;
  memory.xAccess = has_file;
  memory.xFullPathname = full_name;
  require(sqlite3_vfs_register(&memory, 1) == SQLITE_OK, "files in memory");
}

void write_memory_file(const std::filesystem::path& path, ByteView bytes) {
  const int made = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  require(made >= 0, "a database on disk");
  ::close(made);
  forget(path);
  File& file = files()[path];
  file.bytes.assign(bytes.begin(), bytes.end());
  file.on_disk = on_disk(path.c_str());
}

}  // namespace tqcache::fuzz
