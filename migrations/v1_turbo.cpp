// TurboQuantKVCache: keys with one or two quantizers, values dense or in groups; or everything
// dense, until the outlier channels are chosen.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "migrations/v1_kv.h"
#include "migrations/v1_layers.h"
#include "migrations/v1_metadata.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/codec/codebook.h"
#include "tqcache/error.h"

namespace tqcache::migrations {
namespace {

cache::HeadShape shape_of(const TurboMeta& meta) { return {meta.num_kv_heads, meta.head_dim}; }

// --- keys

// One quantizer: tensors PREFIX_idx, PREFIX_norms and, with mode prod, PREFIX_signs and
// PREFIX_residuals.
struct Quantizer {
  const char* prefix;
  std::int64_t first;  // channel, outlier channels first
  std::int64_t n_channels;
  int bits;  // of a code

  std::string name(const char* what) const { return std::string(prefix) + "_" + what; }
};

codec::PartSpec base_part(const TurboMeta& meta, const Quantizer& quantizer) {
  const int dim = static_cast<int>(quantizer.n_channels);
  return {
      .first = static_cast<int>(quantizer.first),
      .head_dim = dim,
      .bits = quantizer.bits,
      .seed = meta.rotation_seed,
      .rotation = meta.is_wht ? codec::TransformKind::kHadamard : codec::TransformKind::kDenseQr,
      .scale = codec::ScaleRule::kRaw,
      .centroids = codec::lloyd_max_centroids(dim, quantizer.bits)};
}

codec::PartSpec residual_part(const TurboMeta& meta, const Quantizer& quantizer) {
  const int dim = static_cast<int>(quantizer.n_channels);
  return {.first = static_cast<int>(quantizer.first),
          .head_dim = dim,
          .bits = 1,
          .seed = meta.qjl_seed,
          .rotation = codec::TransformKind::kGaussian,
          .scale = codec::ScaleRule::kRaw,
          .of_residual = true,
          .centroids = codec::residual_centroids(dim, codec::TransformKind::kGaussian)};
}

Result<void> check_lengths(const std::string& name, const std::vector<float>& lengths) {
  // Written so that NaN fails.
  const auto is_length = [](float x) { return x >= 0 && x <= 3.4028234e38f; };
  if (std::ranges::all_of(lengths, is_length)) return {};
  return corrupt("tensor \"" + name + "\": a length that is not a finite number >= 0");
}

// Adds codes and lengths, as one more part.
Result<void> add_part(const NamedTensors& state, const TurboMeta& meta, codec::PartSpec spec,
                      const std::string& codes, const std::string& lengths,
                      QuantizedTensor& tensor) {
  QuantizedPart part{
      .spec = std::move(spec), .rows = tensor.rows.size(), .scales = {}, .biases = {}};
  CodeRows rows{{}, static_cast<std::size_t>(part.spec.head_dim), part.spec.bits};
  if (meta.offset > 0) {
    const auto row_bytes = static_cast<std::int64_t>(codec::packed_size(rows.n_codes, rows.bits));
    TQC_TRY_ASSIGN(rows.bytes,
                   state.bytes(codes, V1Dtype::kU8, {meta.num_kv_heads, meta.offset, row_bytes}));
    TQC_TRY_ASSIGN(part.scales, state.floats(lengths, {meta.num_kv_heads, meta.offset, 1}));
    TQC_TRY(check_lengths(lengths, part.scales));
  }
  tensor.rows.push_back(rows);
  tensor.parts.push_back(std::move(part));
  return {};
}

Result<void> add_quantizer(const NamedTensors& state, const TurboMeta& meta,
                           const Quantizer& quantizer, QuantizedTensor& tensor) {
  TQC_TRY(add_part(state, meta, base_part(meta, quantizer), quantizer.name("idx"),
                   quantizer.name("norms"), tensor));
  if (meta.is_prod) {
    return add_part(state, meta, residual_part(meta, quantizer), quantizer.name("signs"),
                    quantizer.name("residuals"), tensor);
  }
  return state.require_absent({quantizer.name("signs"), quantizer.name("residuals")});
}

// The channels of outlier_mask, ascending.
Result<std::vector<std::uint16_t>> read_mask(const NamedTensors& state, const TurboMeta& meta) {
  TQC_TRY_ASSIGN(const V1Tensor* mask, state.require("outlier_mask"));
  const std::vector<std::uint64_t> expected = {static_cast<std::uint64_t>(meta.head_dim)};
  if (mask->dtype != V1Dtype::kBool || mask->shape != expected) {
    return corrupt(describe(*mask) + ": not a boolean for each channel");
  }
  std::vector<std::uint16_t> outliers;
  for (std::size_t i = 0; i < mask->data.size(); ++i) {
    if (mask->data[i] != std::byte{0}) outliers.push_back(static_cast<std::uint16_t>(i));
  }
  if (static_cast<std::int64_t>(outliers.size()) == meta.mixed->outlier_channels) return outliers;
  return corrupt(fmt::format("tensor \"outlier_mask\": {} channels where {} belong",
                             outliers.size(), meta.mixed->outlier_channels));
}

std::pair<Quantizer, Quantizer> mixed_quantizers(const TurboMeta& meta) {
  const MixedMeta& mixed = *meta.mixed;
  return {{"out", 0, mixed.outlier_channels, meta.code_bits(mixed.outlier_high_bits)},
          {"reg", mixed.outlier_channels, meta.head_dim - mixed.outlier_channels,
           meta.code_bits(mixed.regular_bits)}};
}

Result<QuantizedTensor> quantized_keys(const NamedTensors& state, const TurboMeta& meta) {
  QuantizedTensor tensor{
      .shape = shape_of(meta), .n_tokens = meta.offset, .rows = {}, .parts = {}, .outliers = {}};
  if (!meta.mixed) {
    TQC_TRY(state.require_absent(
        {"out_idx", "out_norms", "out_signs", "out_residuals", "outlier_mask"}));
    TQC_TRY(add_quantizer(state, meta, {"reg", 0, meta.head_dim, meta.bits_mse}, tensor));
    return tensor;
  }
  TQC_TRY_ASSIGN(tensor.outliers, read_mask(state, meta));
  const auto [outliers, regular] = mixed_quantizers(meta);
  TQC_TRY(add_quantizer(state, meta, outliers, tensor));
  TQC_TRY(add_quantizer(state, meta, regular, tensor));
  return tensor;
}

// --- values

Result<cache::Tensor> dense_values(const NamedTensors& state, const TurboMeta& meta,
                                   MigrationContext& context) {
  if (meta.offset == 0) return cache::Tensor(cache::DenseTensor{Dtype::kF32, {}});
  TQC_TRY_ASSIGN(const V1Tensor* from, state.require("values_main"));
  TQC_TRY_ASSIGN(const Grid grid, grid_of(*from));
  if (grid != Grid{meta.num_kv_heads, meta.offset, meta.head_dim}) {
    return corrupt(describe(*from) + ": unlike the keys");
  }
  TQC_TRY_ASSIGN(cache::DenseTensor tensor,
                 dense_tensor(*from, shape_of(meta), meta.offset, context));
  return cache::Tensor(std::move(tensor));
}

Result<cache::Tensor> values(const NamedTensors& state, const TurboMeta& meta,
                             std::string_view place, MigrationContext& context) {
  if (!meta.has_affine_values) {
    TQC_TRY(
        state.require_absent({"values_main.packed", "values_main.scales", "values_main.biases"}));
    return dense_values(state, meta, context);
  }
  TQC_TRY(state.require_absent({"values_main"}));
  return affine_tensor(state, "values_main", {meta.value_bits, meta.value_group_size},
                       shape_of(meta), meta.offset, codec::BlockOrder::kValues, place, context);
}

// --- before the outlier channels are chosen

// Tokens stay dense until there are enough to choose outlier channels: at most one block.
bool is_calibrating(const TurboMeta& meta, const CalibrationMeta& calibration) {
  return meta.mixed && !calibration.is_done;
}

Result<void> check_calibration(const NamedTensors& state, const TurboMeta& meta,
                               const CalibrationMeta& calibration) {
  TQC_TRY(state.require_absent({"reg_idx", "reg_norms", "reg_signs", "reg_residuals", "out_idx",
                                "out_norms", "out_signs", "out_residuals", "outlier_mask",
                                "values_main", "values_main.packed", "values_main.scales",
                                "values_main.biases"}));
  if (meta.offset > cache::kTokenBlock) {
    return corrupt(fmt::format("a calibration of {} tokens", meta.offset));
  }
  if (calibration.tokens_seen == meta.offset) return {};
  return corrupt(fmt::format("calibration_tokens_seen {} where offset is {}",
                             calibration.tokens_seen, meta.offset));
}

struct CalibrationTensors {
  cache::DenseTensor k, v;
};

Result<CalibrationTensors> calibration_tensors(const NamedTensors& extra, const TurboMeta& meta,
                                               MigrationContext& context) {
  if (meta.offset == 0) return CalibrationTensors{{Dtype::kF32, {}}, {Dtype::kF32, {}}};
  TQC_TRY_ASSIGN(const DensePair pair, dense_pair(extra, "calibration_keys", "calibration_values"));
  if (!(pair.shape == shape_of(meta)) || pair.n_tokens != meta.offset) {
    return corrupt(describe(*pair.keys) + ": unlike meta_state");
  }
  CalibrationTensors tensors;
  TQC_TRY_ASSIGN(tensors.k, dense_tensor(*pair.keys, pair.shape, pair.n_tokens, context));
  TQC_TRY_ASSIGN(tensors.v, dense_tensor(*pair.values, pair.shape, pair.n_tokens, context));
  return tensors;
}

// K or V that will be quantized with these parts once it has a full block, if version 2 supports
// them.
Result<cache::Tensor> open_tensor(const Result<std::vector<codec::PartSpec>>& parts,
                                  const TurboMeta& meta, codec::BlockOrder order,
                                  const std::string& place, cache::DenseTensor dense,
                                  MigrationContext& context) {
  const auto reason =
      parts ? why_no_codec(meta.head_dim, *parts) : std::optional(parts.error().message);
  if (reason) {
    context.notes.push_back(place + ": " + *reason + "; kept dense");
    return cache::Tensor(std::move(dense));
  }
  const cache::TensorDesc tensor{dense.dtype, cache::QuantSpec{.parts = *parts}};
  TQC_TRY_ASSIGN(cache::KvCodec codec, context.codecs.codec(tensor, shape_of(meta), order));
  return cache::Tensor(cache::TurboTensor{std::move(codec), {}, std::move(dense)});
}

std::vector<codec::PartSpec> mixed_parts(const TurboMeta& meta) {
  std::vector<codec::PartSpec> parts;
  const auto [outliers, regular] = mixed_quantizers(meta);
  for (const Quantizer& quantizer : {outliers, regular}) {
    parts.push_back(base_part(meta, quantizer));
    if (meta.is_prod) parts.push_back(residual_part(meta, quantizer));
  }
  return parts;
}

Result<std::vector<codec::PartSpec>> affine_parts(const TurboMeta& meta) {
  return codec::make_parts({.head_dim = static_cast<int>(meta.head_dim),
                            .mode = codec::Mode::kAffine,
                            .bits = meta.value_bits,
                            .group_size = static_cast<int>(meta.value_group_size)});
}

Result<MigratedLayer> calibrating_layer(const V1Entry& entry, const TurboMeta& meta,
                                        const CalibrationMeta& calibration, std::string_view place,
                                        MigrationContext& context) {
  TQC_TRY(check_calibration(NamedTensors(entry.state), meta, calibration));
  TQC_TRY_ASSIGN(CalibrationTensors dense,
                 calibration_tensors(NamedTensors(entry.extra_state), meta, context));
  const std::string layer(place);
  TQC_TRY_ASSIGN(cache::Tensor k, open_tensor(mixed_parts(meta), meta, codec::BlockOrder::kKeys,
                                              layer + " k", std::move(dense.k), context));
  cache::Tensor v(std::move(dense.v));
  if (meta.has_affine_values) {
    TQC_TRY_ASSIGN(v,
                   open_tensor(affine_parts(meta), meta, codec::BlockOrder::kValues, layer + " v",
                               std::get<cache::DenseTensor>(std::move(v)), context));
  }
  return MigratedLayer{cache::AttentionLayer{shape_of(meta), std::move(k), std::move(v)},
                       meta.offset};
}

template <class T>
Result<T> in_tensor(const char* word, Result<T> tensor) {
  if (!tensor) return in_context(word, std::move(tensor).error());
  return tensor;
}

}  // namespace

Result<MigratedLayer> turbo_layer(const V1Entry& entry, std::string_view place,
                                  MigrationContext& context) {
  const NamedTensors state(entry.state);
  const NamedTensors extra(entry.extra_state);
  TQC_TRY(
      state.require_only({"reg_idx", "reg_norms", "reg_signs", "reg_residuals", "out_idx",
                          "out_norms", "out_signs", "out_residuals", "outlier_mask", "values_main",
                          "values_main.packed", "values_main.scales", "values_main.biases"}));
  TQC_TRY(extra.require_only({"calibration_keys", "calibration_values"}));
  TQC_TRY_ASSIGN(const TurboMeta meta, read_turbo_meta(entry.meta_state));
  TQC_TRY_ASSIGN(const CalibrationMeta calibration, read_calibration_meta(entry.extra_meta));
  if (is_calibrating(meta, calibration)) {
    return calibrating_layer(entry, meta, calibration, place, context);
  }
  TQC_TRY(extra.require_absent({"calibration_keys", "calibration_values"}));
  const std::string layer(place);
  TQC_TRY_ASSIGN(const QuantizedTensor keys, in_tensor("k", quantized_keys(state, meta)));
  TQC_TRY_ASSIGN(cache::Tensor k, in_tensor("k", quantized_tensor(keys, codec::BlockOrder::kKeys,
                                                                  layer + " k", context)));
  TQC_TRY_ASSIGN(cache::Tensor v, in_tensor("v", values(state, meta, layer + " v", context)));
  return MigratedLayer{cache::AttentionLayer{shape_of(meta), std::move(k), std::move(v)},
                       meta.offset};
}

}  // namespace tqcache::migrations
