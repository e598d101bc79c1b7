#pragma once
// interop/npz/npz_cache.h: a cache as arrays of NumPy (.npz), for people who look at one in Python.
// Safe for untrusted input.
//
// Spec: docs/reference/interop.md, "NumPy".

#include <filesystem>
#include <memory>

#include "tqcache/base/file.h"
#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/reader.h"
#include "tqcache/interop/foreign_cache.h"

namespace tqcache::interop {

// Whether a file is a .npz of this schema. False for files that are not zip files.
// Errors: those of tensors::Npz::open() of files that do.
Result<bool> is_npz_cache(const ByteSource& file);

// Errors: kTruncated, kCorrupt, kTooLarge, kUnsupported.
Result<ForeignCache> import_npz(std::shared_ptr<const ByteSource> file);

// Turbo sides decoded, in their tails' dtype; bf16, which NumPy does not have, as f32. Whole or not
// at all.
//
// Memory and progress: as export_hf(). Errors: as there, but kUnsupported is for arrays whose names
// do not fit, or that are there twice.
Result<void> export_npz(const cache::CacheReader& cache, const std::filesystem::path& path,
                        Overwrite overwrite, const Progress& progress = {});

}  // namespace tqcache::interop
