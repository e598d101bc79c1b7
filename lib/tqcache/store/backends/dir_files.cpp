#include "tqcache/store/backends/dir_files.h"

#include <algorithm>
#include <system_error>
#include <thread>

#include "tqcache/base/posix.h"
#include "tqcache/base/system.h"
#include "tqcache/bytes.h"
#include "tqcache/hash.h"
#include "tqcache/store.h"

namespace tqcache::store {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMarker = "tqcache store 1\n";
constexpr int kFolders = 256;

Error io_error(const std::string& what, int error_number) {
  return {ErrorCode::kIo, what + ": " + std::generic_category().message(error_number)};
}

std::string folder_name(int i) {
  const auto byte = static_cast<std::byte>(i);
  return to_hex(ByteView(&byte, 1));
}

bool is_folder_name(std::string_view name) {
  return name.size() == 2 && std::ranges::all_of(name, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

// Makes the folder accessible to the owner only, because it contains prompts; an existing folder
// too.
Result<void> make_folder(const fs::path& folder) {
  if (posix::mkdir(folder.c_str(), 0700) == 0) return {};
  const int failed = errno;
  posix::Stat info{};
  const bool is_folder = posix::stat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  if (failed != EEXIST || !is_folder) return io_error("folder " + folder.string(), failed);
  if ((info.st_mode & 0077) == 0 || posix::chmod(folder.c_str(), info.st_mode & 07700) == 0)
    return {};
  return io_error("folder " + folder.string() + ": closing it to other users", errno);
}

// "b,0123" for "b/0123": no key has a comma, so this can be undone.
std::string file_name(std::string key) {
  std::replace(key.begin(), key.end(), '/', ',');
  return key;
}

std::string key_of(std::string name) {
  std::replace(name.begin(), name.end(), ',', '/');
  return name;
}

Result<void> visit_folder(const fs::path& folder,
                          const std::function<Result<void>(const DirLayout::File&)>& visit) {
  std::error_code failed;
  fs::directory_iterator entries(folder, failed);
  // Removed meanwhile.
  if (failed == std::errc::no_such_file_or_directory) return {};
  for (; !failed && entries != fs::directory_iterator(); entries.increment(failed)) {
    const std::string key = key_of(entries->path().filename().string());
    posix::Stat info{};
    // Files may have been removed since they were listed.
    if (!check_key(key) || posix::lstat(entries->path().c_str(), &info) != 0) continue;
    const auto bytes = S_ISREG(info.st_mode) ? static_cast<std::uint64_t>(info.st_size) : 0;
    TQC_TRY(visit({key, bytes, info.st_mtime}));
  }
  return failed ? io_error("folder " + folder.string(), failed.value()) : Result<void>();
}

}  // namespace

bool is_no_file(const fs::path& path) {
  posix::Stat info{};
  return posix::lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
}

Result<void> remove_no_file(const fs::path& path) {
  std::error_code failed;
  fs::remove_all(path, failed);  // follows no links
  return failed ? io_error("remove", failed.value()) : Result<void>();
}

void announce_reading(const fs::path& path) {
  constexpr std::size_t kBytes = 4 << 20;
  if (is_no_file(path)) return;  // a pipe would wake its writer
  const int fd = posix::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (fd < 0) return;
  read_ahead(fd, kBytes);
  posix::close(fd);
}

Result<std::unique_ptr<LockedFile>> lock_patiently(const fs::path& path,
                                                   std::chrono::milliseconds timeout,
                                                   const std::function<bool()>& interrupted) {
  constexpr std::chrono::milliseconds kPause{10};
  for (auto waited = std::chrono::milliseconds(0);; waited += kPause) {
    Result<std::unique_ptr<LockedFile>> locked = LockedFile::open(path);
    if (locked || locked.error().code != ErrorCode::kBusy || waited >= timeout) return locked;
    if (interrupted && interrupted()) return interrupted_error();
    std::this_thread::sleep_for(kPause);
  }
}

fs::path DirLayout::marker() const { return root_ / "tqcache-store"; }
fs::path DirLayout::index() const { return root_ / "index.sqlite"; }

fs::path DirLayout::blob(const std::string& key) const {
  const Sha256 digest = sha256(as_bytes(key));
  return root_ / "blobs" / to_hex(ByteView(digest).first(1)) / file_name(key);
}

Result<void> DirLayout::make_folder_of(const std::string& key) const {
  const fs::path folder = blob(key).parent_path();
  posix::Stat info{};
  if (posix::stat(folder.c_str(), &info) == 0) return {};
  const fs::path blobs = folder.parent_path();
  TQC_TRY(make_folder(blobs));
  TQC_TRY(make_folder(folder));
  TQC_TRY(flush_folder(blobs));
  return flush_folder(root_);
}

Result<DirLayout> DirLayout::open(const fs::path& root, bool create) {
  if (root.empty()) return invalid("store URL: dir: without a path");
  DirLayout layout{root};
  std::error_code failed;
  if (!fs::exists(layout.marker(), failed) && !failed) {
    if (!create) return Error{ErrorCode::kNotFound, "there is no store"};
    TQC_TRY(layout.make());
  }
  TQC_TRY(layout.check_marker());
  return layout;
}

AbandonedFiles DirLayout::abandoned(std::chrono::seconds min_age, bool remove) const {
  AbandonedFiles sum = find_abandoned(root_, min_age, remove);
  for (int i = 0; i < kFolders; ++i) {
    const AbandonedFiles some = find_abandoned(root_ / "blobs" / folder_name(i), min_age, remove);
    sum.files += some.files;
    sum.bytes += some.bytes;
  }
  return sum;
}

// Writes the marker last: a folder with a marker is complete.
Result<void> DirLayout::make() const {
  TQC_TRY(make_folder(root_));
  std::error_code failed;
  for (fs::directory_iterator i(root_, failed); !failed && i != fs::directory_iterator();
       i.increment(failed)) {
    const std::string name = i->path().filename().string();
    // Made by another process meanwhile, or left by one that was killed.
    if (name == "blobs" || name.starts_with("tqcache-store") ||
        name.starts_with(".tqcache-store.tmp-"))
      continue;
    return invalid("the folder is not empty and not a store");
  }
  if (failed) return io_error("folder " + root_.string(), failed.value());
  TQC_TRY(make_folder(root_ / "blobs"));
  for (int i = 0; i < kFolders; ++i) TQC_TRY(make_folder(root_ / "blobs" / folder_name(i)));
  TQC_TRY(flush_folder(root_ / "blobs"));
  const fs::path parent = fs::absolute(root_, failed).lexically_normal();
  TQC_TRY(flush_folder((parent.has_filename() ? parent : parent.parent_path()).parent_path()));
  const Result<void> written =
      write_file_atomically(marker(), as_bytes(kMarker), Overwrite::kRefuse);
  const bool made_by_another = !written && written.error().code == ErrorCode::kInvalidArgument;
  return made_by_another ? Result<void>() : written;
}

Result<void> DirLayout::check_marker() const {
  const Result<Bytes> bytes = read_file(marker(), 4096);
  if (!bytes) return in_context("tqcache-store", bytes.error());
  if (std::ranges::equal(*bytes, as_bytes(kMarker))) return {};
  return unsupported("tqcache-store: the layout of another version");
}

// A copy of a store may lack empty folders, so the folders that are there are listed first.
Result<void> DirLayout::visit(const std::function<Result<void>(const File&)>& visit) const {
  std::error_code failed;
  fs::directory_iterator folders(root_ / "blobs", failed);
  if (failed == std::errc::no_such_file_or_directory) return {};
  for (; !failed && folders != fs::directory_iterator(); folders.increment(failed)) {
    if (is_folder_name(folders->path().filename().string())) {
      TQC_TRY(visit_folder(folders->path(), visit));
    }
  }
  return failed ? io_error("folder " + (root_ / "blobs").string(), failed.value()) : Result<void>();
}

}  // namespace tqcache::store
