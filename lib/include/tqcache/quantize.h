#pragma once
// tqcache/quantize.h: the quantization of a cache: plans, presets, one-line configurations, and the
// conversion itself.
//
//   TQC_TRY_ASSIGN(const auto options, tqcache::cache::preset("k4v3"));
//   TQC_TRY_ASSIGN(const auto quantized, tqcache::cache::quantize(reader, options));
//
// There is one conversion, a view of a reader. Files, stores, caches of other programs and caches
// in memory all use it, so all produce the same bytes.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/kv_codec.h"
#include "tqcache/progress.h"
#include "tqcache/reader.h"

namespace tqcache::cache {

// --- Plans

// How K or V of a layer is stored.
struct TensorPlan {
  bool dense = false;  // stays dense; the other fields are ignored
  // head_dim comes from the layer. In mode mixed, outlier_channels 0 means a quarter of head_dim.
  codec::CodecSpec codec = {};
  // key_centering() and value_centering() give the effective value.
  Centering center = Centering::kPreRope;
  std::int64_t n_sinks = 0;  // first tokens that stay dense, 0 to kTokenBlock
  // Mode trellis: use transforms fitted to the vectors instead of a rotation.
  bool fit_transforms = false;
  bool keep_packed = false;  // already quantized tensors stay unchanged, whatever their settings
  bool keep_small_heads = false;  // those with a head_dim below codec::kMinHeadDim stay dense
  // Of a calibration, QuantSpec::factors. plan_layers() sets them from ConvertOptions::calibration.
  std::vector<std::int8_t> factors = {};

  bool operator==(const TensorPlan&) const = default;
};

// The first and last attention layers often lose most quality when quantized.
struct BoundaryLayers {
  std::int64_t n =
      0;         // at each end; layers without attention and windows that stay dense do not count
  int bits = 8;  // of mode mse; what is dense in the other layers is dense here too
};

// Mode trellis: the quantization step of each layer as a multiple of the plan's step, since a model
// needs some layers more exactly than others. [n_layers] each, including layers without attention,
// or empty: all use the plan's step. 0 leaves K or V dense. A product out of range is clamped to
// the nearest allowed step.
struct StepWeights {
  std::vector<float> keys = {};
  std::vector<float> values = {};

  bool operator==(const StepWeights&) const = default;
};

inline constexpr float kMinStepWeight = 1.0f / 8;  // of nonzero weights
inline constexpr float kMaxStepWeight = 8;

// What a calibration of a model says of the codec of its caches: the part of a profile
// (docs/reference/profile.md) that codes in memory use.
//
//   TQC_TRY_ASSIGN(const Calibration calibration, read_calibration("model.tqprofile"));
//   options.calibration = std::make_shared<const Calibration>(calibration);
//
// A codec without centering, or of mode affine or trellis, has no factors, whatever stands here.
struct Calibration {
  Sha256 weights_fingerprint{};    // of the model; 0: unknown, then only shapes are compared
  Sha256 tokenizer_fingerprint{};  // likewise
  // [n_layers]; of each [n_kv_heads, head_dim] as QuantSpec::factors, or empty: no factors, as of
  // layers without attention.
  std::vector<std::vector<std::int8_t>> key_factors = {};

