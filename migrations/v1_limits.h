#pragma once
// migrations/v1_limits.h: the numbers that a file of version 1 may not pass, beside those of
// cache/cache.h. Checked before memory is taken.
//
// Spec: docs/reference/format.md, "Version 1".

#include <cstddef>
#include <cstdint>

namespace tqcache::migrations {

inline constexpr std::uint32_t kSchemaVersion = 1;
inline constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 31;  // FlatBuffers end there
inline constexpr std::uint32_t kMaxDepth = 8;                           // tables within tables
inline constexpr std::uint32_t kMaxTables = 200000;
inline constexpr std::size_t kMaxClassPathBytes = 1024;
inline constexpr std::size_t kMaxNameBytes = 256;       // of a tensor, or a fact's key
inline constexpr std::size_t kMaxMetaBytes = 64 << 10;  // of one JSON text of a layer
inline constexpr std::size_t kMaxTextBytes = 16 << 20;  // of all of these
inline constexpr std::size_t kMaxJsonDepth = 16;        // destroying a value takes a call a level
inline constexpr std::size_t kMaxJsonKeys = 64;         // each is compared with all before it
inline constexpr std::size_t kMaxFacts = 256;
inline constexpr std::uint64_t kMaxFactBytes = std::uint64_t{256} << 20;  // of all values together
inline constexpr std::size_t kMaxTensors = 64;  // of a state, and of an extra_state
inline constexpr std::size_t kMaxRank = 8;

}  // namespace tqcache::migrations
