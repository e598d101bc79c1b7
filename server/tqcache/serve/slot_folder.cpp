#include "tqcache/serve/slot_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <random>
#include <system_error>
#include <utility>

#include "tqcache/base/system.h"

namespace tqcache::serve {
namespace {

constexpr std::string_view kPrefix = "tqcache-";
constexpr std::string_view kSuffix = ".slot";
constexpr std::string_view kOwnPrefix = ".tqcache-serve.";
constexpr std::size_t kRandomDigits = 16;
// Without a lock, a younger file may be in use: a slot of a large model takes minutes to write to a
// slow disk.
constexpr std::chrono::hours kSurelyLeftOver{1};

// Takes the leading characters of a kind away. Returns their number.
std::size_t skip(std::string_view& text, std::string_view kind) {
  const std::size_t n = std::min(text.find_first_not_of(kind), text.size());
  text.remove_prefix(n);
  return n;
}

bool skip_word(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

// "tqcache-0123456789abcdef-7.slot", also with "-again" before the dot (a slot file that is
// compared), and with anything behind a further dot.
bool is_slot_name(std::string_view name) {
  if (!skip_word(name, kPrefix)) return false;
  if (skip(name, "0123456789abcdef") != kRandomDigits) return false;
  if (!skip_word(name, "-") || skip(name, "0123456789") == 0) return false;
  skip_word(name, "-again");
  return skip_word(name, kSuffix) && (name.empty() || name[0] == '.');
}

// Files of a folder whose names fulfil a condition. None if the folder cannot be listed.
template <class IsWanted>
std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder,
                                            IsWanted is_wanted) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (is_wanted(entry->path().filename().native())) found.push_back(entry->path());
  }
  return found;
}

}  // namespace

bool is_left_over(std::string_view name) {
  if (is_slot_name(name)) return true;
  // ".NAME.tmp-abcdef": of an AtomicFile.
  constexpr std::string_view kTemporary = ".tmp-";
  const std::size_t mark = name.rfind(kTemporary);
  if (!name.starts_with('.') || mark == std::string_view::npos || mark < 1) return false;
  if (name.size() != mark + kTemporary.size() + 6) return false;
  const std::string_view written = name.substr(1, mark - 1);
  return is_slot_name(written) || written.starts_with(kOwnPrefix);
}

Result<std::shared_ptr<const ByteSource>> open_regular_file(const std::filesystem::path& path) {
  // A symbolic link is refused here. open_file() then opens the same file again, whatever has its
  // name by now, and checks that it is a regular one.
  constexpr int kFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  const int found = ::open(path.c_str(), kFlags);
  if (found < 0) {
    const std::string text = errno == ELOOP ? "is a symbolic link, which is not followed"
                                            : fmt::format("open: {}", std::strerror(errno));
    const ErrorCode code = errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo;
    return Error{code, text, path.string()};
  }
  auto file = in_file(path.string(), open_file(path_of_descriptor(found)));
  ::close(found);
  TQC_TRY_ASSIGN(std::unique_ptr<ByteSource> source, std::move(file));
  return std::shared_ptr<const ByteSource>(std::move(source));
}

Result<std::unique_ptr<SlotFolder>> SlotFolder::open(const std::filesystem::path& path) {
  std::unique_ptr<SlotFolder> folder(new SlotFolder(path));
  if (auto taken = folder->take(); !taken) return in_file(path.string(), std::move(taken).error());
  return folder;
}

Result<void> SlotFolder::take() {
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return Error{ErrorCode::kNotFound, "the folder of --slot-save-path does not exist"};
  }
  const std::string lock = path_of(".tqcache-serve.lock");
  lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600);
  if (lock_ < 0 && errno == ELOOP) {
    return Error{ErrorCode::kIo, ".tqcache-serve.lock is a symbolic link: remove it"};
  }
  if (lock_ < 0) {
    return Error{ErrorCode::kIo, fmt::format("cannot write there: {}", std::strerror(errno))};
  }
  const bool is_locked = ::flock(lock_, LOCK_EX | LOCK_NB) == 0;
  if (!is_locked && errno == EWOULDBLOCK) {
    return Error{ErrorCode::kBusy, "another tqcache serve uses this folder"};
  }
  if (!is_locked) {
    warnings_.push_back(
        fmt::format("the slot folder cannot be locked ({}): make sure that no "
                    "other tqcache serve uses it",
                    std::strerror(errno)));
  }
  if ((info.st_mode & S_IWOTH) != 0 && (info.st_mode & S_ISVTX) == 0) {
    warnings_.emplace_back(
        "every user of this machine can replace files in the slot folder: "
        "chmod o-w");
  }
  sweep(is_locked ? std::chrono::hours(0) : kSurelyLeftOver);
  return {};
}

SlotFolder::~SlotFolder() {
  if (lock_ >= 0) ::close(lock_);
}

void SlotFolder::sweep(std::chrono::seconds min_age) {
  const std::time_t now = std::time(nullptr);
  for (const auto& path : files_in(path_, is_left_over)) {
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0) continue;
    if (min_age.count() > 0 && now - info.st_mtime < min_age.count()) continue;
    if (::unlink(path.c_str()) != 0) continue;
    swept_.files += 1;
    swept_.bytes += S_ISREG(info.st_mode) ? static_cast<std::uint64_t>(info.st_size) : 0;
  }
}

std::string SlotFolder::new_name() {
  std::random_device device;
  return fmt::format("{}{:08x}{:08x}-{}{}", kPrefix, device(), device(), ++n_files_, kSuffix);
}

bool SlotFolder::is_in_memory() const { return tqcache::is_in_memory(path_.c_str()); }

SlotFile::~SlotFile() {
  if (path_.empty()) return;
  ::unlink(path_.c_str());
  const std::string sidecar = name_ + ".";
  const auto is_sidecar = [&](std::string_view name) { return name.starts_with(sidecar); };
  for (const auto& path : files_in(path_.parent_path(), is_sidecar)) ::unlink(path.c_str());
}

Result<void> SlotFile::create() const {
  const int file =
      ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) {
    return Error{ErrorCode::kIo, fmt::format("create: {}", std::strerror(errno)), path_.string()};
  }
  ::close(file);
  return {};
}

Result<std::shared_ptr<const ByteSource>> SlotFile::open() const {
  return open_regular_file(path_);
}

}  // namespace tqcache::serve
