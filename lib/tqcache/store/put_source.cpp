#include "tqcache/store/put_source.h"

#include <utility>

#include "tqcache/format/symbol_section.h"

namespace tqcache::store {
namespace {

bool becomes_smaller(const format::LayerInfo& layer, const format::SectionInfo& section) {
  return !section.packed || format::has_symbols(format::side_of(layer, section.side));
}

}  // namespace

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
  using enum format::Compression;
  TQC_TRY_ASSIGN(auto as_it_is, format::SectionCompressor::make(kNone, 1));
  TQC_TRY_ASSIGN(auto smaller, format::SectionCompressor::make(kPlanes, 1));
  return CacheSource(format::content_of(cache), std::move(as_it_is), std::move(smaller));
}

Result<Sha256> CacheSource::digest(std::size_t i) const {
  TQC_TRY_ASSIGN(const SharedBytes raw, content_.make_section(i));
  return sha256(raw.view());
}

Result<StoredSection> CacheSource::section(std::size_t i) const {
  TQC_TRY_ASSIGN(SharedBytes raw, content_.make_section(i));
  format::SectionInfo info = manifest().sections[i];
  const format::LayerInfo& layer = manifest().layers[static_cast<std::size_t>(info.layer)];
  Bytes compressed;
  const auto& compressor = becomes_smaller(layer, info) ? smaller_ : as_it_is_;
  compressor.prepare(layer, raw.view(), info, compressed);
  if (compressed.empty()) return StoredSection{info, std::move(raw)};
  const auto owner = std::make_shared<const Bytes>(std::move(compressed));
  return StoredSection{info, SharedBytes(owner, *owner)};
}

}  // namespace tqcache::store
