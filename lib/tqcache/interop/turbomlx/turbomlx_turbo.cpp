// TurboQuantKVCache: keys as codes of one or two quantizers, values dense or in groups; before its
// outlier channels are chosen, all of it is dense.

#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "tqcache/codec/block_layout.h"
#include "tqcache/error.h"
#include "tqcache/interop/turbomlx/turbomlx_layers.h"
#include "tqcache/interop/turbomlx/turbomlx_packed.h"
#include "tqcache/interop/turbomlx/turbomlx_rows.h"

namespace tqcache::interop {
namespace {

using tensors::TensorType;
using Kind = Value::Kind;

// The items of the state, in order.
enum Slot : std::size_t {
  kRegularCodes,
  kRegularLengths,
  kRegularSigns,
  kRegularResiduals,
  kLoudCodes,
  kLoudLengths,
  kLoudSigns,
  kLoudResiduals,
  kMask,
  kValues,
  kSlots,
};
constexpr std::array<std::string_view, kSlots> kSlotNames = {
    "reg_idx",   "reg_norms", "reg_signs",     "reg_residuals", "out_idx",
    "out_norms", "out_signs", "out_residuals", "outlier_mask",  "values_main"};

// The slots of a quantizer in the state: codes, lengths, signs and residuals, from `first` on.
struct Quantizer {
  std::size_t first_slot;
  std::vector<std::uint16_t> channels;
  int bits_total;
};

class TurboState {
 public:
  static Result<TurboState> make(const ValueTree& tree, const TurboMlxEntry& entry) {
    const Value& state = tree.at(entry.state);
    if (!is_sequence(state) || state.items.size() != kSlots) {
      return corrupt("state: not a tuple of " + std::to_string(std::size_t{kSlots}));
    }
    return TurboState(tree, state);
  }

  const Value& at(std::size_t slot) const { return tree_->at(state_->items[slot]); }

  Result<void> require_absent(std::size_t first, std::size_t end) const {
    for (std::size_t slot = first; slot < end; ++slot) {
      TQC_TRY_ASSIGN(const ArrayValue* array, find_array(at(slot), kSlotNames[slot]));
      if (array != nullptr) {
        return corrupt(std::string(kSlotNames[slot]) + ": not allowed with these settings");
      }
    }
    return {};
  }

  Result<TurboMlxRows> rows(std::size_t slot, TensorType type, const TurboMlxMeta& meta,
                            std::optional<std::int64_t> width) const {
    return rows_of_array(at(slot), kSlotNames[slot], type, meta.shape.n_kv_heads, meta.offset,
                         width);
  }

 private:
  TurboState(const ValueTree& tree, const Value& state) : tree_(&tree), state_(&state) {}

