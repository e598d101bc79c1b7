#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tqcache/cache/centering.h"
#include "tqcache/cache/key_factors.h"
#include "tqcache/error.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {
namespace {

using codec::BlockOrder;

constexpr std::array<std::string_view, 2> kTensorNames = {" k", " v"};
constexpr std::array<BlockOrder, 2> kTensorOrders = {BlockOrder::kKeys, BlockOrder::kValues};

std::string_view words(Centering centering) {
  switch (centering) {
    case Centering::kNone:
      return "no centering";
    case Centering::kPostRope:
      return "centering after RoPE";
    default:
      return "centering before RoPE";
  }
}

bool is_bits(int bits) { return bits >= codec::kMinBits && bits <= codec::kMaxBits; }

Result<void> check_plan(const TensorPlan& plan) {
  if (plan.dense) return {};
  if (!is_bits(plan.codec.bits)) return invalid(std::to_string(plan.codec.bits) + " bits");
  if (plan.n_sinks < 0 || plan.n_sinks > kTokenBlock) {
    return invalid(std::to_string(plan.n_sinks) + " sink tokens");
  }
  return {};
}

Result<void> check_options(const ConvertOptions& options) {
  if (auto keys = check_plan(options.keys); !keys) {
    return in_context("keys", std::move(keys).error());
  }
  if (auto values = check_plan(options.values); !values) {
    return in_context("values", std::move(values).error());
  }
  if (options.boundary.n < 0) {
    return invalid(std::to_string(options.boundary.n) + " boundary layers");
  }
  if (!is_bits(options.boundary.bits)) {
    return invalid("boundary layers: " + std::to_string(options.boundary.bits) + " bits");
  }
  return {};
}

Result<void> check_weights(const StepWeights& weights, std::size_t n_layers) {
  const auto in_range = [](float weight) {
    return weight == 0 || (weight >= kMinStepWeight && weight <= kMaxStepWeight);
  };
  for (const std::vector<float>* each : {&weights.keys, &weights.values}) {
    if (each->empty()) continue;
    if (each->size() != n_layers) {
      return invalid(std::to_string(each->size()) + " weights of steps for " +
                     std::to_string(n_layers) + " layers");
    }
    const auto bad = std::ranges::find_if_not(*each, in_range);
    if (bad != each->end()) return invalid("a step " + std::to_string(*bad) + " times as wide");
  }
  return {};
}

// The plan of a boundary layer, made from `plan`.
TensorPlan boundary_plan(TensorPlan plan, int bits) {
  codec::CodecSpec spec;
  spec.bits = bits;
  spec.seed = plan.codec.seed;
  spec.rotation = plan.codec.rotation;
  spec.rounds = plan.codec.rounds;
  if (plan.codec.mode != codec::Mode::kProd) spec.scale = plan.codec.scale;
  plan.codec = spec;
  return plan;
}

// `plan` with the step weight of one layer. Empty `weights`: all layers use the plan's step.
TensorPlan weighted_plan(TensorPlan plan, const std::vector<float>& weights, std::size_t layer) {
  if (weights.empty() || plan.dense || plan.codec.mode != codec::Mode::kTrellis) return plan;
  plan.dense = weights[layer] == 0;
  plan.codec.step = std::clamp(plan.codec.step * weights[layer], codec::kMinStep, codec::kMaxStep);
  return plan;
}

// Fills in what depends on the layer. Applying it twice has no further effect.
TensorPlan settled(TensorPlan plan, BlockOrder order, std::int64_t head_dim, const Rope& rope) {
  plan.codec.head_dim = static_cast<int>(head_dim);
  if (plan.codec.mode == codec::Mode::kMixed && plan.codec.outlier_channels == 0) {
    plan.codec.outlier_channels = static_cast<int>(head_dim / 4);
  }
  if (plan.fit_transforms) plan.codec.rotation = codec::TransformKind::kNone;
  plan.center = order == BlockOrder::kKeys ? key_centering(plan.center, rope, head_dim)
                                           : value_centering(plan.center);
  const bool has_factors = order == BlockOrder::kKeys && plan.center != Centering::kNone &&
                           may_have_factors(plan.codec.mode);
  if (!has_factors) plan.factors.clear();
  return plan;
}

TensorPlan dense_plan() {
  TensorPlan plan;
  plan.dense = true;
  return plan;
}

std::string form_of(const QuantSpec& quant) {
  std::string form = "mode " + std::string(codec::mode_word(quant.mode));
  if (quant.mode == codec::Mode::kMse) {
    form += " with " + std::to_string(quant.parts[0].bits) + " bits";
  }
  form += ", " + std::string(words(quant.centering));
  if (quant.n_sinks != 0) form += ", " + std::to_string(quant.n_sinks) + " sink tokens";
  if (!quant.factors.empty()) form += ", with factors of keys";
  return form;
}

// Errors: the tensor is quantized with settings other than those of `plan`.
Result<void> check_form(const TensorDesc& tensor, const TensorPlan& plan,
                        const std::vector<codec::PartSpec>& parts) {
  if (!tensor.quant) return {};
  const QuantSpec& quant = *tensor.quant;
  if (!plan.dense && quant.parts == parts && quant.centering == plan.center &&
      quant.n_sinks == plan.n_sinks && quant.factors == plan.factors) {
    return {};
  }
  return invalid("is packed already, in " + form_of(quant) +
                 "; to quantize it in another way, convert the dense cache it was made from");
}

Result<TensorPlan> plan_tensor(const TensorDesc& tensor, const TensorPlan& wanted, BlockOrder order,
                               std::int64_t head_dim, KvTables& tables) {
  if (wanted.keep_packed && is_quantized(tensor)) return dense_plan();
  if (wanted.dense) {
    TQC_TRY(check_form(tensor, wanted, {}));
    return dense_plan();
  }
  const bool is_small = head_dim < codec::kMinHeadDim;
  if (wanted.keep_small_heads && is_small && !is_quantized(tensor)) return dense_plan();
  const TensorPlan plan = settled(wanted, order, head_dim, tables.rope());
  auto made = tables.parts(plan.codec);
  if (!made && is_small) {
    Error error = std::move(made).error();
    error.message += "; it can stay dense (--bits 16)";
    return error;
  }
  TQC_TRY_ASSIGN(const auto parts, std::move(made));
  TQC_TRY(check_form(tensor, plan, parts));
  return plan;
}

// A layer to be quantized: full attention, or a window.
struct PackedLayer {
  const AttentionDesc* attention;
  bool is_window;
};

std::optional<PackedLayer> packed_layer(const LayerDesc& layer, WindowMode windows) {
  using Found = std::optional<PackedLayer>;
  return std::visit(Overload{[](const AttentionDesc& attention) -> Found {
                               return PackedLayer{&attention, /*is_window=*/false};
                             },
                             [&](const WindowDesc& window) -> Found {
                               const bool stays =
                                   window.window.keep != 0 || windows == WindowMode::kAsTheyAre;
                               if (stays) return std::nullopt;
                               return PackedLayer{&window.attention, /*is_window=*/true};
                             },
                             [](const StateDesc&) -> Found { return std::nullopt; }},
                    layer);
}

// `plan` for a tensor of a window: without sink tokens, which leave the window, and without
// transforms, for which it is too short.
TensorPlan window_plan(TensorPlan plan, BlockOrder order, WindowMode windows) {
  plan.n_sinks = 0;
  plan.fit_transforms = false;
  const bool is_plain = order == BlockOrder::kKeys && windows != WindowMode::kTurboCentered;
  if (is_plain) plan.center = Centering::kNone;
  return plan;
}

// Whether the calibration is of the model of the cache. A fingerprint that either does not know is
// not compared.
Result<void> check_calibration(const Calibration& calibration, const CacheDesc& cache) {
  const auto mismatch = [](const std::string& what) {
    return Error{ErrorCode::kMismatch, "the profile belongs to another model: " + what};
  };
  const auto differ = [](const Sha256& a, const Sha256& b) {
    return a != Sha256{} && b != Sha256{} && a != b;
  };
  const Identity& identity = cache.identity;
  if (differ(calibration.weights_fingerprint, identity.weights_fingerprint)) {
    return mismatch("the weights fingerprint is " + to_hex(calibration.weights_fingerprint) +
                    ", that of the cache is " + to_hex(identity.weights_fingerprint));
  }
  if (differ(calibration.tokenizer_fingerprint, identity.tokenizer_fingerprint)) {
    return mismatch("the tokenizer fingerprint is " + to_hex(calibration.tokenizer_fingerprint) +
                    ", that of the cache is " + to_hex(identity.tokenizer_fingerprint));
  }
  if (calibration.key_factors.size() != cache.layers.size()) {
    return mismatch("it has " + std::to_string(calibration.key_factors.size()) +
                    " layers, the cache has " + std::to_string(cache.layers.size()));
  }
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    const auto& factors = calibration.key_factors[i];
    if (factors.empty()) continue;
    const AttentionDesc* const layer = attention_of(cache.layers[i]);
    if (layer == nullptr || !check_factor_values(factors, layer->shape)) {
      return mismatch("layer " + std::to_string(i) + " of the cache has other heads");
    }
  }
  return {};
}

