#pragma once
// tensors/gguf_metadata.h: reads the key-value pairs of a GGUF file. Safe for untrusted input.

#include <cstdint>
#include <map>
#include <string>

#include "tqcache/base/bytes.h"
#include "tqcache/base/result.h"
#include "tqcache/tensors/gguf.h"

namespace tqcache::tensors {

// A u64 length, then that many bytes. Errors: kTruncated, kTooLarge (above `max_bytes`).
Result<std::string> read_gguf_string(ByteReader& in, std::uint64_t max_bytes);

// The next `count` pairs. Requires: the caller has limited `count`.
// Errors: kTruncated, kCorrupt (a key twice, empty, or with a NUL; a bool that is neither 0 nor
//         1; general.alignment not a u32), kTooLarge, kUnsupported (value types, nested arrays,
//         u64 values beyond i64).
Result<std::map<std::string, GgufValue>> read_gguf_metadata(ByteReader& in, std::uint64_t count);

}  // namespace tqcache::tensors
