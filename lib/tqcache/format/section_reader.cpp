#include "tqcache/format/section_reader.h"

#include <algorithm>
#include <array>
#include <span>

#include "tqcache/base/hash.h"
#include "tqcache/format/container_format.h"

namespace tqcache::format {
namespace {

Result<void> check_stored(const SectionInfo& section, ByteView stored) {
  if (xxh3_128(stored) == section.checksum) return {};
  return Error{ErrorCode::kCorrupt, "checksum mismatch"};
}

}  // namespace

std::size_t batch_end(const Manifest& manifest, std::size_t first) {
  std::uint64_t bytes = 0;
  std::size_t end = first;
  while (end < manifest.sections.size()) {
    bytes += manifest.sections[end].raw_bytes;
    if (bytes > kBatchBytes && end > first) break;
    ++end;
  }
  return end;
}

std::uint64_t total_raw_bytes(const Manifest& manifest) {
  std::uint64_t total = 0;
  for (const SectionInfo& section : manifest.sections) total += section.raw_bytes;
  return total;
}

Result<AlignedBytes> read_section(const ByteSource& source, const SectionInfo& section,
                                  const Decompressor& decompressor) {
  AlignedBytes stored(section.stored_bytes);
  TQC_TRY(source.read_at(section.file_offset, stored));
  TQC_TRY(check_stored(section, stored));
  if (section.compression == Compression::kNone) return stored;

  TQC_TRY(Decompressor::check_frame(stored, section.raw_bytes));
  AlignedBytes raw(section.raw_bytes);
  TQC_TRY(decompressor.decompress(stored, raw));
  return raw;
}

Result<void> check_padding(const ByteSource& source, const Manifest& manifest, std::size_t index) {
  const SectionInfo& section = manifest.sections[index];
  const std::uint64_t begin = section.file_offset + section.stored_bytes;
  std::array<std::byte, kSectionAlignment> padding{};
  const auto bytes = std::span(padding).first(align_section(begin) - begin);
  TQC_TRY(source.read_at(begin, bytes));
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  if (std::ranges::all_of(bytes, is_zero)) return {};
  return Error{ErrorCode::kCorrupt, "padding behind it is not zero"};
}

}  // namespace tqcache::format
