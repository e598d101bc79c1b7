// Bytes read by position, from a file or from memory.

#include <algorithm>
#include <string>

#include "tqcache/base/descriptor.h"
#include "tqcache/base/file.h"
#include "tqcache/base/file_io.h"

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

}  // namespace tqcache
