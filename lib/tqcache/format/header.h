#pragma once
// format/header.h: the two header slots that a .tqkv file begins with. Reading is safe for
// untrusted input.
//
// A slot says where the manifest is and how long the file is. Two of them, written alternately,
// let a later save switch from the old state to the new one by writing a single slot: whatever
// happens meanwhile, the other one still holds.
//
// Spec: docs/format.md §3.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tqcache/base/file.h"
#include "tqcache/base/hash.h"
#include "tqcache/base/result.h"
#include "tqcache/format/container_format.h"

namespace tqcache::format {

struct HeaderSlot {
  std::uint32_t version = kVersion;
  std::uint32_t generation = 1;  // odd in slot 0, even in slot 1; the highest is in use
  std::uint32_t required_features = 0;
  std::uint32_t optional_features = 0;
  std::uint64_t manifest_offset = 0;
  std::uint64_t file_bytes = 0;
  Checksum128 manifest_checksum;
};

std::array<std::byte, kSlotBytes> encode_slot(const HeaderSlot& slot);

struct Header {
  HeaderSlot slot;                  // the one in use
  std::vector<std::string> damage;  // of the other one; empty: it is whole, or unused
};

// Reads both slots, chooses the one in use and checks it against the size of the file.
//
// Errors: kTruncated (the file ends early), kCorrupt (no .tqkv file, damaged, too long),
//         kUnsupported (version, feature), kTooLarge (manifest), kIo.
Result<Header> read_header(const ByteSource& source);

// Whether the file begins as a .tqkv file does, damaged or not.
bool has_magic(const ByteSource& source);

}  // namespace tqcache::format