  bool operator==(const Calibration&) const = default;
};

// Factors are 2^(f / 8), -kMostFactor <= f <= kMostFactor.
inline constexpr std::int8_t kMostFactor = 127;

// The calibration in a file of `tqcache profile`. Safe for untrusted input.
// Errors: kNotFound, kIo; kCorrupt (damaged, or not a profile), kUnsupported (an unknown version),
//         kInvalidArgument (a profile without factors of keys), kTooLarge.
Result<Calibration> read_calibration(const std::string& path, const MemoryBudget& memory = {});

// The digest by which users tell calibrations apart: of the factors of keys of these layers, in
// their order. Zero if no layer has any.
Sha256 factors_digest(const std::vector<LayerDesc>& layers);

// The treatment of sliding windows. An already quantized window stays quantized in any case.
enum class WindowMode {
  kAsTheyAre,
  // Quantized as full attention is, without sink tokens and transforms. Keys are not centered,
  // since in some models (Gemma 3) windows use a different RoPE than the cache describes.
  kTurbo,
  kTurboCentered,  // the same, with centered keys: for models with one RoPE
};

// The full token blocks that the means and transforms of codecs are fitted to.
enum class Fit : std::uint8_t {
  // The first one. Prompts can share token blocks only from the first one on; so all that can share
  // any have the same codecs, however they were converted, and their blocks the same bytes.
  kFirstBlock,
  // At most 32 of the whole prompt, evenly spread, for a cache that no other prompt shares. Errors
  // are slightly smaller: docs/explain/quality.md, "Means".
  kPrompt,
};

// The blocks, ascending; empty if none is full. In a sliding window that begins with token `begin`
// only those that lie in it, or, if there are none, the full one in which it begins.
std::vector<std::int64_t> fit_blocks(Fit fit, std::int64_t n_tokens, std::int64_t begin = 0);

// What quantization took from K or V of a layer, measured on its first, middle and last full token
// block: the energy of the error as a share of the energy of what tells the tokens of the block
// apart, which is what their mean leaves (of keys the mean before RoPE, if it is known). It is the
// median over the components of a head vector (over the pairs that RoPE rotates), of the kv head
// that fares worst. Vectors without structure lose .0095 at 4 bits, .034 at 3 and .12 at 2.
struct TensorLoss {
  std::int64_t layer = 0;
  TensorKind kind = TensorKind::kKeys;
  double share = 0;
};

// Above this a model hardly works: docs/explain/quality.md, "Tensors that quantize badly".
inline constexpr double kHeavyLoss = 1.5;

// Collects the losses of a conversion, the largest of each tensor.
//
//   options.losses = std::make_shared<LossLog>();
//   ... quantize(), read all blocks ...
//   for (const TensorLoss& loss : options.losses->losses())
//
// Threads: any number may add at once.
class LossLog {
 public:
  void add(const TensorLoss& loss);
  std::vector<TensorLoss> losses() const;  // by layer, keys first

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::int64_t, TensorKind>, TensorLoss> worst_;
};

struct ConvertOptions {
  TensorPlan keys = {};
  TensorPlan values = {};
  BoundaryLayers boundary = {};
  unsigned n_threads = 0;    // 0: all processors
  MemoryBudget memory = {};  // for windows that are quantized, which are in memory together
  // K and V stay as they are, dense or quantized; the plans are not used.
  bool keep_all = false;
  StepWeights weights = {};
  WindowMode windows = WindowMode::kAsTheyAre;  // windows with keep > 0 are never quantized
  Fit fit = Fit::kFirstBlock;
  std::shared_ptr<const Calibration> calibration = {};  // of the model; null: none
  std::string calibration_path = {};                    // of its file, for configuration_text()
  std::shared_ptr<LossLog> losses = {};                 // null: not measured
};

// What convert() does with each layer: [n_layers, 2], keys before values. Tensors that stay as they
// are, and recurrent state, have a dense plan. The other plans are complete: head_dim, the number
// of outlier channels, and the effective centering of K or V.
//
// Errors: kInvalidArgument (bits, sinks, boundary layers or weights out of range; weights for
//         another number of layers; K or V already quantized with different settings), kMismatch
//         (a calibration of another model or of other shapes),
//         kUnsupported (as codec::make_parts: an incompatible head_dim, number of outlier channels
//         or group size). The message names the layer and K or V if the error belongs to one.
Result<std::vector<TensorPlan>> plan_layers(const CacheDesc& cache, const ConvertOptions& options);

// The codec of a new K or V, not fixed yet. Codecs with the same plan and head_dim share their
// tables. Errors: kUnsupported, as codec::make_parts().
Result<KvCodec> make_codec(const TensorPlan& plan, codec::BlockOrder order, HeadShape shape,
                           Dtype dtype, KvTables tables);

// --- Presets: names of settings of K and V
//
//   turbo4 turbo3 turbo2   4, 3 or 2 bits for keys and values; turbo4 is the default
//   k8v4 k4v3 kfv4         different bits for keys and values; f: dense
//   turbo3.5 turbo2.5      one more bit for a quarter of the channels, the outliers: 3.25 and 2.25
//                          bits per code, and twice as many scales
//   prod4 prod3 prod2      unbiased inner products by a 1-bit residual, as in TurboQuant
//   affine8 affine4        groups of 64 channels with scale and bias, neither transformed nor
//                          centered: the usual baseline
//
// and names of goals, which are the best at their sizes (docs/explain/quality.md, "Three
// qualities"):
//
//   high balanced small    6 and 5 bits, turbo4, turbo3
//   turbo                  turbo4
//   archive                mode trellis with a step of .25, about 3 bits in a file; where
//                          format::choose_step() is used, as in `tqcache convert`, it replaces the
//                          step
//
// Each keeps the first kDefaultSinks tokens dense.

// What a configuration starts from that names no preset: the same as no configuration at all.
inline constexpr std::string_view kDefaultPreset = "turbo4";

// The first tokens that stay dense unless told otherwise. Queries of many models look at them most:
// dense, they halve the KL divergence of 4 bits on SmolLM2 (docs/explain/quality.md, "Sink
// tokens").
inline constexpr std::int64_t kDefaultSinks = 4;

// What a scale preserves by default in modes mse and mixed: below 4 bits (of regular channels) the
// length of a vector, since unbiased inner products cost too much there; from 4 bits on, inner
// products. Measured: docs/explain/quality.md, "Scales".
constexpr codec::ScaleRule usual_scale(int bits) {
  return bits < 4 ? codec::ScaleRule::kNorm : codec::ScaleRule::kUnbiased;
}

// Errors: kInvalidArgument for an unknown name; the message lists the known ones.
Result<ConvertOptions> preset(std::string_view name);

// The names of presets, the default first, and those of goals.
std::vector<std::string_view> preset_names();
std::vector<std::string_view> goal_names();

// One line of description. Empty for an unknown name.
std::string_view preset_description(std::string_view name);

// --- Configurations: the settings of a conversion on one line
//
//   a name              turbo4, k8v4, archive, ... (preset()); f32: everything dense; lossless: K
//                       and V stay as they are
//   items, by commas    k=mse:4,v=mse:3,boundary=2:8,sink=0
//
//   k=MODE:BITS, v=...  mse:4, prod:3, mixed:3 (mixed:3:32:4 sets outlier channels and their bits),
//                       affine:4 (affine:4:32 gives the group size), dense; trellis:0.25, the
//                       archive tier with that step, trellis:0.25:map with fitted transforms
//   k.weights=W:W:...   mode trellis: one weight per layer of the model, which multiplies the step
//                       of keys; .125 to 8, or 0: that layer stays dense. v.weights for values
//   boundary=N[:BITS]   N layers at each end get mode mse with BITS bits; default 8
//   windows=WORD        sliding windows: keep (unchanged), turbo, or turbo:center: with centered
//                       keys as well (WindowMode)
//   fit=WORD            first: codecs are fitted to the first token block; prompt: to 32 blocks of
//                       the whole prompt (Fit)
//   profile=FILE        the calibration in this file of `tqcache profile`: factors of keys. FILE
//                       has no comma and no semicolon
//   sink=N              number of first tokens that stay dense, 0 to 256; default kDefaultSinks
//   center=WORD         the mean that is subtracted: none, post-rope, pre-rope (the default)
//   rotation=WORD       the transform before quantizing: hadamard, or dense (slow, as in the paper)
//   rounds=N, seed=N    rounds of random signs and Hadamard transform, 1 to 3; seed of the signs
//   scale=WORD          what the scale of a vector preserves: unbiased (inner products), norm (the
//                       length), raw (neither)
//   residual=WORD       the matrix of mode prod: gaussian, orthogonal
//
// A name may be followed by items that change it: turbo3,sink=0,center=none. Without a name the
// items change the default preset. k= and v= replace the settings of K or V by the mode's defaults;
// the other items change these, in any order. Items from `sink` on apply to K and V where their
// mode supports them; the prefix k. or v. limits an item to one of them: k.center=none.

// The names of the configurations that leave everything dense, and everything as it is.
inline constexpr std::string_view kDenseName = "f32";
inline constexpr std::string_view kLosslessName = "lossless";

struct Configuration {
  std::string name;  // as it was written
  ConvertOptions options = {};
  // The text begins with "archive", so a step may be chosen in place of the usual one.
  bool is_archive = false;
  // Above 0: keys and values are coded as in a predicted archive with this step, and the options
  // are not used. Only eval::measure_predictions() knows such configurations.
  float predicted_step = 0;

