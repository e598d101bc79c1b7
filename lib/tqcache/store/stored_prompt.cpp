#include <utility>

#include "tqcache/format/container_writer.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/store/library.h"

namespace tqcache::store {

StoredPrompt::StoredPrompt(format::Manifest manifest, std::vector<SharedBytes> stored,
                           std::uint64_t blob_bytes)
    : manifest_(std::move(manifest)), stored_(std::move(stored)), blob_bytes_(blob_bytes) {}

Result<void> StoredPrompt::read(std::size_t section, AlignedBytes& raw) const {
  const format::SectionInfo& info = manifest_.sections[section];
  const ByteView stored = stored_[section].view();
  if (info.compression == format::Compression::kNone) {
    raw.assign(stored.begin(), stored.end());
    return {};
  }
  auto unpacked = format::unpack_stored(manifest_, info, stored, decompressor_, raw);
  if (unpacked) return {};
  return in_context(format::section_place(section, info), std::move(unpacked).error());
}

Result<void> write_stored(const StoredPrompt& prompt, AtomicFile& file) {
  return format::write_stored_sections(
      prompt.manifest(), [&](std::size_t i) { return prompt.stored(i).view(); }, file);
}

}  // namespace tqcache::store
