#pragma once
// migrations/v1_file.h: a reader of prompt cache files of version 1. Safe for untrusted input.
//
// Plain structs with the content of the file; v1_to_v2.h interprets them. No program writes this
// version any more.
//
// Spec: docs/reference/format.md, "Version 1".

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/access.h"
#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/file.h"

namespace tqcache::migrations {

enum class V1Dtype : std::uint8_t { kF32, kF16, kBf16, kU8, kU32, kBool };

struct V1Tensor {
  std::string name;
  V1Dtype dtype = V1Dtype::kF32;
  std::vector<std::uint64_t> shape = {};  // outermost first
  AlignedBytes data = {};                 // [shape] of dtype
};

struct V1Entry {
  std::string class_path;
  std::vector<V1Tensor> state = {};
  std::string meta_state = {};  // JSON
  std::vector<V1Tensor> extra_state = {};
  std::string extra_meta = {};  // JSON, or empty
};

struct V1File {
  std::vector<V1Entry> entries;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::uint64_t file_bytes = 0;
};

// Whether the file starts like one of version 1.
bool looks_like_v1(const ByteSource& source);

// Reads a whole file and checks its SHA-256.
//
// Errors: kTruncated, kCorrupt, kUnsupported (schema_version), kTooLarge (`memory`), kIo. The
// message names
//         layer and tensor.
Result<V1File> read_v1(const ByteSource& source, const MemoryBudget& memory = {});

// Limits of version 1, in addition to those of tqcache/cache.h. Checked before memory is allocated.
//
// Spec: docs/reference/format.md, "Version 1".

inline constexpr std::uint32_t kSchemaVersion = 1;
inline constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 31;  // the limit of FlatBuffers
inline constexpr std::uint32_t kMaxDepth = 8;                           // tables within tables
inline constexpr std::uint32_t kMaxTables = 200000;
inline constexpr std::size_t kMaxClassPathBytes = 1024;
inline constexpr std::size_t kMaxNameBytes = 256;       // of a tensor, and of a metadata key
inline constexpr std::size_t kMaxMetaBytes = 64 << 10;  // of one JSON text of a layer
inline constexpr std::size_t kMaxTextBytes = 16 << 20;  // of all JSON texts together
inline constexpr std::size_t kMaxJsonDepth = 16;        // destroying a value recurses
inline constexpr std::size_t kMaxJsonKeys = 64;         // each is compared with all others
inline constexpr std::size_t kMaxFacts = 256;
inline constexpr std::uint64_t kMaxFactBytes = std::uint64_t{256} << 20;  // of all values together
inline constexpr std::size_t kMaxTensors = 64;  // of a state, and of an extra_state
inline constexpr std::size_t kMaxRank = 8;

}  // namespace tqcache::migrations
