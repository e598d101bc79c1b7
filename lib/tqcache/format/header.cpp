#include "tqcache/format/header.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <span>
#include <utility>

#include "tqcache/base/bytes.h"
#include "tqcache/format/checksum_bytes.h"

namespace tqcache::format {
namespace {

using HeaderBytes = std::array<std::byte, kHeaderBytes>;
using SlotView = std::span<const std::byte, kSlotBytes>;

constexpr std::size_t kSlotChecksumOffset = kSlotBytes - sizeof(std::uint64_t);
constexpr std::size_t kNameBytes = 4;  // "TQKV", the part of the magic that survives as text

Error corrupt(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }

bool begins_with(ByteView bytes, ByteView prefix) {
  return bytes.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), bytes.begin());
}

SlotView slot_view(const HeaderBytes& header, std::size_t index) {
  return SlotView(header.data() + index * kSlotBytes, kSlotBytes);
}

bool is_empty(SlotView bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

Error bad_magic(SlotView bytes) {
  if (begins_with(bytes, ByteView(kMagic).first(kNameBytes))) {
    return corrupt("magic bytes damaged, as by a transfer as text");
  }
  return corrupt("not a .tqkv file");
}

// Requires: bytes hold the magic.
Result<HeaderSlot> parse_fields(SlotView bytes) {
  ByteReader in(bytes);
  HeaderSlot slot;
  TQC_TRY(in.take(kMagic.size()));
  TQC_TRY_ASSIGN(slot.version, in.read<std::uint32_t>());
  TQC_TRY_ASSIGN(slot.generation, in.read<std::uint32_t>());
  TQC_TRY_ASSIGN(slot.required_features, in.read<std::uint32_t>());
  TQC_TRY_ASSIGN(slot.optional_features, in.read<std::uint32_t>());
  TQC_TRY_ASSIGN(slot.manifest_offset, in.read<std::uint64_t>());
  TQC_TRY_ASSIGN(slot.file_bytes, in.read<std::uint64_t>());
  TQC_TRY_ASSIGN(const ByteView checksum, in.take(sizeof(ChecksumBytes)));
  slot.manifest_checksum = checksum_from_bytes(checksum.first<sizeof(ChecksumBytes)>());
  return slot;
}

// Magic, checksum and place: what makes a slot whole, whatever its version. The magic and the
// last 8 bytes stand where they are in every version to come.
Result<HeaderSlot> parse_slot(SlotView bytes, std::size_t index) {
  if (!begins_with(bytes, kMagic)) return bad_magic(bytes);
  ByteReader checksum(bytes.subspan(kSlotChecksumOffset));
  TQC_TRY_ASSIGN(const auto stored, checksum.read<std::uint64_t>());
  if (stored != xxh3_64(bytes.first(kSlotChecksumOffset))) return corrupt("checksum mismatch");
  TQC_TRY_ASSIGN(const HeaderSlot slot, parse_fields(bytes));
  // Only slot 0 holds odd generations, so that no slot passes for the other.
  if (slot.generation % kSlotCount != (index + 1) % kSlotCount || slot.generation == 0) {
    return corrupt("generation " + std::to_string(slot.generation) + " stands in the wrong slot");
  }
  return slot;
}

std::string slot_place(std::size_t index) { return "header slot " + std::to_string(index); }

// The whole slot with the highest generation, and what is wrong with the other one. Without a
// whole slot: why not, told of the first one that at least has the magic.
Result<Header> choose_slot(const HeaderBytes& bytes) {
  std::optional<HeaderSlot> chosen;
  std::optional<Error> telling;
  std::vector<std::string> damage;
  for (std::size_t i = 0; i < kSlotCount; ++i) {
    const SlotView view = slot_view(bytes, i);
    if (is_empty(view)) continue;
    auto slot = parse_slot(view, i);
    if (slot) {
      if (!chosen || slot->generation > chosen->generation) chosen = *slot;
      continue;
    }
    const Error error = in_context(slot_place(i), slot.error());
    damage.push_back(error.message);
    if (!telling && begins_with(view, ByteView(kMagic).first(kNameBytes))) telling = error;
  }
  if (chosen) return Header{*chosen, std::move(damage)};
  return telling.value_or(corrupt("not a .tqkv file"));
}

Result<void> check_version(const HeaderSlot& slot) {
  if (slot.version > kVersion) {
    return Error{ErrorCode::kUnsupported, "version " + std::to_string(slot.version) +
                                              " is newer than version " + std::to_string(kVersion)};
  }
  if (slot.version < kVersion) return corrupt("version " + std::to_string(slot.version));
  const std::uint32_t unknown = slot.required_features & ~kKnownRequiredFeatures;
  if (unknown != 0) {
    return Error{ErrorCode::kUnsupported,
                 "unknown required features, bits " + std::to_string(unknown)};
  }
  return {};
}

Result<void> check_ranges(const HeaderSlot& slot, std::uint64_t actual_bytes) {
  if (actual_bytes < slot.file_bytes) {
    return Error{ErrorCode::kTruncated, "the file ends after " + std::to_string(actual_bytes) +
                                            " of " + std::to_string(slot.file_bytes) + " bytes"};
  }
  if (actual_bytes > slot.file_bytes) {
    return corrupt(std::to_string(actual_bytes - slot.file_bytes) + " bytes behind the end");
  }
  if (slot.manifest_offset < kHeaderBytes || slot.manifest_offset >= slot.file_bytes ||
      slot.manifest_offset % kSectionAlignment != 0) {
    return corrupt("manifest offset " + std::to_string(slot.manifest_offset));
  }
  const std::uint64_t manifest_bytes = slot.file_bytes - slot.manifest_offset;
  if (manifest_bytes > kMaxManifestBytes) {
    return Error{ErrorCode::kTooLarge,
                 "a manifest of " + std::to_string(manifest_bytes) + " bytes"};
  }
  return {};
}

}  // namespace

