#include <sys/mman.h>

#include <memory>
#include <utility>

#include "tqcache/base/descriptor.h"
#include "tqcache/base/file.h"

namespace tqcache {

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  TQC_TRY_ASSIGN(const OpenedFile opened, open_for_reading(path));
  const std::size_t size = static_cast<std::size_t>(opened.size);
  if (size == 0) return MappedFile(nullptr, 0);  // mmap refuses an empty range
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, opened.file.get(), 0);
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
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<SharedBytes> map_file(const std::filesystem::path& path) {
  TQC_TRY_ASSIGN(MappedFile mapped, MappedFile::open(path));
  const auto owner = std::make_shared<const MappedFile>(std::move(mapped));
  return SharedBytes(owner, owner->bytes());
}

}  // namespace tqcache
