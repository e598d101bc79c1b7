#pragma once
// migrations/v1_file.h: reads prompt cache files of version 1. Safe for untrusted input.
//
// Plain structs of what the file says; what it means is v1_to_v2.h's business. Nothing is written
// in this version any more.
//
// Spec: docs/reference/format.md, "Version 1".

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/base/file.h"
#include "tqcache/base/result.h"

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

struct V1ReadOptions {
  // Refused with kTooLarge when the tensors would take more memory than this.
  std::uint64_t max_payload_bytes = std::uint64_t{64} << 30;
};

// Whether the file begins as one of version 1 does: for telling formats apart.
bool looks_like_v1(const ByteSource& source);

// Reads a whole file, holding it against its SHA-256.
//
// Errors: kTruncated, kCorrupt, kUnsupported (schema_version), kTooLarge, kIo. The message names
//         layer and tensor.
Result<V1File> read_v1(const ByteSource& source, const V1ReadOptions& options = {});

}  // namespace tqcache::migrations
