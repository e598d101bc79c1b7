#include "tqcache/format/container_writer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <utility>

#include "tqcache/format/container_format.h"
#include "tqcache/format/header.h"
#include "tqcache/format/section_writer.h"

namespace tqcache::format {
namespace {

// Where the file goes: to disk or to memory.
struct Output {
  FileEnd::Write append;
  std::function<Result<void>(ByteView)> replace_start;  // the first bytes, once all is known
};

Result<void> write_all(ContainerContent content, const WriteOptions& options, Output output) {
  Manifest& manifest = content.manifest;
  manifest.writer = options.writer.empty() ? "tqcache " TQCACHE_VERSION : options.writer;
  TQC_TRY(prepare_manifest(manifest, options));

  FileEnd end(0, std::move(output.append));
  // The header stays empty until all else is written: a file without it is none.
  TQC_TRY(end.append(std::array<std::byte, kHeaderBytes>{}));
  TQC_TRY(write_sections(content, all_sections(manifest), options, end));
  TQC_TRY_ASSIGN(const HeaderSlot slot, write_manifest(manifest, end));
  return output.replace_start(encode_slot(slot));
}

}  // namespace

Result<void> write_container(ContainerContent content, AtomicFile& file,
                             const WriteOptions& options) {
  const bool is_stream = !file.write_at(0, {});
  if (is_stream) {
    TQC_TRY_ASSIGN(const Bytes bytes, write_container_bytes(std::move(content), options));
    return file.write(bytes);
  }
  return write_all(std::move(content), options,
                   {[&](std::uint64_t, ByteView bytes) { return file.write(bytes); },
                    [&](ByteView bytes) { return file.write_at(0, bytes); }});
}

Result<void> write_container_file(ContainerContent content, AtomicFile file,
                                  const WriteOptions& options) {
  TQC_TRY(write_container(std::move(content), file, options));
  return file.commit();
}

Result<Bytes> write_container_bytes(ContainerContent content, const WriteOptions& options) {
  Bytes out;
  const auto append = [&](std::uint64_t, ByteView bytes) -> Result<void> {
    out.insert(out.end(), bytes.begin(), bytes.end());
    return {};
  };
  const auto replace_start = [&](ByteView bytes) -> Result<void> {
    std::ranges::copy(bytes, out.begin());
    return {};
  };
  TQC_TRY(write_all(std::move(content), options, {append, replace_start}));
  return out;
}

}  // namespace tqcache::format
