#pragma once
// format/container_format.h: the constants of the file layout, for reader and writer.
//
// Spec: docs/reference/format.md §3 and §Limits.

#include <array>
#include <cstddef>
#include <cstdint>

#include "tqcache/bytes.h"

namespace tqcache::format {

// "TQKV", then bytes that a text-mode transfer would damage, as in PNG: CR LF, Ctrl-Z, LF.
inline constexpr std::array<std::byte, 8> kMagic = {
    std::byte{'T'},  std::byte{'Q'},  std::byte{'K'},  std::byte{'V'},
    std::byte{'\r'}, std::byte{'\n'}, std::byte{0x1a}, std::byte{'\n'}};

inline constexpr std::uint32_t kVersion = 2;

inline constexpr std::size_t kSlotBytes = 64;
inline constexpr std::size_t kSlotCount = 2;
inline constexpr std::size_t kHeaderBytes = kSlotBytes * kSlotCount;  // sections follow

// Sections and the manifest start at multiples of this: a cache line, and the alignment of SIMD
// loads from a mapped file.
inline constexpr std::uint64_t kSectionAlignment = 64;

// The clear bytes before an encrypted manifest, docs/reference/format.md §15.
inline constexpr std::size_t kEnvelopeBytes = 128;

// Required features, docs/reference/format.md §3.
inline constexpr std::uint32_t kFeatureGrowing = 1u << 0;  // a slot that only announces an append
inline constexpr std::uint32_t kFeatureGaps = 1u << 1;     // the manifest lists dead space
inline constexpr std::uint32_t kFeatureHiddenTokens = 1u << 2;  // hashes instead of token ids
inline constexpr std::uint32_t kFeaturePlanes = 1u << 3;        // sections of planes
inline constexpr std::uint32_t kFeatureEncrypted = 1u << 4;     // sections and manifest
inline constexpr std::uint32_t kFeatureCheckpoints = 1u << 5;   // earlier states of the cache
inline constexpr std::uint32_t kFeaturePredicted = 1u << 6;     // sections of residuals
inline constexpr std::uint32_t kFeatureMedia = 1u << 7;         // media between the text
inline constexpr std::uint32_t kKnownRequiredFeatures =
    kFeatureGrowing | kFeatureGaps | kFeatureHiddenTokens | kFeaturePlanes | kFeatureEncrypted |
    kFeatureCheckpoints | kFeaturePredicted | kFeatureMedia;

// Limits, besides those of tqcache/cache.h and tqcache/codec_spec.h.
inline constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{64} << 20;
inline constexpr std::uint32_t kMaxManifestDepth = 16;        // tables within tables
inline constexpr std::uint32_t kMaxManifestTables = 200000;   // also bounds shared sub-tables
inline constexpr std::size_t kMaxCentroids = 256;             // per codebook
inline constexpr std::size_t kMaxMeanValues = 16 << 20;       // of all means together
inline constexpr std::size_t kMaxOrderedChannels = 16 << 20;  // of all channel orders together
inline constexpr std::size_t kMaxMapEntries = 16 << 20;       // of all fitted transforms together
inline constexpr std::size_t kMaxGaps = 1 << 20;              // before a file must be compacted

// Requires: value below 2^64 - 63.
constexpr std::uint64_t align_section(std::uint64_t value) {
  return (value + kSectionAlignment - 1) & ~(kSectionAlignment - 1);
}

}  // namespace tqcache::format
