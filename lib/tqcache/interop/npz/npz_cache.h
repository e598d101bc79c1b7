#pragma once
// interop/npz/npz_cache.h: a cache as NumPy arrays (.npz), for inspection in Python. Safe for
// untrusted input.
//
// Spec: docs/reference/interop.md, "NumPy".

#include <filesystem>
#include <memory>

#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/interop.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/progress.h"
#include "tqcache/reader.h"

namespace tqcache::interop {

// Returns whether a file is a .npz of this schema; false for files that are not zip files.
// Errors: those of tensors::Npz::open() for zip files.
Result<bool> is_npz_cache(const ByteSource& file);

// Errors: kTruncated, kCorrupt, kTooLarge, kUnsupported.
Result<ForeignCache> import_npz(std::shared_ptr<const ByteSource> file,
                                const MemoryBudget& memory = {});

}  // namespace tqcache::interop
