#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "tqcache/base/file_io.h"
#include "tqcache/base/posix.h"
#include "tqcache/base/system.h"
#include "tqcache/file.h"

namespace tqcache {

Result<Descriptor> open_scratch() {
  std::error_code no_folder;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(no_folder);
  if (!no_folder) {
    Descriptor file(retry_interrupted([&] { return open_nameless(folder); }));
    if (file.is_open()) return file;
  }
  Descriptor memory(open_in_memory());
  if (!memory.is_open()) return system_error("a temporary file", errno);
  return memory;
}

struct ScratchFile::State {
  Descriptor file;
};

ScratchFile::ScratchFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
ScratchFile::~ScratchFile() = default;

Result<std::unique_ptr<ScratchFile>> ScratchFile::create() {
  TQC_TRY_ASSIGN(Descriptor file, open_scratch());
  return std::unique_ptr<ScratchFile>(
      new ScratchFile(std::make_unique<State>(State{std::move(file)})));
}

std::uint64_t ScratchFile::size() const { return size_of(state_->file); }

Result<void> ScratchFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  return read_fully_at(state_->file, offset, out);
}

Result<void> ScratchFile::append(ByteView bytes) {
  return put_all(bytes, [&](ByteView rest, std::size_t) {
    return posix::write(state_->file.get(), rest.data(), rest.size());
  });
}

}  // namespace tqcache