  const ValueTree* tree_;
  const Value* state_;
};

// --- keys

Result<TurboMlxPart> part_of(const TurboState& state, const TurboMlxMeta& meta,
                             Quantizer quantizer) {
  TurboMlxPart part;
  part.bits = meta.code_bits(quantizer.bits_total);
  part.channels = std::move(quantizer.channels);
  const auto width = [&](int bits) {
    return static_cast<std::int64_t>(codec::packed_size(part.channels.size(), bits));
  };
  const std::size_t first = quantizer.first_slot;
  TQC_TRY_ASSIGN(part.codes, state.rows(first, TensorType::kU8, meta, width(part.bits)));
  TQC_TRY_ASSIGN(part.lengths, state.rows(first + 1, TensorType::kF32, meta, 1));
  if (!meta.is_prod) {
    TQC_TRY(state.require_absent(first + 2, first + 4));
    return part;
  }
  TQC_TRY_ASSIGN(part.signs, state.rows(first + 2, TensorType::kU8, meta, width(1)));
  TQC_TRY_ASSIGN(part.residuals, state.rows(first + 3, TensorType::kF32, meta, std::nullopt));
  return part;
}

Result<void> add_maps(const TurboMlxMeta& meta, TurboMlxArtifacts& artifacts, TurboMlxPart& part) {
  const std::size_t dim = part.channels.size();
  const auto kind = meta.is_wht ? TurboMlxMap::kWht : TurboMlxMap::kQr;
  TQC_TRY_ASSIGN(part.codebook, artifacts.codebook(dim, part.bits));
  TQC_TRY_ASSIGN(part.rotation, artifacts.matrix(kind, dim, meta.rotation_seed));
  if (!meta.is_prod) return {};
  TQC_TRY_ASSIGN(part.sketch, artifacts.matrix(TurboMlxMap::kQjl, dim, meta.qjl_seed));
  return {};
}

// The channels of outlier_mask: outliers first, both groups ascending.
struct Channels {
  std::vector<std::uint16_t> outliers, others;
};

Result<Channels> read_mask(const TurboMlxSource& file, const TurboState& state,
                           const TurboMlxMeta& meta) {
  TQC_TRY_ASSIGN(const ArrayValue* mask, require_array(state.at(kMask), kSlotNames[kMask]));
  const auto head_dim = static_cast<std::uint64_t>(meta.shape.head_dim);
  if (mask->type != TensorType::kBool || mask->shape != std::vector<std::uint64_t>{head_dim}) {
    return corrupt("outlier_mask " + describe(*mask) + ": not a yes or no for each channel");
  }
  Bytes flags(static_cast<std::size_t>(head_dim));
  TQC_TRY(read_run(*file, mask->bytes, 0, flags));
  Channels channels;
  for (std::size_t i = 0; i < flags.size(); ++i) {
    auto& list = flags[i] != std::byte{0} ? channels.outliers : channels.others;
    list.push_back(static_cast<std::uint16_t>(i));
  }
  if (std::ssize(channels.outliers) == meta.mixed->outlier_channels) return channels;
  return corrupt(fmt::format("outlier_mask: {} channels, expected {}", channels.outliers.size(),
                             meta.mixed->outlier_channels));
}

Result<std::vector<Quantizer>> quantizers_of(const TurboMlxSource& file, const TurboState& state,
                                             const TurboMlxMeta& meta) {
  std::vector<Quantizer> quantizers;
  if (meta.mixed) {
    TQC_TRY_ASSIGN(Channels channels, read_mask(file, state, meta));
    quantizers.push_back({kRegularCodes, std::move(channels.others), meta.mixed->regular_bits});
    quantizers.push_back({kLoudCodes, std::move(channels.outliers), meta.mixed->outlier_high_bits});
    return quantizers;
  }
  TQC_TRY(state.require_absent(kLoudCodes, kMask + 1));
  std::vector<std::uint16_t> all(static_cast<std::size_t>(meta.shape.head_dim));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  quantizers.push_back({kRegularCodes, std::move(all), meta.bits_total});
  return quantizers;
}

// All shapes are checked before any computation.
Result<TurboMlxTensor> keys(const TurboMlxSource& file, const TurboState& state,
                            const TurboMlxMeta& meta, TurboMlxArtifacts& artifacts) {
  TQC_TRY_ASSIGN(std::vector<Quantizer> quantizers, quantizers_of(file, state, meta));
  std::vector<TurboMlxPart> parts;
  for (Quantizer& quantizer : quantizers) {
    TQC_TRY_ASSIGN(TurboMlxPart part, part_of(state, meta, std::move(quantizer)));
    parts.push_back(std::move(part));
  }
  for (TurboMlxPart& part : parts) TQC_TRY(add_maps(meta, artifacts, part));
  TQC_TRY_ASSIGN(TurboMlxPacking packing, pack_turbomlx_keys(file, meta.shape, meta.offset, parts));
  return TurboMlxTensor{{{Dtype::kF32, std::move(packing.quant)},
                         turbomlx_key_rows(file, meta.shape, std::move(parts)),
                         std::move(packing.read)},
                        TurboMlxCoding{true, false, packing.is_rounded, std::move(packing.misfit)}};
}

// --- values, and all dense tensors

Result<ForeignTensor> dense_tensor(const TurboMlxSource& file, const Value& value,
                                   std::string_view name, const TurboMlxMeta& meta) {
  TQC_TRY_ASSIGN(const TurboMlxDense dense, turbomlx_dense_array(value, name));
  if (dense.grid.width != meta.shape.head_dim) {
    return unsupported(fmt::format("{}: head vectors of {} beside {}", name, dense.grid.width,
                                   meta.shape.head_dim));
  }
  if (dense.grid.n_kv_heads != meta.shape.n_kv_heads || dense.grid.n_tokens != meta.offset) {
    return corrupt(std::string(name) + ": of another shape than meta_state says");
  }
  return ForeignTensor{{dense.dtype, {}}, turbomlx_dense_rows(file, meta.shape, dense.rows)};
}

Result<TurboMlxTensor> values(const TurboMlxSource& file, const ValueTree& tree,
                              const TurboState& state, const TurboMlxMeta& meta) {
  const std::string_view name = kSlotNames[kValues];
  if (!meta.has_affine_values) {
    TQC_TRY_ASSIGN(ForeignTensor dense, dense_tensor(file, state.at(kValues), name, meta));
    return TurboMlxTensor{std::move(dense), std::nullopt};
  }
  return turbomlx_affine_tensor(file, tree, state.at(kValues), name,
                                {meta.value_bits, meta.value_group_size}, meta.shape, meta.offset,
                                codec::BlockOrder::kValues);
}

// --- calibration

struct Calibration {
  const Value* keys = nullptr;  // nullptr: calibration is over, or never began
  const Value* values = nullptr;
  std::int64_t tokens_seen = 0;
  bool is_frozen = false;
};

Result<const Value*> find_calibration_array(const ValueTree& tree, const Value& extra,
                                            std::string_view key) {
  TQC_TRY_ASSIGN(const Value* value, find_value(tree, extra, key));
  if (value == nullptr) return value;
  TQC_TRY_ASSIGN(const ArrayValue* array, find_array(*value, key));
  return array != nullptr ? value : nullptr;
}

Result<Calibration> read_calibration(const ValueTree& tree, const TurboMlxEntry& entry) {
  const Value& extra = tree.at(entry.extra_state);
  Calibration calibration;
  TQC_TRY_ASSIGN(calibration.keys, find_calibration_array(tree, extra, "calibration_keys"));
  TQC_TRY_ASSIGN(calibration.values, find_calibration_array(tree, extra, "calibration_values"));
  if (calibration.keys == nullptr) return calibration;
  TQC_TRY_ASSIGN(calibration.tokens_seen, get_integer(tree, extra, "calibration_tokens_seen"));
  TQC_TRY_ASSIGN(const Value* frozen,
                 require_value(tree, extra, "outlier_mask_frozen", Kind::kBool));
  calibration.is_frozen = frozen->integer != 0;
  return calibration;
}

Result<void> check_calibration(const TurboState& state, const TurboMlxMeta& meta,
                               const Calibration& calibration) {
  if (!meta.mixed || calibration.is_frozen || calibration.values == nullptr) {
    return corrupt("calibration_keys: not allowed with these settings");
  }
  TQC_TRY(state.require_absent(kRegularCodes, kMask + 1));
  if (calibration.tokens_seen == meta.offset) return {};
  return corrupt(fmt::format("calibration_tokens_seen {} where offset is {}",
                             calibration.tokens_seen, meta.offset));
}

// values_main is the same as calibration_values, which TurboMLX reads.
Result<ForeignLayer> calibrating(const TurboMlxSource& file, const TurboState& state,
                                 const TurboMlxMeta& meta, const Calibration& calibration) {
  TQC_TRY(check_calibration(state, meta, calibration));
  TQC_TRY_ASSIGN(ForeignTensor k, dense_tensor(file, *calibration.keys, "calibration_keys", meta));
  TQC_TRY_ASSIGN(ForeignTensor v,
                 dense_tensor(file, *calibration.values, "calibration_values", meta));
  return attention_layer(meta.shape, std::move(k), std::move(v));
}

Result<ForeignLayer> empty_layer(const TurboState& state, const TurboMlxMeta& meta) {
  TQC_TRY(state.require_absent(kRegularCodes, kMask));
  const ForeignTensor none{{Dtype::kF32, {}}, [](auto, auto, auto) { return Result<void>(); }};
  return attention_layer(meta.shape, none, none);
}

Result<void> read_coded(const TurboMlxSource& file, const ValueTree& tree, const TurboState& state,
                        const TurboMlxMeta& meta, TurboMlxArtifacts& artifacts,
                        TurboMlxLayer& result) {
  TQC_TRY_ASSIGN(TurboMlxTensor v, values(file, tree, state, meta));
  TQC_TRY_ASSIGN(TurboMlxTensor k, keys(file, state, meta, artifacts));
  for (TurboMlxTensor* tensor : {&k, &v}) {
    if (tensor->coding) result.codings.push_back(*std::move(tensor->coding));
  }
  result.layer = attention_layer(meta.shape, std::move(k.tensor), std::move(v.tensor));
  return {};
}

}  // namespace

Result<TurboMlxLayer> turbomlx_turbo_layer(const TurboMlxSource& file, const ValueTree& tree,
                                           const TurboMlxEntry& entry,
                                           TurboMlxArtifacts& artifacts) {
  TQC_TRY_ASSIGN(const std::string text, turbomlx_meta_text(tree, tree.at(entry.meta_state)));
  TQC_TRY_ASSIGN(const TurboMlxMeta meta, parse_turbomlx_meta(text));
  TQC_TRY_ASSIGN(const TurboState state, TurboState::make(tree, entry));
  TQC_TRY_ASSIGN(const Calibration calibration, read_calibration(tree, entry));
  TurboMlxLayer result;
  result.meta = meta;
  result.n_tokens = meta.offset;
  result.is_calibrating = calibration.keys != nullptr;
  if (result.is_calibrating) {
    TQC_TRY_ASSIGN(result.layer, calibrating(file, state, meta, calibration));
  } else if (meta.offset == 0) {
    TQC_TRY_ASSIGN(result.layer, empty_layer(state, meta));
  } else {
    TQC_TRY(read_coded(file, tree, state, meta, artifacts, result));
  }
  return result;
}

}  // namespace tqcache::interop
