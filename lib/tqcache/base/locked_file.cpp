// A regular file that is written in place, by one at a time.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "tqcache/base/descriptor.h"
#include "tqcache/base/file.h"
#include "tqcache/base/file_io.h"

namespace tqcache {
namespace {

Result<Descriptor> open_regular(const std::filesystem::path& path) {
  // Without O_NONBLOCK a device could keep us waiting before it is refused.
  constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  Descriptor file(retry_interrupted([&] { return ::open(path.c_str(), kFlags); }));
  if (!file.is_open()) {
    if (errno == ENOENT || errno == ENOTDIR) return Error{ErrorCode::kNotFound, "no such file"};
    if (errno == ELOOP) return Error{ErrorCode::kIo, "is a symbolic link"};
    if (errno == EISDIR) return Error{ErrorCode::kIo, "is a folder, not a file"};
    return system_error("open", errno);
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return system_error("stat", errno);
  if (!S_ISREG(info.st_mode)) return Error{ErrorCode::kIo, "is not a regular file"};
  return file;
}

}  // namespace

struct LockedFile::State {
  Descriptor file;
};

LockedFile::LockedFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
LockedFile::~LockedFile() = default;

Result<std::unique_ptr<LockedFile>> LockedFile::open(const std::filesystem::path& path) {
  // Each further round is one in which another process replaced the file.
  for (int attempt = 0; attempt < 100; ++attempt) {
    TQC_TRY_ASSIGN(Descriptor file, open_regular(path));
    TQC_TRY_ASSIGN(const bool locked, lock(file));
    if (!locked) return Error{ErrorCode::kIo, "lock: its file system has no locks"};
    TQC_TRY_ASSIGN(const bool current, tqcache::stands_under(file, AT_FDCWD, path.string()));
    if (!current) continue;
    auto state = std::make_unique<State>();
    state->file = std::move(file);
    return std::unique_ptr<LockedFile>(new LockedFile(std::move(state)));
  }
  return busy_error();
}

std::uint64_t LockedFile::size() const { return size_of(state_->file); }

Result<void> LockedFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  return read_fully_at(state_->file, offset, out);
}

Result<void> LockedFile::write_at(std::uint64_t offset, ByteView bytes) {
  if (offset > size()) {
    return Error{ErrorCode::kInvalidArgument,
                 "byte " + std::to_string(offset) + ": written behind the end"};
  }
  return write_fully_at(state_->file, offset, bytes);
}

Result<void> LockedFile::truncate(std::uint64_t size) {
  if (size > this->size()) {
    return Error{ErrorCode::kInvalidArgument,
                 "cannot be cut to " + std::to_string(size) + " bytes: it has fewer"};
  }
  const int fd = state_->file.get();
  if (retry_interrupted([&] { return ::ftruncate(fd, static_cast<off_t>(size)); }) == 0) return {};
  return system_error("truncate", errno);
}

// fdatasync: the size is flushed with it where it changed; the times need not be.
Result<void> LockedFile::flush() { return flush_with(::fdatasync, state_->file); }

Result<bool> LockedFile::stands_under(int folder, const std::string& name) const {
  return tqcache::stands_under(state_->file, folder, name);
}

}  // namespace tqcache
