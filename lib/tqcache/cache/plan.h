#pragma once
// cache/plan.h: how the sides of a cache shall be kept, and what that comes to for each layer.

#include <cstdint>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/cache/kv_codec.h"

namespace tqcache::cache {

// How one side is to be kept.
struct SidePlan {
  bool dense = false;  // stays dense; what follows does not count
  // head_dim is taken from the layer. Of mode mixed, outlier_channels 0 means a quarter of it.
  codec::CodecSpec codec = {};
  Centering center = Centering::kPreRope;  // key_centering() and value_centering() say what each gets
  OutlierPolicy outlier_policy = OutlierPolicy::kCalibrationVariance;
  std::int64_t n_sinks = 0;  // first tokens that stay dense, 0 to kTokenBlock
  // Of mode trellis: in place of its rotation, maps that are made for the vectors (head_transforms.h).
  bool fit_transforms = false;
  bool keep_packed = false;  // a side that is turbo already stays so, in whatever form it is

  bool operator==(const SidePlan&) const = default;
};

// The first and the last attention layers are often the ones that suffer most.
struct BoundaryLayers {
  std::int64_t n = 0;  // of each end; layers without attention do not count, nor windows that stay
  int bits = 8;        // of mode mse, for both sides; a side that stays dense elsewhere does here
};

// What each layer's step is times that of its plan, of mode trellis: a model needs some layers more
// exactly than others. [n_layers] each, layers without attention included, or empty: all have the
// plan's. 0 leaves a side dense. A product beyond what steps may be is the nearest that may.
struct StepWeights {
  std::vector<float> keys = {};
  std::vector<float> values = {};

  bool operator==(const StepWeights&) const = default;
};

inline constexpr float kMinStepWeight = 1.0f / 8;  // of those that are not 0
inline constexpr float kMaxStepWeight = 8;

// What becomes of sliding windows. One that is turbo already stays so in any case.
enum class WindowForm {
  kAsTheyAre,
  // Packed as full attention is, without sink tokens and maps; but keys are not centered, since in
  // some models (Gemma 3) those of windows turn otherwise than the cache's RoPE says.
  kTurbo,
  kTurboCentered,  // the same, keys centered as well: for models with one RoPE
};

struct ConvertOptions {
  SidePlan keys = {};
  SidePlan values = {};
  BoundaryLayers boundary = {};
  unsigned n_threads = 0;  // 0: all processors
  // Every side stays as it is, dense or turbo, in whatever form; plans have no meaning then.
  bool keep_all = false;
  StepWeights weights = {};
  WindowForm windows = WindowForm::kAsTheyAre;  // those that keep first tokens are never packed
};

// What convert() makes of each layer: [n_layers, 2], keys before values. Sides that stay as they
// are, windows that do and arrays layers have dense plans. In the others all is settled: head_dim,
// how many channels are loud, and the centering that the side really gets.
//
// Errors: kInvalidArgument (bits, sinks, boundary layers or weights out of range; weights of
// another
//         number of layers; a side that is turbo already, in another form), kUnsupported (as
//         codec::make_parts: a head_dim, number of outlier channels or group size that do not go
//         together). The message names layer and side where there is one to name.
Result<std::vector<SidePlan>> plan_layers(const CacheDesc& cache, const ConvertOptions& options);

// The codec of a new K or V, which is not fixed yet. Codecs of one plan and head_dim share their
// tables. Errors: kUnsupported, as codec::make_parts().
Result<KvCodec> make_codec(const SidePlan& plan, codec::BlockOrder order, HeadShape shape,
                           Dtype dtype, KvTables tables);

}  // namespace tqcache::cache
