#include "tqcache/format/open_container.h"

#include <utility>

#include "tqcache/base/aligned.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/content_name.h"
#include "tqcache/format/header.h"
#include "tqcache/format/manifest_rules.h"

namespace tqcache::format {
namespace {

Result<Manifest> read_manifest(const ByteSource& source, const HeaderSlot& slot) {
  AlignedBytes bytes(slot.file_bytes - slot.manifest_offset);
  TQC_TRY(source.read_at(slot.manifest_offset, bytes));
  if (xxh3_128(bytes) != slot.manifest_checksum) {
    return Error{ErrorCode::kCorrupt, "manifest: checksum mismatch"};
  }
  TQC_TRY_ASSIGN(Manifest manifest, decode_manifest(bytes));
  TQC_TRY(check_contents(manifest));
  TQC_TRY(check_sections(manifest, slot.manifest_offset));
  return manifest;
}

std::uint64_t total_stored_bytes(const Manifest& manifest) {
  std::uint64_t total = 0;
  for (const SectionInfo& section : manifest.sections) total += section.stored_bytes;
  return total;
}

CacheFileInfo make_info(const HeaderSlot& slot, Manifest manifest) {
  CacheFileInfo info{std::move(manifest)};
  info.version = slot.version;
  info.generation = slot.generation;
  info.required_features = slot.required_features;
  info.optional_features = slot.optional_features;
  info.file_bytes = slot.file_bytes;
  info.manifest_bytes = slot.file_bytes - slot.manifest_offset;
  info.padding_bytes = slot.manifest_offset - kHeaderBytes - total_stored_bytes(info);
  return info;
}

}  // namespace

Result<OpenContainer> open_container(const ByteSource& source) {
  TQC_TRY_ASSIGN(Header header, read_header(source));
  TQC_TRY_ASSIGN(Manifest manifest, read_manifest(source, header.slot));
  return OpenContainer{make_info(header.slot, std::move(manifest)), std::move(header.damage)};
}

Result<void> check_content_name(const Manifest& manifest) {
  if (content_name(manifest) == manifest.content_name) return {};
  return Error{ErrorCode::kCorrupt, "manifest: content name mismatch"};
}

}  // namespace tqcache::format
