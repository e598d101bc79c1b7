#pragma once
// format/manifest.h: the manifest of a .tqkv file: everything but the values of the cache.
//
// Plain structs; the FlatBuffer they travel in stays behind encode_manifest and decode_manifest.
//
// Spec: docs/reference/format.md §4.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tqcache/base/bytes.h"
#include "tqcache/base/dtype.h"
#include "tqcache/base/hash.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/description.h"
#include "tqcache/cache/reader.h"

namespace tqcache::format {

// Of a section: as it is, one zstd frame, or planes of bytes (plane_section.h). Only dense sections
// and arrays have planes.
enum class Compression : std::uint8_t { kNone = 0, kZstd = 1, kPlanes = 2, kSymbols = 3 };

using cache::BlockKey;
using cache::TensorKind;

// One row of the section table: a block of the cache, and where the file has it.
struct SectionInfo : cache::BlockInfo {
  Compression compression = Compression::kNone;
  std::uint64_t file_offset = 0;
  Checksum128 checksum;  // of the stored bytes
  Sha256 raw_sha256{};   // of the bytes before compression
};

// Dead bytes of a file that was appended to: an old manifest, or a section that another one took
// the place of.
struct GapInfo {
  std::uint64_t file_offset = 0;
  std::uint64_t bytes = 0;
  Checksum128 checksum;
};

// A description of the cache, and what only a file has.
struct Manifest : cache::CacheDesc {
  std::string writer;  // program and version that wrote the file
  std::vector<SectionInfo> sections;
  std::vector<GapInfo> gaps = {};  // ascending
  Sha256 content_name{};           // docs/reference/format.md §Content name; gaps do not count
};

// How a file's sections were made smaller: planes if any has them (its packed ones are zstd frames
// then), otherwise zstd if any is a frame.
Compression compression_of(const Manifest& manifest);

// The rows of a section table for the blocks of a reader, without places and digests.
std::vector<SectionInfo> sections_of(const cache::CacheReader& reader);

// The blocks that a section table describes.
std::vector<cache::BlockInfo> blocks_of(const std::vector<SectionInfo>& sections);

// Number of tokens that the arrays of dense windows are described for. Nothing: their shapes are
// left out, as in the parameters of a store, which do not depend on the number of tokens.
using WindowTokens = std::optional<std::int64_t>;

// Shapes of windows are those of the manifest's tokens, or of `window_tokens`.
//
// Errors: kTooLarge when the manifest is beyond kMaxManifestBytes.
// Bytes:  the same manifest gives the same bytes (with the same FlatBuffers library). Texts, and
//         all of a codec, are written once however many layers have them.
Result<Bytes> encode_manifest(const Manifest& manifest);
Result<Bytes> encode_manifest(const Manifest& manifest, WindowTokens window_tokens);

// Safe for untrusted input: checks the structure of the FlatBuffer, the range of every enumeration,
// all names, and that each layer is of one kind. manifest_rules.h has the other rules.
//
// Requires: `bytes` start at a multiple of 64.
// Errors:   kCorrupt, kTooLarge, kUnsupported (a name that this reader does not know).
Result<Manifest> decode_manifest(ByteView bytes);
Result<Manifest> decode_manifest(ByteView bytes, WindowTokens window_tokens);

}  // namespace tqcache::format
