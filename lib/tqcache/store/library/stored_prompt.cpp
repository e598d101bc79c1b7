#include <cstdint>
#include <utility>

#include "tqcache/format/container_writer.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/store/library/library.h"

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

std::optional<SharedBytes> StoredPrompt::in_memory(std::size_t section) const {
  const SharedBytes& stored = stored_[section];
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(stored.data()) % kAlignment == 0;
  if (manifest_.sections[section].compression != format::Compression::kNone || !is_aligned) {
    return std::nullopt;
  }
  return stored;
}

Result<void> write_stored(const StoredPrompt& prompt, AtomicFile& file) {
  return format::write_stored_sections(
      prompt.manifest(), [&](std::size_t i) { return prompt.stored(i).view(); }, file);
}

}  // namespace tqcache::store
