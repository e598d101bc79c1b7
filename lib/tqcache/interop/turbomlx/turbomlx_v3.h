#pragma once
// interop/turbomlx/turbomlx_v3.h: files of TurboMLX of version 3: a JSON header, and the arrays behind it as
// a safetensors blob. Safe for untrusted input.
//
// Spec:   docs/reference/interop.md, "TurboMLX".
// Source: src/turbomlx/prompt_cache.py, _write_safetensors_payload().

#include <string_view>

#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/interop/value_tree.h"

namespace tqcache::interop {

inline constexpr std::string_view kTurboMlxV3Magic = "TQS3";

// The header, with arrays and tuples as such in the place of what stands for them. The arrays stay
// in the file.
//
// Errors: kTruncated, kCorrupt, kTooLarge, kUnsupported; those of the file.
Result<ValueTree> read_turbomlx_v3(const ByteSource& file);

}  // namespace tqcache::interop
