#pragma once
// interop/turbomlx/turbomlx_layers.h: the layers of a prompt cache of TurboMLX, class by class.
// Safe for untrusted input.
//
// Spec: docs/reference/interop.md, "TurboMLX".

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/codec/block_layout.h"
#include "tqcache/error.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/turbomlx/turbomlx_artifacts.h"
#include "tqcache/interop/turbomlx/turbomlx_file.h"
#include "tqcache/interop/turbomlx/turbomlx_rows.h"

namespace tqcache::interop {

// How the codes of K or V are imported.
struct TurboMlxCoding {
  bool are_keys = true;
  bool are_groups = false;  // affine groups; otherwise TurboQuant keys
  bool is_rounded = false;  // codes are kept, but f16 does not hold all their scales exactly
  std::string misfit = {};  // why codes are decoded; empty: they are kept
};

struct TurboMlxTensor {
  ForeignTensor tensor;
  std::optional<TurboMlxCoding> coding;  // nullopt: dense
};

struct TurboMlxLayer {
  ForeignLayer layer;
  std::optional<std::int64_t> n_tokens;  // nullopt: the layer does not say
  std::optional<TurboMlxMeta> meta;      // of a TurboQuantKVCache
  bool is_calibrating = false;           // all of it is still dense
  std::vector<TurboMlxCoding> codings;   // of its quantized K and V
};

// TurboQuantKVCache.
//
// Errors of these functions: kCorrupt, kTooLarge, kUnsupported.
Result<TurboMlxLayer> turbomlx_turbo_layer(const TurboMlxSource& file, const ValueTree& tree,
                                           const TurboMlxEntry& entry,
                                           TurboMlxArtifacts& artifacts);

// Classes of mlx-lm.
Result<TurboMlxLayer> turbomlx_dense_layer(const TurboMlxSource& file, const ValueTree& tree,
                                           const TurboMlxEntry& entry);
Result<TurboMlxLayer> turbomlx_quantized_layer(const TurboMlxSource& file, const ValueTree& tree,
                                               const TurboMlxEntry& entry);
Result<TurboMlxLayer> turbomlx_rotating_layer(const TurboMlxSource& file, const ValueTree& tree,
                                              const TurboMlxEntry& entry);
Result<TurboMlxLayer> turbomlx_arrays_layer(const TurboMlxSource& file, const ValueTree& tree,
                                            const TurboMlxEntry& entry);

// K or V in groups: a sequence of codes, scales and biases.
struct TurboMlxGroupSpec {
  std::int64_t bits = 0;
  std::int64_t group_size = 0;
};
Result<TurboMlxTensor> turbomlx_affine_tensor(const TurboMlxSource& file, const ValueTree& tree,
                                              const Value& groups, std::string_view name,
                                              TurboMlxGroupSpec spec, cache::HeadShape shape,
                                              std::int64_t n_tokens, codec::BlockOrder order);

}  // namespace tqcache::interop
