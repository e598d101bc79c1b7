#pragma once
// interop/mlx/mlx_lm_plan.h: which tensors and which metadata a cache is to mlx-lm.
//
// Spec: docs/reference/interop.md, "mlx-lm".

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/format/manifest.h"
#include "tqcache/interop/mlx/mlx_lm.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache::interop {

// What is written as a tensor's values.
struct MlxSideData {  // a side of an attention layer
  std::int64_t layer = 0;
  format::SideName side = format::SideName::kKeys;
};
struct MlxGroupData {  // the same in affine groups; its three tensors follow one another
  MlxSideData side;
  enum Part : std::uint8_t { kCodes, kScales, kBiases } part = kCodes;
};
struct MlxArrayData {  // an array
  std::int64_t layer = 0;
  std::int64_t array = 0;
};
struct MlxNumberData {  // a number, as i32
  std::int64_t value = 0;
};
struct MlxNoData {};  // None, as an array without values

using MlxData = std::variant<MlxSideData, MlxGroupData, MlxArrayData, MlxNumberData, MlxNoData>;

struct MlxTensor {
  tensors::NewTensor tensor;
  MlxData data;
};

struct MlxPlan {
  std::vector<MlxTensor> tensors;  // in the order in which their values are written
  std::map<std::string, std::string> metadata;
};

// Requires: every side of `cache` is dense.
// Errors:   kInvalidArgument (bits, groups, or a version that there is not; no layers or tokens).
Result<MlxPlan> plan_mlx(const format::Manifest& cache, const MlxLmExport& options);

}  // namespace tqcache::interop
