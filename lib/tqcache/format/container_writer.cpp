#include "tqcache/format/container_writer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
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

std::string this_writer() { return "tqcache " TQCACHE_VERSION; }

using WriteSections = std::function<Result<void>(FileEnd& end)>;

// The header stays empty until all else is written: a file without it is none.
Result<void> write_around(Manifest& manifest, const WriteSections& write_sections, Output output) {
  FileEnd end(0, std::move(output.append));
  TQC_TRY(end.append(std::array<std::byte, kHeaderBytes>{}));
  TQC_TRY(write_sections(end));
  TQC_TRY_ASSIGN(const HeaderSlot slot, write_manifest(manifest, end));
  return output.replace_start(encode_slot(slot));
}

Result<void> write_all(ContainerContent content, const WriteOptions& options, Output output) {
  Manifest& manifest = content.manifest;
  manifest.writer = options.writer.empty() ? this_writer() : options.writer;
  TQC_TRY(prepare_manifest(manifest, options));
  const auto write = [&](FileEnd& end) {
    return write_sections(content, all_sections(manifest), options, end);
  };
  return write_around(manifest, write, std::move(output));
}

Output output_to(AtomicFile& file) {
  return {[&](std::uint64_t, ByteView bytes) { return file.write(bytes); },
          [&](ByteView bytes) { return file.write_at(0, bytes); }};
}

Output output_to(Bytes& out) {
  return {[&](std::uint64_t, ByteView bytes) -> Result<void> {
            out.insert(out.end(), bytes.begin(), bytes.end());
            return {};
          },
          [&](ByteView bytes) -> Result<void> {
            std::ranges::copy(bytes, out.begin());
            return {};
          }};
}

// A stream is written once all is there.
bool is_stream(AtomicFile& file) { return !file.write_at(0, {}); }

}  // namespace

Result<void> write_container(ContainerContent content, AtomicFile& file,
                             const WriteOptions& options) {
  if (!is_stream(file)) return write_all(std::move(content), options, output_to(file));
  TQC_TRY_ASSIGN(const Bytes bytes, write_container_bytes(std::move(content), options));
  return file.write(bytes);
}

Result<void> write_container_file(ContainerContent content, AtomicFile file,
                                  const WriteOptions& options) {
  TQC_TRY(write_container(std::move(content), file, options));
  return file.commit();
}

Result<Bytes> write_container_bytes(ContainerContent content, const WriteOptions& options) {
  Bytes out;
  TQC_TRY(write_all(std::move(content), options, output_to(out)));
  return out;
}

Result<void> write_stored_sections(Manifest manifest, const StoredSections& stored,
                                   AtomicFile& file) {
  if (manifest.writer.empty()) manifest.writer = this_writer();
  manifest.gaps.clear();
  const Sha256 expected = manifest.content_name;
  const auto write = [&](FileEnd& end) -> Result<void> {
    for (std::size_t i = 0; i < manifest.sections.size(); ++i) {
      TQC_TRY_ASSIGN(manifest.sections[i].file_offset, end.append_aligned(stored(i)));
    }
    return {};
  };
  Bytes bytes;
  const bool in_memory = is_stream(file);
  TQC_TRY(write_around(manifest, write, in_memory ? output_to(bytes) : output_to(file)));
  if (manifest.content_name != expected) {
    return Error{ErrorCode::kCorrupt, "the content name is another than it should be"};
  }
  return in_memory ? file.write(bytes) : Result<void>();
}

}  // namespace tqcache::format
