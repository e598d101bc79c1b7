#pragma once
// store/blobs/blob_format.h: the 64 bytes that a blob begins with. Reading is safe for untrusted
// input.
//
// Spec: docs/reference/store.md, "Blobs".

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tqcache/base/bytes.h"
#include "tqcache/base/hash.h"
#include "tqcache/base/result.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_io.h"
#include "tqcache/store/blobs/keys.h"

namespace tqcache::store {

// As the magic of a .tqkv file, with 'B' for blob.
inline constexpr std::array<std::byte, 8> kBlobMagic = {
    std::byte{'T'},  std::byte{'Q'},  std::byte{'K'},  std::byte{'B'},
    std::byte{'\r'}, std::byte{'\n'}, std::byte{0x1a}, std::byte{'\n'}};

inline constexpr std::uint32_t kBlobVersion = 1;
inline constexpr std::size_t kBlobHeaderBytes = 64;

// A record of the longest prompt has 64 MiB of tokens, and 2 MiB of hashes.
inline constexpr std::uint64_t kMaxDescriptionBytes = std::uint64_t{128} << 20;

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

// what the content of a blob has to fulfil, and what of it stands in a
// manifest.
//
// The writer holds its own content against the same rules, so that nothing is put that would not
// be read.
//
// Spec: docs/reference/store.md, "Blobs".

inline constexpr std::size_t kMaxNameBytes = 512;                          // of a record
inline constexpr std::size_t kMaxDataKeys = 1 << 16;                       // of a state
inline constexpr int kMaxParts = 2 * static_cast<int>(cache::kMaxLayers);  // of a block

inline BlobKind kind_of(const Content& content) { return static_cast<BlobKind>(content.index()); }

// Whether the key is one under which blobs of this kind stand.
bool is_key_of(BlobKind kind, std::string_view key);

// What a prefix and hexadecimal digits say: "d/" and 64 of them.
bool is_data_key(std::string_view key);

// Limits, and fields that have to agree with one another and with the key.
// Errors: kCorrupt, kTooLarge, kUnsupported (a name that this reader does not know).
Result<void> check_content(std::string_view key, const Content& content);

// Layers of parameters without the shapes of their arrays.
std::vector<cache::LayerDesc> without_array_shapes(std::vector<cache::LayerDesc> layers);

// the bytes of a blob, of content that keeps to the rules.
//
// Spec: docs/reference/store.md, "Blobs".

// As encode_blob(), without a look at what it is given.
// Requires: check_content(key, content) (blob_rules.h); otherwise nobody will read it.
// Errors:   kTooLarge.
Result<Bytes> make_blob(std::string_view key, const Content& content);
// The same in memory for large ones.
Result<SharedBytes> make_blob(std::string_view key, const Content& content, BlobMemory& memory);

}  // namespace tqcache::store
