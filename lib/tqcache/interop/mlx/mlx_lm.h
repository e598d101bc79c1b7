#pragma once
// interop/mlx/mlx_lm.h: prompt caches of mlx-lm, which are safetensors files with the state of its
// cache classes. Safe for untrusted input.
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

// Returns whether a safetensors file is a prompt cache of mlx-lm, of any version.
bool is_mlx_lm(const tensors::SafetensorsIndex& index);

struct MlxLmImport {
  std::int64_t row = 0;  // in a batch of several prompts
  // Number of tokens seen: for files whose layers do not state it (ArraysCache alone).
  std::optional<std::int64_t> n_tokens = {};
};

// Layers in file order; the caches of a CacheList are consecutive layers.
//
// Errors: kTruncated, kCorrupt, kTooLarge; kUnsupported (an unknown class or state, keys and values
//         of different sizes, an unknown number of tokens); kInvalidArgument (no such row, another
//         number of tokens).
Result<ForeignCache> import_mlx_lm(std::shared_ptr<const ByteSource> file,
                                   const MlxLmImport& options = {});

}  // namespace tqcache::interop