  bool is_dense() const { return options.keys.dense && options.values.dense; }
};

// Errors: kInvalidArgument; the message names the item and the allowed values. What depends on the
// model, such as a group size that does not divide head_dim, is checked on use.
Result<Configuration> parse_configuration(std::string_view text);

// A list of configurations. Each name starts one, and the items after it belong to it: turbo4,
// kfv4,sink=4 are two. If a configuration starts with an item, semicolons separate all of them:
// k=mse:4;k=mse:3,v=mse:3.
Result<std::vector<Configuration>> parse_configurations(std::string_view text);

// The shortest text that parse_configuration() reads as the same options. Settings without effect
// are omitted, such as the bits of K when K stays dense.
std::string configuration_text(const ConvertOptions& options);

// --- Conversion

// A view that quantizes the full token blocks of K and V as they are read. The last block stays
// dense until it is full; recurrent state is unchanged, and so are sliding windows unless the
// options quantize them. K or V that is already quantized keeps its blocks if its codec, centering
// and sink tokens are the requested ones, and is rejected otherwise: quantizing again would add
// both errors.
//
// Codecs are fitted to the blocks that options.fit names. With Fit::kFirstBlock each block is read
// once; with Fit::kPrompt the fitted ones are read twice. Without a full block, codecs are fitted
// when the first block becomes full.
//
// Memory:   the blocks that K or V of one layer is fitted to (Fit::kPrompt: at most 32); in packed
//           form, the first block of every layer, and sliding windows that are quantized.
// Progress: bytes of the blocks that are read here.
// Errors:   as plan_layers(); those of the source; kTooLarge (windows); kInterrupted. Here or when
//           a block is read: kCorrupt (a value that is not finite), kUnsupported (a value whose
//           scale exceeds f16); the message names layer, K or V, token block, head and token.
// Bytes:    identical on every CPU and for any number of threads.
Result<std::shared_ptr<const CacheReader>> quantize(std::shared_ptr<const CacheReader> source,
                                                    const ConvertOptions& options,
                                                    const Progress& progress = {});

// The same with known codecs: those of `like`, layer by layer, as of a stored prompt that begins
// with the same tokens. Values that were quantized before keep the codec that they came with in
// this way. Codecs that are not fixed are fitted to the first full block.
//
// Errors: those of the source; kInvalidArgument (other layers; K or V that is already quantized
//         with another codec); kCorrupt, kUnsupported as KvCodec::make(). Reading a block: as
//         above.
Result<std::shared_ptr<const CacheReader>> quantize_like(std::shared_ptr<const CacheReader> source,
                                                         const std::vector<LayerDesc>& like,
                                                         unsigned n_threads = 0);

// The same for a cache in memory, layer by layer: the memory of a dense layer is released when the
// layer is quantized.
//
// Progress: bytes of the dense blocks of layers that are quantized.
// Errors:   as quantize(), and those of validate().
Result<Cache> convert(Cache cache, const ConvertOptions& options, const Progress& progress = {});

}  // namespace tqcache::cache
