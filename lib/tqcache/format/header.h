#pragma once
// format/header.h: the two header slots that a .tqkv file begins with. Reading is safe for
// untrusted input.
//
// A slot says where the manifest is and how long the file is. Two of them, written alternately,
// let an append switch from the old state to the new one by writing a single slot: whatever
// happens meanwhile, the other one still holds.
//
// Spec: docs/reference/format.md §3.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/format/container_format.h"
#include "tqcache/hash.h"

namespace tqcache::format {

struct HeaderSlot {
  std::uint32_t version = kVersion;
  std::uint32_t generation = 1;  // odd in slot 0, even in slot 1; the highest is in use
  std::uint32_t required_features = 0;
  std::uint32_t optional_features = 0;
  std::uint64_t manifest_offset = 0;
  std::uint64_t file_bytes = 0;
  Checksum128 manifest_checksum;
  bool operator==(const HeaderSlot&) const = default;
};

using SlotBytes = std::array<std::byte, kSlotBytes>;

SlotBytes encode_slot(const HeaderSlot& slot);

// Where a slot of this generation stands: odd ones in slot 0, even ones in slot 1.
constexpr std::size_t slot_index(std::uint32_t generation) { return (generation + 1) % kSlotCount; }

// The slot that says that an append to the state of `current` has begun, and nothing else: bytes
// behind the end are then no damage.
// Requires: a generation follows that of `current`.
HeaderSlot announcement(const HeaderSlot& current);

struct Header {
  HeaderSlot slot;                    // the one in use
  SlotBytes other{};                  // the other one, as it stands in the file
  bool announced = false;             // it announces an append, which goes on or was cut short
  std::uint64_t trailing_bytes = 0;   // behind the state in use; nothing is known of them
  std::vector<std::string> damage{};  // of the other one, if it is neither whole nor empty
};

// Reads both slots, chooses the one in use and checks it against the size of the file. Safe while
// another process appends: what is told is a state that the file had.
//
// Errors: kTruncated (the file ends early), kCorrupt (no .tqkv file, damaged, too long),
//         kUnsupported (version, feature), kTooLarge (manifest), kBusy (the header never stood
//         still), kIo.
Result<Header> read_header(const ByteSource& source);

// Whether the file begins as a .tqkv file does, damaged or not.
bool has_magic(const ByteSource& source);

}  // namespace tqcache::format
