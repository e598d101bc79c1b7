#pragma once
// format/header.h: the two header slots at the start of a .tqkv file. Reading is safe for untrusted
// input.
//
// A slot says where the manifest is and how long the file is. There are two, written alternately,
// so an append switches from the old state to the new one by writing a single slot: whatever
// happens meanwhile, the other slot stays valid.
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

// The slot index for a generation: odd ones in slot 0, even ones in slot 1.
constexpr std::size_t slot_index(std::uint32_t generation) { return (generation + 1) % kSlotCount; }

// The slot that only announces an append to the state of `current`; extra bytes after the end are
// then not damage.
// Requires: current.generation is not the largest.
HeaderSlot announcement(const HeaderSlot& current);

struct Header {
  HeaderSlot slot;                    // the one in use
  SlotBytes other{};                  // the other one, as stored in the file
  bool announced = false;             // it announces an append, still running or interrupted
  std::uint64_t trailing_bytes = 0;   // after the state in use; unverified
  std::vector<std::string> damage{};  // of the other one, if it is neither valid nor empty
};

// Reads both slots, chooses the one in use and checks it against the size of the file. Safe while
// another process appends: it returns a state that the file was in.
//
// Errors: kTruncated (the file ends early), kCorrupt (no .tqkv file, damaged, too long),
//         kUnsupported (version, feature), kTooLarge (manifest), kBusy (the header kept changing),
//         kIo.
Result<Header> read_header(const ByteSource& source);

// Whether the file starts like a .tqkv file, damaged or not.
bool has_magic(const ByteSource& source);

}  // namespace tqcache::format
