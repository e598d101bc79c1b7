#pragma once
// interop/turbomlx/turbomlx_packed.h: conversion of TurboMLX codes to the packed token blocks of
// this project, without a second quantization.
//
// Codes stay the same. Lengths of keys are f32 there and f16 here: rounding changes them by at most
// 2^-11 of their value. Scales and biases of groups are rounded too, if no value moves by more than
// a sixteenth of a quantization step.
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
  std::optional<cache::QuantSpec> quant;
  ReadBlock read;           // with `quant`: the codes of full blocks
  std::string misfit;       // why there is no quantized representation
  bool is_rounded = false;  // f16 does not hold all scales, lengths and biases exactly
};

// Reads the lengths, or the scales and biases, of all full token blocks, one block at a time.
//
// Requires: all rows have `n_tokens` tokens. `parts`: one for all channels; or one for the regular
//           channels, then one for the outliers.
// Errors:   those of the file.
Result<TurboMlxPacking> pack_turbomlx_keys(const TurboMlxSource& file, cache::HeadShape shape,
                                           std::int64_t n_tokens,
                                           const std::vector<TurboMlxPart>& parts);
Result<TurboMlxPacking> pack_turbomlx_groups(const TurboMlxSource& file, cache::HeadShape shape,
                                             std::int64_t n_tokens, const TurboMlxGroups& groups,
                                             codec::BlockOrder order);

}  // namespace tqcache::interop
