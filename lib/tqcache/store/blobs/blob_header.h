#pragma once
// store/blobs/blob_header.h: the 64 bytes that a blob begins with. Reading is safe for untrusted input.
//
// Spec: docs/reference/store.md, "Blobs".

#include <array>
#include <cstddef>
#include <cstdint>

#include "tqcache/base/bytes.h"
#include "tqcache/base/hash.h"
#include "tqcache/base/result.h"

namespace tqcache::store {

// As the magic of a .tqkv file, with 'B' for blob.
inline constexpr std::array<std::byte, 8> kBlobMagic = {
    std::byte{'T'},  std::byte{'Q'},  std::byte{'K'},  std::byte{'B'},
    std::byte{'\r'}, std::byte{'\n'}, std::byte{0x1a}, std::byte{'\n'}};

inline constexpr std::uint32_t kBlobVersion = 1;
inline constexpr std::size_t kBlobHeaderBytes = 64;

// A record of the longest prompt has 64 MiB of tokens, and 2 MiB of hashes.
inline constexpr std::uint64_t kMaxDescriptionBytes = std::uint64_t{128} << 20;

// In the order of Content.
enum class BlobKind : std::uint32_t { kParameters, kBlock, kState, kData, kRecord, kUsage };
inline constexpr std::uint32_t kBlobKinds = 6;

struct BlobHeader {
  BlobKind kind = BlobKind::kParameters;
  std::uint64_t blob_bytes = 0;
  std::uint64_t description_bytes = 0;
  Checksum128 description_checksum;
};

// Where the sections of a blob begin. Requires: description_bytes within the limit.
std::uint64_t sections_at(const BlobHeader& header);

Bytes encode_blob_header(const BlobHeader& header);

// Holds the header against the size of the blob, too.
// Errors: kCorrupt, kTruncated, kUnsupported (a later version), kTooLarge.
Result<BlobHeader> read_blob_header(ByteView blob);

}  // namespace tqcache::store
