#pragma once
// tests/fuzz/container_parts.h: .tqkv files taken apart and put together again, right or wrong.
//
// A checksum stops nearly every random change. What these functions make has checksums that fit, so
// that the rules behind them get to see it.

#include <optional>

#include "tqcache/bytes.h"
#include "tqcache/format/manifest.h"

namespace tqcache::fuzz {

class Chance;

// Makes all digests fit what they cover, as far as it can be found: of sections, of gaps, the
// content name, of the manifest, of both header slots.
void repair(Bytes& file);

// The manifest of a file, whether or not it keeps to any rule but those of decode_manifest().
std::optional<format::Manifest> manifest_of(ByteView file);

// The same file with another manifest where the old one stood, sections untouched.
void replace_manifest(Bytes& file, const format::Manifest& manifest);

// A new file for a manifest that keeps to check_contents(): with the sections that its layers have,
// filled with zeros or any bytes, and as many gaps as it had. nullopt: it does not keep to them, or
// the file would be large.
std::optional<Bytes> lay_out(Chance& chance, format::Manifest manifest);

}  // namespace tqcache::fuzz
