#include "tqcache/interop/mlx/mlx_lm_plan.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/interop/mlx/mlx_lm_affine.h"

namespace tqcache::interop {
namespace {

using cache::AttentionDesc;
using cache::LayerDesc;
using format::SideName;

std::uint64_t to_u64(std::int64_t n) { return static_cast<std::uint64_t>(n); }

std::string type_name(Dtype dtype) {
  if (dtype == Dtype::kF32) return "F32";
  return dtype == Dtype::kF16 ? "F16" : "BF16";
}

Result<void> check_groups(cache::HeadShape shape, const MlxLmExport& options) {
  if (options.kv_bits == 0 || shape.head_dim % options.group_size == 0) return {};
  return invalid("groups of " + std::to_string(options.group_size) + " in head_dim " +
                 std::to_string(shape.head_dim));
}

Result<void> check_layer(const LayerDesc& layer, const MlxLmExport& options) {
  return std::visit(
      Overload{[&](const AttentionDesc& attention) { return check_groups(attention.shape, options); },
               [](const cache::WindowDesc&) -> Result<void> { return {}; },
               [](const cache::StateDesc& state) -> Result<void> {
                 if (!state.arrays.empty()) return {};
                 return invalid("without arrays, as no cache of mlx-lm is");
               }},
      layer);
}

Result<void> check_form(const MlxLmExport& options) {
  if (options.kv_bits == 0) return {};
  if (options.kv_bits != 2 && options.kv_bits != 4 && options.kv_bits != 8) {
    return invalid("groups of " + std::to_string(options.kv_bits) + " bits");
  }
  if (options.group_size == 32 || options.group_size == 64 || options.group_size == 128) return {};
  return invalid("groups of " + std::to_string(options.group_size) + " components");
}

Result<void> check_options(const format::Manifest& cache, const MlxLmExport& options) {
  if (options.version_major < 0 || options.version_minor < 0) return invalid("no such version");
  TQC_TRY(check_form(options));
  if (cache.layers.empty() || cache.n_tokens() == 0) return invalid("an empty cache");
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    auto checked = check_layer(cache.layers[i], options);
    if (!checked) return in_context("layer " + std::to_string(i), std::move(checked).error());
  }
  return {};
}

// In mlx-lm the first dimension is the batch, here of one prompt. What came from elsewhere may be
// without.
std::vector<std::uint64_t> with_batch(std::vector<std::uint64_t> shape) {
  if (shape.empty() || shape[0] != 1) shape.insert(shape.begin(), 1);
  return shape;
}

class Planner {
 public:
  Planner(const format::Manifest& cache, const MlxLmExport& options)
      : cache_(cache),
        options_(options),
        with_scalars_(options.version_major > 0 || options.version_minor >= 32) {}

  MlxPlan plan() {
    add_user("model", options_.model.empty() ? cache_.identity.model_name : options_.model);
    add_user("tokenizer_config", options_.tokenizer_config);
    if (with_scalars_) plan_.metadata["2.0"] = "";
    for (layer_ = 0; layer_ < std::ssize(cache_.layers); ++layer_) {
      add_layer(cache_.layers[static_cast<std::size_t>(layer_)]);
    }
    return std::move(plan_);
  }

 private:
  void add_user(const std::string& key, const std::string& value) {
    plan_.metadata[(with_scalars_ ? "0." : "1.") + key] = value;
  }

  void add_layer(const LayerDesc& layer) {
    std::visit(Overload{[&](const AttentionDesc& attention) {
                          options_.kv_bits == 0 ? add_kv(attention) : add_quantized(attention);
                        },
                        [&](const cache::WindowDesc& window) { add_rotating(window); },
                        [&](const cache::StateDesc& state) { add_arrays(state); }},
               layer);
  }

  void add_class(const char* name) {
    plan_.metadata[(with_scalars_ ? "1." : "2.") + std::to_string(layer_)] = name;
  }
  // What has no numbers has an empty text in their place.
  void add_no_numbers() {
    if (!with_scalars_) plan_.metadata["0." + std::to_string(layer_)] = "";
  }
  void add_info(const std::vector<std::int64_t>& numbers) {
    const std::string prefix = "0." + std::to_string(layer_) + '.';
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      plan_.metadata[prefix + std::to_string(i)] = std::to_string(numbers[i]);
    }
  }