std::array<std::byte, kSlotBytes> encode_slot(const HeaderSlot& slot) {
  ByteWriter out;
  out.append(kMagic);
  out.write(slot.version);
  out.write(slot.generation);
  out.write(slot.required_features);
  out.write(slot.optional_features);
  out.write(slot.manifest_offset);
  out.write(slot.file_bytes);
  out.append(to_bytes(slot.manifest_checksum));
  assert(out.bytes().size() == kSlotChecksumOffset);
  out.write(xxh3_64(out.bytes()));

  std::array<std::byte, kSlotBytes> bytes;
  std::ranges::copy(out.bytes(), bytes.begin());
  return bytes;
}

Result<Header> read_header(const ByteSource& source) {
  HeaderBytes bytes{};
  const std::size_t available =
      static_cast<std::size_t>(std::min<std::uint64_t>(source.size(), kHeaderBytes));
  TQC_TRY(source.read_at(0, std::span(bytes).first(available)));
  if (available < kHeaderBytes) {
    const std::size_t n_magic = std::min(available, kMagic.size());
    if (!begins_with(bytes, ByteView(kMagic).first(n_magic))) return corrupt("not a .tqkv file");
    return Error{ErrorCode::kTruncated,
                 "the file ends after " + std::to_string(available) + " bytes, within the header"};
  }
  TQC_TRY_ASSIGN(Header header, choose_slot(bytes));
  TQC_TRY(check_version(header.slot));
  TQC_TRY(check_ranges(header.slot, source.size()));
  return header;
}

bool has_magic(const ByteSource& source) {
  const ByteView name = ByteView(kMagic).first(kNameBytes);
  for (std::size_t i = 0; i < kSlotCount; ++i) {
    std::array<std::byte, kNameBytes> bytes;
    if (!source.read_at(i * kSlotBytes, bytes)) return false;
    if (begins_with(bytes, name)) return true;
  }
  return false;
}

}  // namespace tqcache::format
