#pragma once
// interop/hf/hf.h: caches of Hugging Face transformers, by way of a safetensors schema of this
// project: transformers has no file of its own but pickles. Safe for untrusted input.
//
// Spec: docs/reference/interop.md, "Hugging Face". tools/tqcache_hf.py is the other side.

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

// Whether a safetensors file is of the schema (metadata "format": "tqcache-hf-1").
bool is_hf(const tensors::SafetensorsIndex& index);

// Errors: kTruncated, kCorrupt, kTooLarge, kUnsupported.
Result<ForeignCache> import_hf(std::shared_ptr<const ByteSource> file);

}  // namespace tqcache::interop
