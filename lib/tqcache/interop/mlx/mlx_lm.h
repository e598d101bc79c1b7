#pragma once
// interop/mlx/mlx_lm.h: prompt caches of mlx-lm: safetensors files of its classes' state. Safe for
// untrusted input.
//
// Spec:   docs/reference/interop.md, "mlx-lm".
// Source: ml-explore/mlx-lm mlx_lm/models/cache.py and mlx/ops.cpp (affine quantization).

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/interop.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/progress.h"
#include "tqcache/reader.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache::interop {

// Whether a safetensors file is a prompt cache of mlx-lm, of any age.
bool is_mlx_lm(const tensors::SafetensorsIndex& index);

struct MlxLmImport {
  std::int64_t row = 0;  // of a cache of several prompts
  // How many tokens the cache has seen: for files whose layers do not say (ArraysCache alone).
  std::optional<std::int64_t> n_tokens = {};
};

// Layers in the order of the file; the caches of a CacheList one after another.
//
// Errors: kTruncated, kCorrupt, kTooLarge; kUnsupported (a class or state that is not known, keys
//         and values of different sizes, a number of tokens that nobody knows); kInvalidArgument
//         (no such row, another number of tokens).
Result<ForeignCache> import_mlx_lm(std::shared_ptr<const ByteSource> file,
                                   const MlxLmImport& options = {});

}  // namespace tqcache::interop
