#include "tqcache/store/library/put_source.h"

#include <utility>

namespace tqcache::store {

Result<FileSource> FileSource::open(const ByteSource& file) {
  TQC_TRY_ASSIGN(format::CacheFileInfo info, format::read_cache_info(file));
  return FileSource(file, std::move(info));
}

Result<StoredSection> FileSource::section(std::size_t i) const {
  const format::SectionInfo& info = info_.sections[i];
  const BlobMemory::Room room = memory_->take(info.stored_bytes);
  auto read = file_->read_at(info.file_offset, room.bytes);
  if (read) read = format::check_stored(info, room.bytes);
  if (!read) return in_context(format::section_place(i, info), std::move(read).error());
  return StoredSection{info, room.shared()};
}

Result<CacheSource> CacheSource::open(const cache::Cache& cache) {
  TQC_TRY(cache::validate(cache));
  TQC_TRY_ASSIGN(SectionStorer storer, SectionStorer::make());
  return CacheSource(format::content_of(cache), std::move(storer));
}

Result<Sha256> CacheSource::digest(std::size_t i) const {
  TQC_TRY_ASSIGN(const SharedBytes raw, content_.make_section(i));
  return sha256(raw.view());
}

Result<StoredSection> CacheSource::section(std::size_t i) const {
  TQC_TRY_ASSIGN(SharedBytes raw, content_.make_section(i));
  const format::SectionInfo& info = manifest().sections[i];
  const cache::LayerDesc& layer = manifest().layers[static_cast<std::size_t>(info.layer)];
  return storer_.store(layer, info, std::move(raw));
}

}  // namespace tqcache::store
