// ByteSource, MappedFile and LockedFile.

#include "tqcache/file.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "tqcache/base/file_io.h"
#include "tqcache/base/posix.h"
#include "tqcache/base/system.h"

namespace tqcache {

namespace {

class FileSource : public ByteSource {
 public:
  explicit FileSource(Descriptor file) : file_(std::move(file)) {}

  std::uint64_t size() const override { return size_of(file_); }

  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    return read_fully_at(file_, offset, out);
  }

 private:
  Descriptor file_;
};

class MemorySource : public ByteSource {
 public:
  explicit MemorySource(SharedBytes bytes) : bytes_(std::move(bytes)) {}

  std::uint64_t size() const override { return bytes_.size(); }

  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    TQC_TRY(check_range(offset, out.size(), size()));
    std::ranges::copy(bytes_.view().subspan(static_cast<std::size_t>(offset), out.size()),
                      out.begin());
    return {};
  }

 private:
  SharedBytes bytes_;
};

}  // namespace

Result<std::unique_ptr<ByteSource>> open_file(const std::filesystem::path& path) {
  TQC_TRY_ASSIGN(OpenedFile opened, open_for_reading(path));
  std::unique_ptr<ByteSource> source = std::make_unique<FileSource>(std::move(opened.file));
  return source;
}

std::unique_ptr<ByteSource> memory_source(Bytes bytes) {
  const auto owner = std::make_shared<const Bytes>(std::move(bytes));
  return memory_source(SharedBytes(owner, *owner));
}

std::unique_ptr<ByteSource> memory_source(SharedBytes bytes) {
  return std::make_unique<MemorySource>(std::move(bytes));
}

Result<Bytes> read_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, open_file(path));
  const std::uint64_t size = source->size();
  if (size > max_bytes) {
    return Error{ErrorCode::kTooLarge, std::to_string(size) + " bytes, more than the " +
                                           std::to_string(max_bytes) + " allowed"};
  }
  Bytes bytes(static_cast<std::size_t>(size));
  TQC_TRY(source->read_at(0, bytes));
  return bytes;
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  TQC_TRY_ASSIGN(const OpenedFile opened, open_for_reading(path));
  const std::size_t size = static_cast<std::size_t>(opened.size);
  if (size == 0) return MappedFile(nullptr, 0);  // mmap refuses an empty range
  void* data = posix::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, opened.file.get(), 0);
  if (data == MAP_FAILED) return system_error("map", errno);
  return MappedFile(static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) posix::munmap(const_cast<std::byte*>(data_), size_);
}

Result<SharedBytes> map_file(const std::filesystem::path& path) {
  TQC_TRY_ASSIGN(MappedFile mapped, MappedFile::open(path));
  const auto owner = std::make_shared<const MappedFile>(std::move(mapped));
  return SharedBytes(owner, owner->bytes());
}

namespace {

Result<Descriptor> open_regular(const std::filesystem::path& path) {
  // Without O_NONBLOCK opening a device could block before it is refused.
  constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  Descriptor file(retry_interrupted([&] { return posix::open(path.c_str(), kFlags); }));
  if (!file.is_open()) {
    if (errno == ENOENT || errno == ENOTDIR) return Error{ErrorCode::kNotFound, "no such file"};
    if (errno == ELOOP) return Error{ErrorCode::kIo, "is a symbolic link"};
    if (errno == EISDIR) return Error{ErrorCode::kIo, "is a folder, not a file"};
    return system_error("open", errno);
  }
  posix::Stat info{};
  if (posix::fstat(file.get(), &info) != 0) return system_error("stat", errno);
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
  // The loop repeats only if another process replaced the file.
  for (int attempt = 0; attempt < 100; ++attempt) {
    TQC_TRY_ASSIGN(Descriptor file, open_regular(path));
    TQC_TRY_ASSIGN(const bool locked, lock(file));
    if (!locked) return Error{ErrorCode::kIo, "lock: its file system has no locks"};
    TQC_TRY_ASSIGN(const bool current, tqcache::is_named(file, AT_FDCWD, path.string()));
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
  if (retry_interrupted([&] { return posix::ftruncate(fd, static_cast<posix::Offset>(size)); }) ==
      0)
    return {};
  return system_error("truncate", errno);
}

// It also flushes a changed size; the times are not needed.
Result<void> LockedFile::flush() { return flush_with(flush_data, state_->file); }

Result<bool> LockedFile::is_named(int folder, const std::string& name) const {
  return tqcache::is_named(state_->file, folder, name);
}

}  // namespace tqcache
