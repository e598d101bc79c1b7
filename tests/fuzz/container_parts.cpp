#include "fuzz/container_parts.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fuzz/mutate.h"
#include "tqcache/bytes.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/format/checksum_bytes.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/content_name.h"
#include "tqcache/format/header.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/format/sections/plane_section.h"
#include "tqcache/hash.h"

namespace tqcache::fuzz {
namespace {

using format::GapInfo;
using format::kHeaderBytes;
using format::kSlotBytes;
using format::Manifest;
using format::SectionInfo;

constexpr std::uint64_t kMostRawBytes = 1 << 18;  // of a section that is laid out
constexpr std::size_t kMostSections = 24;

// Fields of a header slot, docs/reference/format.md §3.
constexpr std::size_t kGenerationAt = 12;
constexpr std::size_t kManifestOffsetAt = 24;
constexpr std::size_t kFileBytesAt = 32;
constexpr std::size_t kManifestChecksumAt = 40;
constexpr std::size_t kSlotChecksumAt = 56;

template <class T>
T value_at(ByteView file, std::size_t offset) {
  T value;
  std::memcpy(&value, file.data() + offset, sizeof(T));
  return value;
}

template <class T>
void put(Bytes& file, std::size_t offset, const T& value) {
  std::memcpy(file.data() + offset, &value, sizeof(T));
}

// Where a slot says that the manifest is, if that lies in the file.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

std::optional<Range> manifest_range(ByteView file, std::size_t slot) {
  if (file.size() < kHeaderBytes) return {};
  const Range range{value_at<std::uint64_t>(file, slot * kSlotBytes + kManifestOffsetAt),
                    value_at<std::uint64_t>(file, slot * kSlotBytes + kFileBytesAt)};
  const bool is_inside =
      range.begin >= kHeaderBytes && range.begin < range.end && range.end <= file.size();
  return is_inside ? std::optional(range) : std::nullopt;
}

// The slot that counts if both are whole.
std::size_t newer_slot(ByteView file) {
  if (file.size() < kHeaderBytes) return 0;
  const auto first = value_at<std::uint32_t>(file, kGenerationAt);
  const auto second = value_at<std::uint32_t>(file, kSlotBytes + kGenerationAt);
  return second > first ? 1 : 0;
}

Result<Manifest> decode_at(ByteView file, Range range) {
  const ByteView bytes = file.subspan(range.begin, range.end - range.begin);
  const AlignedBytes aligned(bytes.begin(), bytes.end());
  return format::decode_manifest(aligned);
}

// Puts a digest wherever the manifest has the old one: a digest stands for its content.
template <class Digest>
void replace_digest(Bytes& file, Range range, const Digest& old_digest, const Digest& new_digest) {
  if (old_digest == new_digest) return;
  const auto end = file.begin() + static_cast<std::ptrdiff_t>(range.end);
  auto at = file.begin() + static_cast<std::ptrdiff_t>(range.begin);
  while ((at = std::search(at, end, old_digest.begin(), old_digest.end())) != end) {
    at = std::ranges::copy(new_digest, at).out;
  }
}

std::optional<ByteView> bytes_at(ByteView file, std::uint64_t offset, std::uint64_t n) {
  if (offset > file.size() || n > file.size() - offset) return {};
  return file.subspan(offset, n);
}

// Of what a damaged table names: a section may be of no layer, and of no size that planes have.
std::optional<std::size_t> width_of(const Manifest& manifest, const SectionInfo& section) {
  if (static_cast<std::uint64_t>(section.layer) >= manifest.layers.size()) return {};
  const auto& layer = manifest.layers[static_cast<std::size_t>(section.layer)];
  const bool is_array = section.tensor == cache::TensorKind::kArray;
  const std::size_t n_arrays = cache::arrays_of(layer, {}).size();
  if (is_array && static_cast<std::uint64_t>(section.block) >= n_arrays) return {};
  if (!is_array && cache::attention_of(layer) == nullptr) return {};
  const std::size_t width = cache::number_bytes(layer, cache::key_of(section));
  return section.raw_bytes % width == 0 ? std::optional(width) : std::nullopt;
}

bool decompress(const Manifest& manifest, const SectionInfo& section, ByteView stored,
                std::span<std::byte> raw) {
  static const format::Decompressor decompressor;
  if (section.compression == format::Compression::kZstd) {
    return format::Decompressor::check_frame(stored, raw.size()) &&
           decompressor.decompress(stored, raw);
  }
  const auto width = width_of(manifest, section);
  return width && format::check_planes(stored, raw.size(), *width) &&
         format::decompress_planes(decompressor, stored, *width, raw);
}

std::optional<Sha256> raw_digest(const Manifest& manifest, const SectionInfo& section,
                                 ByteView stored) {
  if (section.compression == format::Compression::kNone) return sha256(stored);
  if (section.raw_bytes > kMostRawBytes) return {};
  Bytes raw(section.raw_bytes);
  if (!decompress(manifest, section, stored, raw)) return {};
  return sha256(raw);
}

void repair_section(Bytes& file, Range range, const Manifest& manifest, SectionInfo& section) {
  const auto stored = bytes_at(file, section.file_offset, section.stored_bytes);
  if (!stored) return;
  const Checksum128 checksum = xxh3_128(*stored);
  const auto digest = raw_digest(manifest, section, *stored);
  replace_digest(file, range, format::to_bytes(section.checksum), format::to_bytes(checksum));
  section.checksum = checksum;
  if (!digest) return;
  replace_digest(file, range, section.raw_sha256, *digest);
  section.raw_sha256 = *digest;
}

void repair_gap(Bytes& file, Range range, GapInfo& gap) {
  const auto bytes = bytes_at(file, gap.file_offset, gap.bytes);
  if (!bytes) return;
  const Checksum128 checksum = xxh3_128(*bytes);
  replace_digest(file, range, format::to_bytes(gap.checksum), format::to_bytes(checksum));
}

void repair_manifest(Bytes& file, Range range) {
  auto manifest = decode_at(file, range);
  if (!manifest) return;
  for (SectionInfo& section : manifest->sections) repair_section(file, range, *manifest, section);
  for (GapInfo& gap : manifest->gaps) repair_gap(file, range, gap);
  replace_digest(file, range, manifest->content_name, format::content_name(*manifest));
}

void repair_slot(Bytes& file, std::size_t slot) {
  const std::size_t at = slot * kSlotBytes;
  if (const auto range = manifest_range(file, slot)) {
    const ByteView manifest = ByteView(file).subspan(range->begin, range->end - range->begin);
    put(file, at + kManifestChecksumAt, format::to_bytes(xxh3_128(manifest)));
  }
  put(file, at + kSlotChecksumAt, xxh3_64(ByteView(file).subspan(at, kSlotChecksumAt)));
}

bool is_empty_slot(ByteView file, std::size_t slot) {
  return std::ranges::all_of(file.subspan(slot * kSlotBytes, kSlotBytes),
                             [](std::byte byte) { return byte == std::byte{0}; });
}

// The sections of some layers, without their places; nullopt when they are many or large.
std::optional<std::vector<SectionInfo>> plan(const Manifest& manifest) {
  if (cache::count_blocks(manifest.layers, manifest.n_tokens()) > kMostSections) return {};
  std::vector<SectionInfo> sections;
  for (const auto& key : cache::plan_blocks(manifest.layers, manifest.n_tokens())) {
    SectionInfo section;
    section.layer = key.layer;
    section.tensor = key.tensor;
    section.block = key.block;
    const auto& layer = manifest.layers[static_cast<std::size_t>(key.layer)];
    section.packed = key.tensor != cache::TensorKind::kArray &&
                     cache::is_quantized(cache::tensor_of(layer, key.tensor)) &&
                     cache::tokens_in_block(manifest.n_tokens(), key.block) == cache::kTokenBlock;
    section.raw_bytes = cache::raw_bytes(layer, key, section.packed, manifest.n_tokens());
    if (section.raw_bytes > kMostRawBytes) return {};
    sections.push_back(section);
  }
  return sections;
}

Bytes make_content(Chance& chance, std::uint64_t n) {
  Bytes content(n);
  const std::uint64_t kind = chance.below(4);
  if (kind == 0 && n <= 512) {
    for (std::byte& byte : content) byte = static_cast<std::byte>(chance.bits());
  } else if (kind == 1) {
    std::ranges::fill(content, static_cast<std::byte>(chance.bits()));
  }
  return content;
}

// Gives how it was done, in `out`, if it makes the section shorter.
format::Compression compress(Chance& chance, const cache::LayerDesc& layer,
                             const SectionInfo& section, ByteView raw, Bytes& out) {
  static const format::Compressor zstd = format::Compressor::make(1).value();
  static const format::Compressor for_planes = format::Compressor::for_planes();
  if (raw.size() <= 128 && !chance.one_in(2)) return format::Compression::kNone;
  if (!section.packed && chance.one_in(2)) {
    const std::size_t width = cache::number_bytes(layer, cache::key_of(section));
    return format::compress_planes(for_planes, raw, width, out) ? format::Compression::kPlanes
                                                                : format::Compression::kNone;
  }
  return zstd.compress(raw, out) ? format::Compression::kZstd : format::Compression::kNone;
}

// Fills in what the bytes decide, and puts them into the file, compressed if that makes it shorter.
void add_section(Chance& chance, Bytes& file, const cache::LayerDesc& layer, SectionInfo& section) {
  const Bytes raw = make_content(chance, section.raw_bytes);
  Bytes compressed;
  section.compression = compress(chance, layer, section, raw, compressed);
  const Bytes& stored = section.compression == format::Compression::kNone ? raw : compressed;
  section.file_offset = file.size();
  section.stored_bytes = stored.size();
  section.checksum = xxh3_128(stored);
  section.raw_sha256 = sha256(raw);
  file.insert(file.end(), stored.begin(), stored.end());
  file.resize(format::align_section(file.size()));
}

GapInfo add_gap(Chance& chance, Bytes& file) {
  const std::size_t begin = file.size();
  const std::size_t n = 1 + chance.below(130);
  file.resize(begin + n, static_cast<std::byte>(chance.bits()));
  const GapInfo gap{begin, n, xxh3_128(ByteView(file).subspan(begin, n))};
  file.resize(format::align_section(file.size()));
  return gap;
}

}  // namespace

void repair(Bytes& file) {
  if (file.size() < kHeaderBytes) return;
  for (std::size_t slot = 0; slot < format::kSlotCount; ++slot) {
    if (is_empty_slot(file, slot)) continue;
    if (const auto range = manifest_range(file, slot)) repair_manifest(file, *range);
    repair_slot(file, slot);
  }
}

std::optional<Manifest> manifest_of(ByteView file) {
  const auto range = manifest_range(file, newer_slot(file));
  if (!range) return {};
  auto manifest = decode_at(file, *range);
  if (!manifest) return {};
  return std::move(manifest).value();
}

void replace_manifest(Bytes& file, const Manifest& manifest) {
  const std::size_t slot = newer_slot(file);
  const auto range = manifest_range(file, slot);
  const auto bytes = format::encode_manifest(manifest);
  if (!range || !bytes) return;
  file.resize(range->begin);
  file.insert(file.end(), bytes->begin(), bytes->end());
  put(file, slot * kSlotBytes + kFileBytesAt, std::uint64_t{file.size()});
}

std::optional<Bytes> lay_out(Chance& chance, Manifest manifest) {
  if (!format::check_contents(manifest)) return {};
  auto sections = plan(manifest);
  if (!sections) return {};
  manifest.sections = std::move(*sections);
  const std::size_t n_gaps = std::min<std::size_t>(manifest.gaps.size(), 4);
  manifest.gaps.clear();
  Bytes file(kHeaderBytes);
  for (SectionInfo& section : manifest.sections) {
    if (manifest.gaps.size() < n_gaps && chance.one_in(2)) {
      manifest.gaps.push_back(add_gap(chance, file));
    }
    add_section(chance, file, manifest.layers[static_cast<std::size_t>(section.layer)], section);
  }
  manifest.content_name = format::content_name(manifest);
  const auto bytes = format::encode_manifest(manifest);
  if (!bytes) return {};
  format::HeaderSlot slot;
  slot.required_features = format::required_features(manifest);
  slot.manifest_offset = file.size();
  file.insert(file.end(), bytes->begin(), bytes->end());
  slot.file_bytes = file.size();
  slot.manifest_checksum = xxh3_128(*bytes);
  slot.generation = manifest.gaps.empty() ? 1 : 2;
  std::ranges::copy(
      format::encode_slot(slot),
      file.begin() + static_cast<std::ptrdiff_t>(kSlotBytes * format::slot_index(slot.generation)));
  return file;
}

}  // namespace tqcache::fuzz
