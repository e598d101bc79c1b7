#include "tqcache/base/temporary_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "tqcache/base/file_io.h"

namespace tqcache {
namespace {

constexpr mode_t kOwnerOnly = 0600;
constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz234567";
constexpr std::size_t kRandomLetters = 6;

Result<std::string> random_letters() {
  std::array<unsigned char, kRandomLetters> random{};
  if (::getentropy(random.data(), random.size()) != 0) return system_error("getentropy", errno);
  std::string letters;
  for (const unsigned char byte : random) letters += kLetters[byte % kLetters.size()];
  return letters;
}

bool is_temporary_name(std::string_view name, std::string_view prefix) {
  return name.size() == prefix.size() + kRandomLetters && name.starts_with(prefix) &&
         name.find_first_not_of(kLetters, prefix.size()) == name.npos;
}

// Empty when the folder cannot be listed: then nothing is taken away.
std::vector<std::string> temporary_names(const Descriptor& folder, std::string_view prefix) {
  // An opening of its own, as listing moves the position.
  const int fd = ::openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(fd < 0 ? nullptr : ::fdopendir(fd), ::closedir);
  if (!entries) {
    if (fd >= 0) ::close(fd);
    return {};
  }
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(entries.get())) {
    if (is_temporary_name(entry->d_name, prefix)) names.emplace_back(entry->d_name);
  }
  return names;
}

// What its writer left when it was killed; the lock of a live one refuses ours.
bool is_left_behind(const Descriptor& file) {
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return false;
  if (!S_ISREG(info.st_mode) || info.st_uid != ::geteuid()) return false;
  const Result<bool> locked = lock(file);
  return locked.ok() && *locked;
}

void remove_left_behind(const Descriptor& folder, std::string_view prefix) {
  for (const std::string& name : temporary_names(folder, prefix)) {
    constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    const Descriptor file(::openat(folder.get(), name.c_str(), kFlags));
    if (file.is_open() && is_left_behind(file)) ::unlinkat(folder.get(), name.c_str(), 0);
  }
}

}  // namespace

Result<TemporaryFile> TemporaryFile::make(const Descriptor& folder, const std::string& name) {
  std::string prefix = "." + name + ".tmp-";
  remove_left_behind(folder, prefix);
  for (int attempt = 0; attempt < 100; ++attempt) {
    TQC_TRY_ASSIGN(const std::string letters, random_letters());
    TemporaryFile temporary(folder.get(), prefix + letters);
    if (const int error_number = temporary.create()) {
      if (error_number == EEXIST) continue;
      if (error_number != ENAMETOOLONG) return system_error("temporary file", error_number);
      prefix = ".tqcache-";
      remove_left_behind(folder, prefix);
      continue;
    }
    TQC_TRY_ASSIGN(const bool claimed, temporary.claim());
    if (claimed) return temporary;
  }
  return system_error("temporary file", EEXIST);
}

int TemporaryFile::create() {
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  file_ = Descriptor(
      retry_interrupted([&] { return ::openat(folder_, name_.c_str(), kFlags, kOwnerOnly); }));
  if (file_.is_open()) return 0;
  const int error_number = errno;
  name_.clear();  // what stands under it, if anything, is another's
  return error_number;
}

// False when someone who takes away what is left behind got hold of it before it was locked.
Result<bool> TemporaryFile::claim() {
  const Result<bool> locked = lock(file_);
  if (!locked) {
    if (locked.error().code == ErrorCode::kBusy) return false;
    return in_context("temporary file", locked.error());
  }
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0) return system_error("temporary file: stat", errno);
  return info.st_nlink > 0;
}

void TemporaryFile::remove() {
  if (!name_.empty()) ::unlinkat(folder_, name_.c_str(), 0);
  name_.clear();
  file_.close();
}

void TemporaryFile::swap(TemporaryFile& other) noexcept {
  std::swap(folder_, other.folder_);
  name_.swap(other.name_);
  std::swap(file_, other.file_);
}

}  // namespace tqcache
