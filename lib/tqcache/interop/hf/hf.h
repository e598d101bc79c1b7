#pragma once
// interop/hf/hf.h: caches of Hugging Face transformers, in a safetensors schema of this project,
// because transformers itself only has pickles. Safe for untrusted input.
//
// Spec: docs/reference/interop.md, "Hugging Face". Counterpart in Python: tools/tqcache_hf.py.

#include <filesystem>
#include <memory>

#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/interop.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/progress.h"
#include "tqcache/reader.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache::interop {

// Returns whether a safetensors file has this schema (metadata "format": "tqcache-hf-1").
bool is_hf(const tensors::SafetensorsIndex& index);

// Errors: kTruncated, kCorrupt, kTooLarge, kUnsupported.
Result<ForeignCache> import_hf(std::shared_ptr<const ByteSource> file);

}  // namespace tqcache::interop
