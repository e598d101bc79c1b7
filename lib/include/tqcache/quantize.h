#pragma once
// tqcache/quantize.h: the quantization of a cache: plans, presets, configurations on one line, and
// the conversion itself.
//
//   TQC_TRY_ASSIGN(const auto options, tqcache::cache::preset("k4v3"));
//   TQC_TRY_ASSIGN(const auto quantized, tqcache::cache::quantize(reader, options));
//
// There is one conversion, a view of a reader. Files, stores, other programs' caches and caches in
// memory all go through it, and get the same bytes.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/kv_codec.h"
#include "tqcache/progress.h"
#include "tqcache/reader.h"

namespace tqcache::cache {

// --- Plans

// How K or V of a layer is kept.
struct SidePlan {
  bool dense = false;  // stays dense; what follows does not count
  // head_dim is taken from the layer. Of mode mixed, outlier_channels 0 means a quarter of it.
  codec::CodecSpec codec = {};
  Centering center =
      Centering::kPreRope;  // key_centering() and value_centering() say what each gets
  OutlierPolicy outlier_policy = OutlierPolicy::kCalibrationVariance;
  std::int64_t n_sinks = 0;  // first tokens that stay dense, 0 to kTokenBlock
  // Of mode trellis: transforms that are fitted to the vectors, instead of a rotation.
  bool fit_transforms = false;
  bool keep_packed = false;  // what is quantized already stays as it is, in any form

  bool operator==(const SidePlan&) const = default;
};

// The first and the last attention layers often lose most by quantization.
struct BoundaryLayers {
  std::int64_t n =
      0;         // at each end; layers without attention and windows that stay dense do not count
  int bits = 8;  // of mode mse, for K and V; what is dense in other layers is dense here, too
};

// Of mode trellis: the step of each layer as a multiple of the plan's, since a model needs some
// layers more exactly than others. [n_layers] each, layers without attention included, or empty:
// all have the plan's step. 0 leaves K or V dense. A product out of range becomes the nearest
// allowed step.
struct StepWeights {
  std::vector<float> keys = {};
  std::vector<float> values = {};

  bool operator==(const StepWeights&) const = default;
};

inline constexpr float kMinStepWeight = 1.0f / 8;  // of those that are not 0
inline constexpr float kMaxStepWeight = 8;

// What becomes of sliding windows. One that is quantized already stays so in any case.
enum class WindowForm {
  kAsTheyAre,
  // Packed as full attention is, without sink tokens and transforms. Keys are not centered, since
  // in some models (Gemma 3) windows have another RoPE than the cache says.
  kTurbo,
  kTurboCentered,  // the same, keys centered as well: for models with one RoPE
};

struct ConvertOptions {
  SidePlan keys = {};
  SidePlan values = {};
  BoundaryLayers boundary = {};
  unsigned n_threads = 0;  // 0: all processors
  // K and V stay as they are, dense or quantized; the plans are not used.
  bool keep_all = false;
  StepWeights weights = {};
  WindowForm windows = WindowForm::kAsTheyAre;  // those that keep first tokens are never packed
};

// What convert() makes of each layer: [n_layers, 2], keys before values. What stays as it is, and
// recurrent state, has a dense plan. The other plans are complete: head_dim, the number of outlier
// channels, and the centering that K or V really gets.
//
// Errors: kInvalidArgument (bits, sinks, boundary layers or weights out of range; weights of
//         another number of layers; K or V that is quantized already, in another form),
//         kUnsupported (as codec::make_parts: a head_dim, number of outlier channels or group size
//         that do not go together). The message names the layer and K or V where there is one to
//         blame.
Result<std::vector<SidePlan>> plan_layers(const CacheDesc& cache, const ConvertOptions& options);

// The codec of a new K or V, which is not fixed yet. Codecs of one plan and head_dim share their
// tables. Errors: kUnsupported, as codec::make_parts().
Result<KvCodec> make_codec(const SidePlan& plan, codec::BlockOrder order, HeadShape shape,
                           Dtype dtype, KvTables tables);

// --- Presets
//
//   turbo4 turbo3 turbo2   so many bits for keys and values
//   turbo3.5 turbo2.5      one bit more for a quarter of the channels, the outliers: 3.25 and 2.25
//                          bits per code, and twice the scales
//   k8v4 k4v3 kfv4         other bits for keys than for values; f: dense
//   prod4 prod3 prod2      unbiased inner products by a residual of one bit, as TurboQuant has it
//   affine8 affine4        groups of 64 channels with scale and bias, neither transformed nor
//                          centered: the usual baseline

inline constexpr std::string_view kDefaultPreset = "turbo4";

// What a scale preserves in modes mse and mixed by default: below 4 bits (of regular channels) the
// length of a vector, since unbiased inner products cost too much there; from 4 bits on inner
// products. Measured: docs/explain/quality.md, "Scales".
constexpr codec::ScaleRule usual_scale(int bits) {
  return bits < 4 ? codec::ScaleRule::kNorm : codec::ScaleRule::kUnbiased;
}

// Errors: kInvalidArgument for a name that is not known; the message gives those that are.
Result<ConvertOptions> preset(std::string_view name);

// All of them, the default first.
std::vector<std::string_view> preset_names();

// One line of description. Empty for an unknown name.
std::string_view preset_description(std::string_view name);

// Three configurations by their purpose: "high", "balanced" (the default preset) and "small", the
// best measured ones of their sizes (docs/explain/quality.md, "Three qualities").
// Errors: kInvalidArgument for another word.
Result<ConvertOptions> quality(std::string_view word);
std::vector<std::string_view> quality_words();

// --- Configurations: a way to keep a cache, written on one line
//
//   a preset            turbo4, k8v4, kfv4, ... (preset()), or f32: all stays dense
//   items, by commas    k=mse:4,v=mse:3,boundary=2:8,sink=4
//
//   k=MODE:BITS, v=...  mse:4, prod:3, mixed:3 (mixed:3:32:4 says outlier channels and their bits),
//                       affine:4 (affine:4:32 says the group), dense; trellis:0.25, the archive
//                       tier with that step, trellis:0.25:map with transforms fitted to the vectors
//   k.weights=W:W:...   of trellis: for each layer of the model its step as a multiple of that
//                       of all keys, .125 to 8, or 0: that layer stays dense. v.weights of values
//   boundary=N[:BITS]   so many layers at each end with so many bits of mode mse; 8 by default
//   windows=WORD        sliding windows: keep (as they are), turbo, or turbo:center: with their
//                       keys centered, too (WindowForm)
//   sink=N              first tokens that stay dense
//   center=WORD         none, post-rope, pre-rope
//   rotation=WORD, rounds=N, seed=N, scale=WORD, residual=WORD (of mode prod), outliers=WORD (of
//   mode mixed)         as the flags of `tqcache convert` have them
//
// A preset may be followed by items that change it: turbo4,sink=4,center=none. Without one the
// items change the default preset. k= and v= replace the settings of K or V by the usual ones of
// the mode; the other items change these, in any order. Items from `sink` on are for K and V, as
// far as these can have them, or with k. or v. before the name for one of them: k.center=none.

// The name of the configuration that leaves everything dense.
inline constexpr std::string_view kDenseName = "f32";

// What a text does not say is the default of `convert`.
struct Configuration {
  std::string name;  // as it was written
  ConvertOptions options = {};

