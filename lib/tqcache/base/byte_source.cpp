// Bytes read by position, from a file or from memory.

#include <unistd.h>

#include <algorithm>
#include <string>

#include "tqcache/base/descriptor.h"
#include "tqcache/base/file.h"

namespace tqcache {
namespace {

Result<void> check_range(std::uint64_t offset, std::uint64_t count, std::uint64_t size) {
  const std::uint64_t left = offset < size ? size - offset : 0;
  if (count <= left && offset <= size) return {};
  return Error{ErrorCode::kTruncated, "byte " + std::to_string(offset) + ": " +
                                          std::to_string(count) + " bytes wanted, " +
                                          std::to_string(left) + " left"};
}

class FileSource : public ByteSource {
 public:
  explicit FileSource(OpenedFile opened) : opened_(std::move(opened)) {}

  std::uint64_t size() const override { return opened_.size; }

  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    TQC_TRY(check_range(offset, out.size(), size()));
    while (!out.empty()) {
      const ssize_t count = retry_interrupted([&] {
        return ::pread(opened_.file.get(), out.data(), out.size(), static_cast<off_t>(offset));
      });
      if (count < 0) return system_error("byte " + std::to_string(offset) + ": read", errno);
      if (count == 0) {
        return Error{ErrorCode::kTruncated, "byte " + std::to_string(offset) +
                                                ": the file was cut short while it was read"};
      }
      out = out.subspan(static_cast<std::size_t>(count));
      offset += static_cast<std::uint64_t>(count);
    }
    return {};
  }

 private:
  OpenedFile opened_;
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
  std::unique_ptr<ByteSource> source = std::make_unique<FileSource>(std::move(opened));
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
  if (source->size() > max_bytes) {
    return Error{ErrorCode::kTooLarge, std::to_string(source->size()) + " bytes, more than the " +
                                           std::to_string(max_bytes) + " allowed"};
  }
  Bytes bytes(static_cast<std::size_t>(source->size()));
  TQC_TRY(source->read_at(0, bytes));
  return bytes;
}

}  // namespace tqcache
