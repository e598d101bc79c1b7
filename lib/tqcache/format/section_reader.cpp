#include "tqcache/format/section_reader.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include "tqcache/base/hash.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/sections/plane_section.h"
#include "tqcache/format/section_plan.h"
#include "tqcache/format/sections/symbol_section.h"

namespace tqcache::format {

std::uint64_t total_raw_bytes(const Manifest& manifest) {
  std::uint64_t total = 0;
  for (const SectionInfo& section : manifest.sections) total += section.raw_bytes;
  return total;
}

Result<void> check_stored(const SectionInfo& section, ByteView stored) {
  if (xxh3_128(stored) == section.checksum) return {};
  return Error{ErrorCode::kCorrupt, "checksum mismatch"};
}

Result<void> unpack_stored(const Manifest& manifest, const SectionInfo& section, ByteView stored,
                           const Decompressor& decompressor, AlignedBytes& raw) {
  const auto layer = static_cast<std::size_t>(section.layer);
  if (section.compression == Compression::kPlanes) {
    const std::size_t width = number_bytes(manifest.layers[layer], key_of(section));
    TQC_TRY(check_planes(stored, section.raw_bytes, width));
    raw.resize(section.raw_bytes);
    return decompress_planes(decompressor, stored, width, raw);
  }
  if (section.compression == Compression::kSymbols) {
    const SymbolShape shape = symbol_shape(manifest.layers[layer], section);
    TQC_TRY(check_symbols(stored, shape));
    raw.resize(section.raw_bytes);
    return decompress_symbols(decompressor, stored, shape, raw);
  }
  TQC_TRY(Decompressor::check_frame(stored, section.raw_bytes));
  raw.resize(section.raw_bytes);
  return decompressor.decompress(stored, raw);
}

Result<void> read_section(const ByteSource& source, const Manifest& manifest,
                          const SectionInfo& section, const Decompressor& decompressor,
                          AlignedBytes& raw) {
  const bool is_stored = section.compression == Compression::kNone;
  AlignedBytes compressed;
  AlignedBytes& stored = is_stored ? raw : compressed;
  stored.resize(section.stored_bytes);
  TQC_TRY(source.read_at(section.file_offset, stored));
  TQC_TRY(check_stored(section, stored));
  if (is_stored) return {};
  return unpack_stored(manifest, section, stored, decompressor, raw);
}

Result<void> check_padding(const ByteSource& source, const Manifest& manifest, std::size_t index) {
  const SectionInfo& section = manifest.sections[index];
  const std::uint64_t begin = section.file_offset + section.stored_bytes;
  if (align_section(begin) == begin) return {};
  std::array<std::byte, kSectionAlignment> padding{};
  const auto bytes = std::span(padding).first(align_section(begin) - begin);
  TQC_TRY(source.read_at(begin, bytes));
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  if (std::ranges::all_of(bytes, is_zero)) return {};
  return Error{ErrorCode::kCorrupt, "padding behind it is not zero"};
}

Result<void> check_largest(const Manifest& manifest, std::uint64_t max_bytes) {
  for (std::size_t i = 0; i < manifest.sections.size(); ++i) {
    const SectionInfo& section = manifest.sections[i];
    if (section.raw_bytes <= max_bytes) continue;
    return Error{ErrorCode::kTooLarge, section_place(i, section) + ": " +
                                           std::to_string(section.raw_bytes) + " bytes, " +
                                           std::to_string(max_bytes) + " are allowed"};
  }
  return {};
}

SectionReader::SectionReader(const ByteSource& source, CacheFileInfo info, TokenCut cut)
    : source_(&source),
      info_(std::move(info)),
      cut_(std::move(cut)),
      decompressor_(std::make_unique<const Decompressor>()) {}

Result<SectionReader> SectionReader::open(const ByteSource& source,
                                          std::optional<std::int64_t> first_tokens) {
  TQC_TRY_ASSIGN(CacheFileInfo info, read_cache_info(source));
  TQC_TRY_ASSIGN(TokenCut cut, TokenCut::make(info, first_tokens.value_or(info.n_tokens())));
  return SectionReader(source, std::move(info), std::move(cut));
}

Result<void> SectionReader::read(std::size_t index, AlignedBytes& raw) const {
  if (!cut_.cuts(index)) return read_whole(index, section(index), raw);
  AlignedBytes whole;
  TQC_TRY(read_whole(index, cut_.in_file(index), whole));
  raw = cut_.cut(index, std::move(whole));
  return {};
}

Result<void> SectionReader::read_whole(std::size_t index, const SectionInfo& section,
                                       AlignedBytes& raw) const {
  Result<void> result = read_section(*source_, info_, section, *decompressor_, raw);
  if (result) result = check_padding(*source_, info_, index);
  if (!result) return in_context(section_place(index, section), std::move(result).error());
  return {};
}

Result<void> SectionReader::check_in_place(std::size_t index, ByteView stored,
                                           bool checksum) const {
  Result<void> result;
  if (checksum) result = check_stored(section(index), stored);
  if (result) result = check_padding(*source_, info_, index);
  if (!result) return in_context(section_place(index, section(index)), std::move(result).error());
  return {};
}

}  // namespace tqcache::format
