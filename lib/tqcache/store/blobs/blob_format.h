#pragma once
// store/blobs/blob_format.h: header, rules and encoding of blobs. Safe for untrusted input.
//
// Only for the sources of store.
// Spec: docs/reference/store.md, "Blobs".

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/hash.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_io.h"
#include "tqcache/store/blobs/blob_keys.h"

namespace tqcache::store {

// The magic of a .tqkv file, but with 'B' for blob.
inline constexpr std::array<std::byte, 8> kBlobMagic = {
    std::byte{'T'},  std::byte{'Q'},  std::byte{'K'},  std::byte{'B'},
    std::byte{'\r'}, std::byte{'\n'}, std::byte{0x1a}, std::byte{'\n'}};

inline constexpr std::uint32_t kBlobVersion = 1;
inline constexpr std::uint32_t kSealedBlobVersion = 2;  // an encrypted blob
inline constexpr std::uint32_t kMediaBlobVersion = 3;   // with tokens of media; otherwise as 1
inline constexpr std::size_t kBlobHeaderBytes = 64;

// The record of the longest prompt has 64 MiB of tokens and 2 MiB of hashes.
inline constexpr std::uint64_t kMaxDescriptionBytes = std::uint64_t{128} << 20;

struct BlobHeader {
  BlobKind kind = BlobKind::kParameters;
  std::uint64_t blob_bytes = 0;
  std::uint64_t description_bytes = 0;
  Checksum128 description_checksum;
  bool has_media = false;
};

// The offset of the first section. Requires: description_bytes within the limit.
std::uint64_t sections_at(const BlobHeader& header);

Bytes encode_blob_header(const BlobHeader& header);

// Also compares the header with the size of the blob.
// Errors: kCorrupt, kTruncated, kUnsupported (a later version), kTooLarge; kNoKey for an encrypted
//         blob, which encrypted_backend() decrypts.
Result<BlobHeader> read_blob_header(ByteView blob);

inline constexpr std::size_t kMaxNameBytes = 512;                          // of a record
inline constexpr std::size_t kMaxDataKeys = 1 << 16;                       // of a state
inline constexpr int kMaxParts = 2 * static_cast<int>(cache::kMaxLayers);  // of a block

// Whether some of its tokens are those of media.
bool has_media(const Content& content);

inline BlobKind kind_of(const Content& content) { return static_cast<BlobKind>(content.index()); }

// Whether the key is a key of this kind.
bool is_key_of(BlobKind kind, std::string_view key);

// Whether the key is "d/" and 64 hexadecimal digits.
bool is_data_key(std::string_view key);

// Checks limits, and that fields agree with one another and with the key. Writers use the same
// rules, so that they never put what readers would refuse.
// Errors: kCorrupt, kTooLarge, kUnsupported (an unknown name).
Result<void> check_content(std::string_view key, const Content& content);

// Layers of parameters without the shapes of their arrays.
std::vector<cache::LayerDesc> without_array_shapes(std::vector<cache::LayerDesc> layers);

// As encode_blob(), without checks. Requires: check_content(key, content).
// Errors:   kTooLarge.
Result<Bytes> make_blob(std::string_view key, const Content& content);
// The same, in memory for large values.
Result<SharedBytes> make_blob(std::string_view key, const Content& content, BlobMemory& memory);

}  // namespace tqcache::store