// Plans K and V of layer `index`. Its number among the quantized layers decides whether it is a
// boundary layer.
class LayerPlanner {
 public:
  LayerPlanner(const CacheDesc& cache, const ConvertOptions& options)
      : cache_(cache), options_(options), tables_(cache.identity.rope) {
    n_packed_ = std::ranges::count_if(cache.layers, [&](const LayerDesc& layer) {
      return packed_layer(layer, options.windows).has_value();
    });
  }

  // Plans: [2], for K and V; unchanged unless the layer is to be quantized.
  Result<void> plan(std::size_t index, std::span<TensorPlan> plans) {
    const auto layer = packed_layer(cache_.layers[index], options_.windows);
    if (!layer) return {};
    const BoundaryLayers& boundary = options_.boundary;
    const bool is_boundary = number_ < boundary.n || number_ >= n_packed_ - boundary.n;
    ++number_;
    const std::array<TensorPlan, 2> wanted = {
        weighted_plan(options_.keys, options_.weights.keys, index),
        weighted_plan(options_.values, options_.weights.values, index)};
    const std::array<const TensorDesc*, 2> tensors = {&layer->attention->k, &layer->attention->v};
    for (std::size_t s = 0; s < 2; ++s) {
      TensorPlan plan = is_boundary ? boundary_plan(wanted[s], boundary.bits) : wanted[s];
      if (s == 0 && options_.calibration != nullptr) {
        plan.factors = options_.calibration->key_factors[index];
      }
      if (layer->is_window) plan = window_plan(plan, kTensorOrders[s], options_.windows);
      // There are no vectors to fit transforms to, and the request cannot be stored.
      if (cache_.n_tokens() < kTokenBlock) plan.fit_transforms = false;
      const AttentionDesc& attention = *layer->attention;
      const HeadShape shape = s == 0 ? attention.shape : attention.value_shape();
      auto planned = plan_tensor(*tensors[s], plan, kTensorOrders[s], shape.head_dim, tables_);
      if (!planned) {
        return in_context("layer " + std::to_string(index) + std::string(kTensorNames[s]),
                          std::move(planned).error());
      }
      plans[s] = std::move(planned).value();
    }
    return {};
  }

