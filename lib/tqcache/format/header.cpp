#include "tqcache/format/header.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/format/checksum_bytes.h"

namespace tqcache::format {
namespace {

using HeaderBytes = std::array<std::byte, kHeaderBytes>;
using SlotView = std::span<const std::byte, kSlotBytes>;

constexpr std::size_t kSlotChecksumOffset = kSlotBytes - sizeof(std::uint64_t);
constexpr std::size_t kNameBytes = 4;  // "TQKV", the part of the magic that survives as text
constexpr int kMaxAttempts = 1000;     // a header changes a few times a second at most

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
HeaderSlot parse_fields(SlotView bytes) {
  std::size_t at = kMagic.size();
  const auto take = [&]<class T>(T& field) {
    field = number_at<T>(bytes, at);
    at += sizeof(T);
  };
  HeaderSlot slot;
  take(slot.version);
  take(slot.generation);
  take(slot.required_features);
  take(slot.optional_features);
  take(slot.manifest_offset);
  take(slot.file_bytes);
  slot.manifest_checksum =
      checksum_from_bytes(ByteView(bytes).subspan(at).first<sizeof(ChecksumBytes)>());
  return slot;
}

// Checks magic, checksum and place, which make a slot valid whatever its version. The magic and the
// last 8 bytes keep their places in all future versions.
Result<HeaderSlot> parse_slot(SlotView bytes, std::size_t index) {
  if (!begins_with(bytes, kMagic)) return bad_magic(bytes);
  const auto stored = number_at<std::uint64_t>(bytes, kSlotChecksumOffset);
  if (stored != xxh3_64(bytes.first(kSlotChecksumOffset))) return corrupt("checksum mismatch");
  const HeaderSlot slot = parse_fields(bytes);
  // Only slot 0 holds odd generations, so that neither slot can be mistaken for the other.
  if (slot_index(slot.generation) != index || slot.generation == 0) {
    return corrupt("generation " + std::to_string(slot.generation) + " stands in the wrong slot");
  }
  return slot;
}

std::string slot_place(std::size_t index) { return "header slot " + std::to_string(index); }

// False for future versions, where the meaning of the bit is unknown.
bool is_growing(const HeaderSlot& slot) {
  return slot.version == kVersion && (slot.required_features & kFeatureGrowing) != 0;
}

// Checks the slot that is not in use: an older state, or the announcement of a newer one.
Result<void> check_other(const Result<HeaderSlot>& other, const HeaderSlot& current) {
  if (!other) return other.error();
  if (!is_growing(*other)) return {};
  const bool can_follow = current.generation < std::numeric_limits<std::uint32_t>::max();
  if (can_follow && *other == announcement(current)) return {};
  return corrupt("announces an append, but not to the state of the other slot");
}

// The error for a file without a state in use, for the first slot that at least has the magic.
Error tell_no_state(const HeaderBytes& bytes, const std::array<Result<HeaderSlot>, 2>& slots) {
  for (std::size_t i = 0; i < kSlotCount; ++i) {
    if (!begins_with(slot_view(bytes, i), ByteView(kMagic).first(kNameBytes))) continue;
    if (!slots[i]) return in_context(slot_place(i), slots[i].error());
    return in_context(slot_place(i), corrupt("announces an append to a state that is not there"));
  }
  return corrupt("not a .tqkv file");
}

// Chooses the valid slot with the highest generation that is more than an announcement, and
// examines the other one.
Result<Header> choose_slot(const HeaderBytes& bytes) {
  const std::array<Result<HeaderSlot>, 2> slots = {parse_slot(slot_view(bytes, 0), 0),
                                                   parse_slot(slot_view(bytes, 1), 1)};
  std::optional<std::size_t> chosen;
  for (std::size_t i = 0; i < kSlotCount; ++i) {
    if (!slots[i] || is_growing(*slots[i])) continue;
    if (!chosen || slots[i]->generation > slots[*chosen]->generation) chosen = i;
  }
  if (!chosen) return tell_no_state(bytes, slots);

  const std::size_t other = 1 - *chosen;
  Header header;
  header.slot = *slots[*chosen];
  std::ranges::copy(slot_view(bytes, other), header.other.begin());
  if (is_empty(header.other)) return header;
  const Result<void> whole = check_other(slots[other], header.slot);
  header.announced = whole && is_growing(*slots[other]);
  if (!whole) header.damage.push_back(in_context(slot_place(other), whole.error()).message);
  return header;
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

Result<void> check_manifest_range(const HeaderSlot& slot) {
  if (slot.manifest_offset < kHeaderBytes || slot.manifest_offset >= slot.file_bytes ||
      slot.manifest_offset % kSectionAlignment != 0) {
    return corrupt("manifest offset " + std::to_string(slot.manifest_offset));
  }
  const std::uint64_t manifest_bytes = slot.file_bytes - slot.manifest_offset;
  if (manifest_bytes <= kMaxManifestBytes) return {};
  return Error{ErrorCode::kTooLarge, "a manifest of " + std::to_string(manifest_bytes) + " bytes"};
}

// Checks the header against the size of the file. Bytes after the end belong to an append that is
// announced, or whose slot was being written when power failed.
Result<void> check_ranges(Header& header, std::uint64_t actual_bytes) {
  const std::uint64_t file_bytes = header.slot.file_bytes;
  if (actual_bytes < file_bytes) {
    return Error{ErrorCode::kTruncated, "the file ends after " + std::to_string(actual_bytes) +
                                            " of " + std::to_string(file_bytes) + " bytes"};
  }
  header.trailing_bytes = actual_bytes - file_bytes;
  const bool is_explained = header.announced || !header.damage.empty();
  if (header.trailing_bytes > 0 && !is_explained) {
    return corrupt(std::to_string(header.trailing_bytes) + " bytes behind the end");
  }
  return check_manifest_range(header.slot);
}

Error ends_within_header(const HeaderBytes& bytes, std::size_t available) {
  const std::size_t n_magic = std::min(available, kMagic.size());
  if (!begins_with(bytes, ByteView(kMagic).first(n_magic))) return corrupt("not a .tqkv file");
  return {ErrorCode::kTruncated,
          "the file ends after " + std::to_string(available) + " bytes, within the header"};
}

// Both slots, and the size of the file at a moment when it contained them.
struct Snapshot {
  HeaderBytes bytes{};
  std::uint64_t file_bytes = 0;
  bool operator==(const Snapshot&) const = default;
};

// A slot may be written between any two calls. If the slots are the same before and after the size
// is read, the size belongs to them.
Result<Snapshot> take_snapshot(const ByteSource& source) {
  Snapshot snapshot;
  HeaderBytes again{};
  TQC_TRY(source.read_at(0, snapshot.bytes));
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    snapshot.file_bytes = source.size();
    TQC_TRY(source.read_at(0, again));
    if (again == snapshot.bytes) return snapshot;
    snapshot.bytes = again;
  }
  return Error{ErrorCode::kBusy, "the header changes faster than it can be read"};
}

Result<Header> header_of(const Snapshot& snapshot) {
  TQC_TRY_ASSIGN(Header header, choose_slot(snapshot.bytes));
  TQC_TRY(check_version(header.slot));
  TQC_TRY(check_ranges(header, snapshot.file_bytes));
  return header;
}

}  // namespace

HeaderSlot announcement(const HeaderSlot& current) {
  HeaderSlot slot;
  slot.generation = current.generation + 1;
  slot.required_features = kFeatureGrowing;
  slot.file_bytes = current.file_bytes;
  return slot;
}

SlotBytes encode_slot(const HeaderSlot& slot) {
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

  SlotBytes bytes;
  std::ranges::copy(out.bytes(), bytes.begin());
  return bytes;
}

Result<Header> read_header(const ByteSource& source) {
  const std::uint64_t file_bytes = source.size();
  if (file_bytes < kHeaderBytes) {
    HeaderBytes bytes{};
    TQC_TRY(source.read_at(0, std::span(bytes).first(file_bytes)));
    return ends_within_header(bytes, file_bytes);
  }
  TQC_TRY_ASSIGN(Snapshot snapshot, take_snapshot(source));
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    auto header = header_of(snapshot);
    if (header) return header;
    // An append that failed may have come and gone since the header was first read: an error is
    // reported only if it is found twice.
    TQC_TRY_ASSIGN(const Snapshot again, take_snapshot(source));
    if (again == snapshot) return header;
    snapshot = again;
  }
  return Error{ErrorCode::kBusy, "the header changes faster than it can be read"};
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