  std::string name(std::string_view slot) const {
    return (std::to_string(layer_) + '.').append(slot);
  }
  void add_tensor(std::string_view slot, std::string type, std::vector<std::uint64_t> shape,
                  MlxData data) {
    plan_.tensors.push_back({{name(slot), std::move(type), std::move(shape)}, data});
  }
  // A tensor that stands for something else.
  void add_scalar(int slot, const char* kind, std::string type, std::vector<std::uint64_t> shape,
                  MlxData data) {
    const std::string number = "2." + std::to_string(++n_scalars_);
    plan_.metadata[number + ".0"] = name(std::to_string(slot));
    plan_.metadata[number + ".1"] = kind;
    add_tensor(std::to_string(slot), std::move(type), std::move(shape), data);
  }
  void add_numbers(int first_slot, const std::vector<std::int64_t>& numbers) {
    for (const std::int64_t number : numbers) {
      add_scalar(first_slot++, "scalar", "I32", {}, MlxNumberData{number});
    }
  }

  std::vector<std::uint64_t> shape_of(const AttentionDesc& layer, std::int64_t width) const {
    return {1, to_u64(layer.shape.n_kv_heads), to_u64(cache_.n_tokens()), to_u64(width)};
  }

  void add_kv(const AttentionDesc& layer) {
    add_class("KVCache");
    const auto shape = shape_of(layer, layer.shape.head_dim);
    add_tensor("0", type_name(layer.k.dtype), shape, MlxSideData{layer_, SideName::kKeys});
    add_tensor("1", type_name(layer.v.dtype), shape, MlxSideData{layer_, SideName::kValues});
    add_no_numbers();
    if (with_scalars_) add_numbers(2, {cache_.n_tokens()});
  }

  void add_groups(const AttentionDesc& layer, const std::string& slot, Dtype dtype, MlxSideData side) {
    const std::int64_t n_words = layer.shape.head_dim * options_.kv_bits / 32;
    const auto groups = shape_of(layer, layer.shape.head_dim / options_.group_size);
    add_tensor(slot + ".0", "U32", shape_of(layer, n_words),
               MlxGroupData{side, MlxGroupData::kCodes});
    add_tensor(slot + ".1", type_name(dtype), groups, MlxGroupData{side, MlxGroupData::kScales});
    add_tensor(slot + ".2", type_name(dtype), groups, MlxGroupData{side, MlxGroupData::kBiases});
  }

  void add_quantized(const AttentionDesc& layer) {
    add_class("QuantizedKVCache");
    add_groups(layer, "0", layer.k.dtype, {layer_, SideName::kKeys});
    add_groups(layer, "1", layer.v.dtype, {layer_, SideName::kValues});
    const std::vector<std::int64_t> numbers = {cache_.n_tokens(), options_.group_size,
                                               options_.kv_bits};
    with_scalars_ ? add_numbers(2, numbers) : add_info(numbers);
  }

  // The window is in the order of positions, and so the row to be written next is the one behind
  // it: mlx-lm goes back to the oldest one if there is no room.
  void add_rotating(const cache::WindowDesc& layer) {
    add_class("RotatingKVCache");
    const auto arrays = cache::arrays_of(layer, cache_.n_tokens());
    for (std::int64_t i = 0; i < std::ssize(arrays); ++i) {
      const cache::ArrayDesc& array = arrays[static_cast<std::size_t>(i)];
      std::vector<std::uint64_t> shape = array.shape;
      shape.insert(shape.begin(), 1);  // [1, n_kv_heads, tokens, head_dim]
      add_tensor(std::to_string(i), type_name(array.dtype), std::move(shape),
                 MlxArrayData{layer_, i});
    }
    const std::int64_t offset = cache_.n_tokens();
    const auto [size, keep] = layer.window;
    const std::int64_t next = std::min(size, offset);
    if (with_scalars_) {
      add_numbers(2, {offset, keep, size, next});
    } else {
      add_info({keep, size, offset, next});
    }
  }

  void add_arrays(const cache::StateDesc& layer) {
    add_class("ArraysCache");
    for (std::int64_t i = 0; i < std::ssize(layer.arrays); ++i) {
      const cache::ArrayDesc& array = layer.arrays[static_cast<std::size_t>(i)];
      add_tensor((with_scalars_ ? "0." : "") + std::to_string(i), type_name(array.dtype),
                 with_batch(array.shape), MlxArrayData{layer_, i});
    }
    add_no_numbers();
    if (!with_scalars_) return;
    add_scalar(1, "none", "F32", {0}, MlxNoData{});  // left_padding
    add_scalar(2, "none", "F32", {0}, MlxNoData{});  // lengths
  }

  const format::Manifest& cache_;
  const MlxLmExport& options_;
  bool with_scalars_;  // 0.32.0 or later: numbers are tensors
  std::int64_t layer_ = 0;
  std::size_t n_scalars_ = 0;
  MlxPlan plan_;
};

}  // namespace

Result<MlxPlan> plan_mlx(const format::Manifest& cache, const MlxLmExport& options) {
  TQC_TRY(check_options(cache, options));
  return Planner(cache, options).plan();
}

}  // namespace tqcache::interop
