#pragma once
// format/manifest.h: the manifest of a .tqkv file: everything except the values of the cache.
//
// Plain structs; only encode_manifest and decode_manifest know the FlatBuffer.
//
// Spec: docs/reference/format.md §4.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/hash.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::format {

// The compression of a file's sections: kPlanes if any has planes (packed ones are then zstd
// frames), otherwise kZstd if any is a frame. Sections of checkpoints do not count.
Compression compression_of(const Manifest& manifest);

// The rows of a section table for the blocks of a reader, without offsets and digests.
std::vector<SectionInfo> sections_of(const std::vector<cache::BlockInfo>& blocks);

// The blocks that a section table describes.
std::vector<cache::BlockInfo> blocks_of(std::span<const SectionInfo> sections);

// Number of tokens for the array shapes of dense windows. nullopt: shapes are left out, as in the
// parameters of a store, which do not depend on the number of tokens.
using WindowTokens = std::optional<std::int64_t>;

// Shapes of windows are those for the manifest's tokens, or for `window_tokens`.
//
// Errors: kTooLarge when the manifest exceeds kMaxManifestBytes.
// Bytes:  the same manifest gives the same bytes (with the same FlatBuffers library). Texts and
//         codecs are written once, however many layers share them.
Result<Bytes> encode_manifest(const Manifest& manifest);
Result<Bytes> encode_manifest(const Manifest& manifest, WindowTokens window_tokens);

// Safe for untrusted input: checks the structure of the FlatBuffer, the range of every enumeration,
// all names, and that each layer has exactly one kind. manifest_rules.h has the other rules.
//
// Requires: `bytes` are aligned to 64.
// Errors:   kCorrupt, kTooLarge, kUnsupported (a name that this reader does not know).
Result<Manifest> decode_manifest(ByteView bytes);
Result<Manifest> decode_manifest(ByteView bytes, WindowTokens window_tokens);

}  // namespace tqcache::format
