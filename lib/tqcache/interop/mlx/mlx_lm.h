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

#include "tqcache/base/file.h"
#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/reader.h"
#include "tqcache/interop/foreign_cache.h"
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

struct MlxLmExport {
  // The files of 0.32.0 and later are of another layout, which nothing before it reads, and it
  // reads no other.
  int version_major = 0, version_minor = 32;
  int kv_bits = 0;               // QuantizedKVCache of 2, 4 or 8 bits; 0: KVCache
  std::int64_t group_size = 64;  // 32, 64 or 128 components that share a scale and a bias
  std::string model;             // metadata "model"; empty: the cache's model name
  std::string tokenizer_config = "{}";
  Overwrite overwrite = Overwrite::kRefuse;
};

// Writes all of a cache as mlx-lm would: turbo sides decoded, in their tails' dtype. Whole or not
// at all.
//
// Memory:   one side of one layer.
// Progress: bytes of sections.
// Errors:   those of the source; kInvalidArgument (an empty cache, bits or groups that MLX does not
//           have, a group_size that does not divide head_dim); those of AtomicFile; kInterrupted.
Result<void> export_mlx_lm(const cache::CacheReader& cache, const std::filesystem::path& path,
                           const MlxLmExport& options, const Progress& progress = {});

}  // namespace tqcache::interop
