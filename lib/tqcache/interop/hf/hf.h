#pragma once
// interop/hf/hf.h: caches of Hugging Face transformers, by way of a safetensors schema of this
// project: transformers has no file of its own but pickles. Safe for untrusted input.
//
// Spec: docs/reference/interop.md, "Hugging Face". tools/tqcache_hf.py is the other side.

#include <filesystem>
#include <memory>

#include "tqcache/base/file.h"
#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/reader.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache::interop {

// Whether a safetensors file is of the schema (metadata "format": "tqcache-hf-1").
bool is_hf(const tensors::SafetensorsIndex& index);

// Errors: kTruncated, kCorrupt, kTooLarge, kUnsupported.
Result<ForeignCache> import_hf(std::shared_ptr<const ByteSource> file);

// Turbo sides decoded, in their tails' dtype. Whole or not at all.
//
// Memory:   one side of one layer.
// Progress: bytes of sections.
// Errors:   those of the source; kUnsupported (a window that keeps first tokens, arrays that
//           are not states as transformers names them); those of AtomicFile; kInterrupted.
Result<void> export_hf(const cache::CacheReader& cache, const std::filesystem::path& path,
                       Overwrite overwrite, const Progress& progress = {});

}  // namespace tqcache::interop