 private:
  const CacheDesc& cache_;
  const ConvertOptions& options_;
  KvTables tables_;
  std::int64_t n_packed_ = 0;
  std::int64_t number_ = 0;
};

}  // namespace

Result<std::vector<TensorPlan>> plan_layers(const CacheDesc& cache, const ConvertOptions& options) {
  std::vector<TensorPlan> plans(2 * cache.layers.size(), dense_plan());
  if (options.keep_all) return plans;
  TQC_TRY(check_options(options));
  TQC_TRY(check_weights(options.weights, cache.layers.size()));
  if (options.calibration != nullptr) TQC_TRY(check_calibration(*options.calibration, cache));
  LayerPlanner planner(cache, options);
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    TQC_TRY(planner.plan(i, std::span(plans).subspan(2 * i, 2)));
  }
  return plans;
}

Result<KvCodec> make_codec(const TensorPlan& wanted, BlockOrder order, HeadShape shape, Dtype dtype,
                           KvTables tables) {
  const TensorPlan plan = settled(wanted, order, shape.head_dim, tables.rope());
  QuantSpec quant;
  quant.mode = plan.codec.mode;
  quant.centering = plan.center;
  quant.n_sinks = plan.n_sinks;
  quant.factors = plan.factors;
  TQC_TRY_ASSIGN(quant.parts, tables.parts(plan.codec));
  return KvCodec::make({dtype, std::move(quant)}, shape, order, tables, plan.fit_transforms);
}

}  // namespace tqcache::cache
