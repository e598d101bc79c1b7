#include "tqcache/format/open_container.h"

#include <string>
#include <utility>

#include "tqcache/bytes.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/content_name.h"
#include "tqcache/format/manifest_rules.h"

namespace tqcache::format {
namespace {

// Feature bits keep out readers that do not know a feature; so this reader checks the bits exactly.
Result<void> check_features(const Manifest& manifest, const HeaderSlot& slot) {
  const std::uint32_t expected = required_features(manifest);
  if (slot.required_features == expected) return {};
  return Error{ErrorCode::kCorrupt, "required features " + std::to_string(slot.required_features) +
                                        " where the manifest has " + std::to_string(expected)};
}

Result<Manifest> read_manifest(const ByteSource& source, const HeaderSlot& slot) {
  AlignedBytes bytes(slot.file_bytes - slot.manifest_offset);
  TQC_TRY(source.read_at(slot.manifest_offset, bytes));
  if (xxh3_128(bytes) != slot.manifest_checksum) {
    return Error{ErrorCode::kCorrupt, "manifest: checksum mismatch"};
  }
  TQC_TRY_ASSIGN(Manifest manifest, decode_manifest(bytes));
  TQC_TRY(check_features(manifest, slot));
  TQC_TRY(check_contents(manifest));
  TQC_TRY(check_sections(manifest, slot.manifest_offset));
  return manifest;
}

std::uint64_t total_stored_bytes(const Manifest& manifest) {
  std::uint64_t total = 0;
  for (const SectionInfo& section : manifest.sections) total += section.stored_bytes;
  return total;
}

std::uint64_t total_gap_bytes(const Manifest& manifest) {
  std::uint64_t total = 0;
  for (const GapInfo& gap : manifest.gaps) total += gap.bytes;
  return total;
}

}  // namespace

CacheFileInfo make_info(const Header& header, Manifest manifest) {
  const HeaderSlot& slot = header.slot;
  CacheFileInfo info{std::move(manifest)};
  info.version = slot.version;
  info.generation = slot.generation;
  info.required_features = slot.required_features;
  info.optional_features = slot.optional_features;
  info.file_bytes = slot.file_bytes;
  info.manifest_bytes = slot.file_bytes - slot.manifest_offset;
  info.gap_bytes = total_gap_bytes(info);
  info.trailing_bytes = header.trailing_bytes;
  info.damage = header.damage;
  info.padding_bytes =
      slot.manifest_offset - kHeaderBytes - total_stored_bytes(info) - info.gap_bytes;
  return info;
}

Result<OpenContainer> open_container(const ByteSource& source) {
  TQC_TRY_ASSIGN(Header header, read_header(source));
  TQC_TRY_ASSIGN(Manifest manifest, read_manifest(source, header.slot));
  CacheFileInfo info = make_info(header, std::move(manifest));
  return OpenContainer{std::move(info), std::move(header)};
}

Result<void> check_content_name(const Manifest& manifest) {
  if (content_name(manifest) == manifest.content_name) return {};
  return Error{ErrorCode::kCorrupt, "manifest: content name mismatch"};
}

}  // namespace tqcache::format
