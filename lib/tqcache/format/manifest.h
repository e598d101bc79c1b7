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

#include "tqcache/bytes.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/hash.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::format {

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
