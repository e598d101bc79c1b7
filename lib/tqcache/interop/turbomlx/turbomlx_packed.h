#pragma once
// interop/turbomlx/turbomlx_packed.h: the codes of TurboMLX in the packed token blocks of this
// project, not quantized again.
//
// Codes are kept as they are. Lengths of keys are f32 there and f16 here: they are rounded, by
// 2^-11 of themselves at most. So are scales and biases of groups, where the values move by no more
// than a sixteenth of a step.
//
// Spec: docs/reference/interop.md, "TurboMLX".

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tqcache/codec/block_layout.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/turbomlx/turbomlx_rows.h"

namespace tqcache::interop {

struct TurboMlxPacking {
  std::optional<ForeignPacked> form;
  std::string misfit;       // why there is none
  bool is_rounded = false;  // f16 does not hold all scales, lengths and biases exactly
};

// Reads the lengths, or the scales and biases, of all full token blocks, a block at a time.
//
// Requires: all rows have `n_tokens` tokens. `parts`: of all channels; or of those that are not
//           outliers, then of those that are.
// Errors:   those of the file.
Result<TurboMlxPacking> pack_turbomlx_keys(const TurboMlxSource& file, cache::HeadShape shape,
                                           std::int64_t n_tokens,
                                           const std::vector<TurboMlxPart>& parts);
Result<TurboMlxPacking> pack_turbomlx_groups(const TurboMlxSource& file, cache::HeadShape shape,
                                             std::int64_t n_tokens, const TurboMlxGroups& groups,
                                             codec::BlockOrder order);

}  // namespace tqcache::interop