  bool is_dense() const { return options.keys.dense && options.values.dense; }
};

// Errors: kInvalidArgument; the message names the item, and what could stand there. What depends on
// the model, such as a head_dim that a group does not divide, is checked when it is used.
Result<Configuration> parse_configuration(std::string_view text);

// A list of configurations. A name begins one, and the items after it belong to it: turbo4,
// kfv4,sink=4 are two. If one begins with an item, semicolons separate them all:
// k=mse:4;k=mse:3,v=mse:3.
Result<std::vector<Configuration>> parse_configurations(std::string_view text);

// The shortest text that parse_configuration() reads as the same options: what has no effect is
// left out, such as the bits of K when K stays dense.
std::string configuration_text(const ConvertOptions& options);

// --- Conversion

// A view that packs the full token blocks of K and V as they are read. The last block stays dense
// until it is full; recurrent state stays as it is, and so do sliding windows unless the options
// quantize them. K or V that is quantized already keeps its packed blocks when its codec, centering
// and sink tokens are the ones asked for, and is refused otherwise: packing again would add the
// error of both.
//
// The mean of K or V is taken over mean_blocks(), outlier channels over the blocks that the policy
// names. These token blocks are read here, and once more when they are packed. Without a full block
// mean and outlier channels stay open until the first block is full.
//
// Memory:   the token blocks that the mean of one K or V is taken over (at most 32), and sliding
//           windows that are quantized, in packed form.
// Progress: bytes of the blocks that are read here.
// Errors:   as plan_layers(); those of the source; kTooLarge (windows); kInterrupted. Reading a
//           block: kCorrupt (a value that is not finite), kUnsupported (one whose scale is beyond
//           f16); the message names layer, K or V, token block, head and token.
// Bytes:    identical on every CPU and for any number of threads.
Result<std::shared_ptr<const CacheReader>> quantize(std::shared_ptr<const CacheReader> source,
                                                    const ConvertOptions& options,
                                                    const Progress& progress = {});

// The same for a cache in memory, layer by layer: the memory of a dense layer is released when the
// layer is packed.
//
// Progress: bytes of the dense blocks of layers that are quantized.
// Errors:   as quantize(), and those of validate().
Result<Cache> convert(Cache cache, const ConvertOptions& options, const Progress& progress = {});

}  // namespace tqcache::cache
