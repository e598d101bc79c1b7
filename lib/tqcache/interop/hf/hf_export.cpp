#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/cache.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/error.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/hf/hf.h"
#include "tqcache/interop/hf/hf_schema.h"
#include "tqcache/interop/media_json.h"
#include "tqcache/interop/whole_tensors.h"
#include "tqcache/reader.h"
#include "tqcache/tensors/foreign_json.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

using cache::ArrayDesc;
using cache::CacheDesc;
using cache::LayerDesc;
using cache::TensorKind;
using tensors::NewTensor;

// A tensor of the file, and the part of the cache that it holds.
struct Part {
  NewTensor tensor;
  std::size_t layer = 0;
  TensorKind kind = TensorKind::kKeys;
  std::size_t array = 0;  // for kArray
  bool is_wide = false;   // 32-bit values
};

// The tensors of a file, and the metadata that describe its layers.
class HfPlan {
 public:
  // Layer `index` of the cache becomes a part of layer `number` of transformers.
  Result<void> add_layer(std::size_t number, std::size_t index, const LayerDesc& layer,
                         std::int64_t n_tokens) {
    index_ = index;
    return std::visit(
        Overload{
            [&](const cache::AttentionDesc& attention) {
              return add_full(number, attention, n_tokens);
            },
            [&](const cache::WindowDesc& window) { return add_sliding(number, window, n_tokens); },
            [&](const cache::StateDesc& state) { return add_linear(number, state); }},
        layer);
  }

  // The last two layers are one of transformers.
  void join_last(std::string_view type) {
    types_.erase(types_.end() - 1);
    windows_.erase(windows_.end() - 2);
    types_.back() = type;
  }

  // Wide values first, so that every tensor begins at a multiple of its value size: torch requires
  // this of memory that it uses in place.
  void sort() {
    std::stable_partition(parts_.begin(), parts_.end(),
                          [](const Part& part) { return part.is_wide; });
  }
  const std::vector<Part>& parts() const { return parts_; }

  Bytes header(const CacheDesc& manifest) const {
    std::vector<NewTensor> tensors;
    if (!manifest.hidden_tokens) {
      tensors.push_back({std::string(kHfTokens), "I64", {to_u64(manifest.n_tokens())}});
    }
    for (const Part& part : parts_) tensors.push_back(part.tensor);
    return tensors::make_safetensors_header(tensors, metadata(manifest));
  }

 private:
  std::map<std::string, std::string> metadata(const CacheDesc& manifest) const {
    std::map<std::string, std::string> metadata;
    const auto set = [&](std::string_view key, std::string text) {
      metadata.emplace(key, std::move(text));
    };
    set(kHfFormatKey, std::string(kHfFormat));
    set(kHfTokensKey, std::to_string(manifest.n_tokens()));
    set(kHfLayerTypesKey, types_.dump());
    if (has_windows_) set(kHfWindowKey, windows_.dump());
    if (!manifest.media.empty()) set(kHfMediaKey, media_json(manifest.media).dump());
    const std::string& model_type = manifest.identity.architecture;
    if (!model_type.empty() && tensors::is_plain_text(model_type)) set(kHfModelTypeKey, model_type);
    return metadata;
  }

  void add_type(std::string_view type, nlohmann::json window = nullptr) {
    types_.push_back(type);
    has_windows_ = has_windows_ || !window.is_null();
    windows_.push_back(std::move(window));
  }

  void add_part(std::size_t layer, std::string_view name, Dtype dtype,
                std::vector<std::uint64_t> shape, TensorKind kind, std::size_t array = 0) {
    parts_.push_back({{hf_layer_prefix(layer) + std::string(name), tensors::safetensors_type(dtype),
                       std::move(shape)},
                      index_,
                      kind,
                      array,
                      dtype == Dtype::kF32});
  }

  Result<void> add_full(std::size_t number, const cache::AttentionDesc& layer,
                        std::int64_t n_tokens) {
    add_type(kHfFull);
    const auto dims = [&](cache::HeadShape shape) {
      return std::vector{std::uint64_t{1}, to_u64(shape.n_kv_heads), to_u64(n_tokens),
                         to_u64(shape.head_dim)};
    };
    add_part(number, "key", layer.k.dtype, dims(layer.shape), TensorKind::kKeys);
    add_part(number, "value", layer.v.dtype, dims(layer.value_shape()), TensorKind::kValues);
    return {};
  }

  Result<void> add_sliding(std::size_t number, const cache::WindowDesc& layer,
                           std::int64_t n_tokens) {
    if (layer.window.keep != 0) {
      return unsupported(
          fmt::format("its window keeps {} first tokens, and those of transformers keep none",
                      layer.window.keep));
    }
    // The window of transformers includes the token that is being computed.
    add_type(kHfSliding, layer.window.size + 1);
    const cache::AttentionDesc& attention = layer.attention;
    const auto dims = [&](cache::HeadShape heads) {
      std::vector<std::uint64_t> shape = cache::window_array_shape(heads, layer.window, n_tokens);
      shape.insert(shape.begin(), 1);
      return shape;
    };
    add_part(number, "key", attention.k.dtype, dims(attention.shape), TensorKind::kArray, 0);
    add_part(number, "value", attention.v.dtype, dims(attention.value_shape()), TensorKind::kArray,
             1);
    return {};
  }

  Result<void> add_linear(std::size_t number, const cache::StateDesc& layer) {
    add_type(layer.arrays.empty() ? kHfDummy : kHfLinear);
    std::set<std::string_view> names;
    for (std::size_t i = 0; i < layer.arrays.size(); ++i) {
      const ArrayDesc& array = layer.arrays[i];
      if (!hf_state_of(array.name)) {
        return unsupported("array " + tensors::printable_name(array.name) +
                           ": not a state as transformers has them");
      }
      if (!names.insert(array.name).second) {
        return unsupported("array " + tensors::printable_name(array.name) + ": there twice");
      }
      add_part(number, array.name, array.dtype, array.shape, TensorKind::kArray, i);
    }
    return {};
  }

  std::vector<Part> parts_;
  std::size_t index_ = 0;  // of the layer that is being added
  nlohmann::json types_ = nlohmann::json::array();
  nlohmann::json windows_ = nlohmann::json::array();
  bool has_windows_ = false;
};

// The types of hybrid layers by their number in transformers; empty: the cache has none.
// Errors: kCorrupt (a source layout that is not of these layers).
Result<std::vector<std::string>> types_with_hybrids(const CacheDesc& manifest) {
  const std::string& layout = manifest.identity.source_layout;
  if (layout.empty() || !manifest.identity.source_format.starts_with("transformers")) {
    return std::vector<std::string>();
  }
  const auto wrong = [&] {
    return corrupt(fmt::format("source layout {}: not of these {} layers",
                               tensors::printable_name(layout), manifest.layers.size()));
  };
  auto types = parse_hf_types(layout, manifest.layers.size());
  if (!types) return wrong();
  std::size_t n = 0;  // layers of the cache
  for (const std::string& type : *types) {
    n += hf_is_hybrid(type) ? 2 : 1;
    if (n > manifest.layers.size()) return wrong();
    if (!hf_is_hybrid(type)) continue;
    const bool is_window = std::holds_alternative<cache::WindowDesc>(manifest.layers[n - 1]);
    const bool is_full = std::holds_alternative<cache::AttentionDesc>(manifest.layers[n - 1]);
    const bool is_state = std::holds_alternative<cache::StateDesc>(manifest.layers[n - 2]);
    if (!is_state || !(type == kHfHybrid ? is_full : is_window)) return wrong();
  }
  if (n != manifest.layers.size()) return wrong();
  return *std::move(types);
}

Result<HfPlan> make_plan(const CacheDesc& manifest) {
  TQC_TRY_ASSIGN(const std::vector<std::string> types, types_with_hybrids(manifest));
  HfPlan plan;
  for (std::size_t i = 0, number = 0; i < manifest.layers.size(); ++i, ++number) {
    const bool is_hybrid = !types.empty() && hf_is_hybrid(types[number]);
    const std::size_t end = i + (is_hybrid ? 2 : 1);
    for (std::size_t index = i; index < end; ++index) {
      auto added = plan.add_layer(number, index, manifest.layers[index], manifest.n_tokens());
      if (!added) return in_context(fmt::format("layer {}", index), std::move(added).error());
    }
    if (is_hybrid) plan.join_last(types[number]);
    i = end - 1;
  }
  plan.sort();
  return plan;
}

Result<void> write_values(const cache::CacheReader& cache, const std::vector<Part>& parts,
                          AtomicFile& file, const Progress& progress) {
  WholeTensors values_of(cache, progress);
  AlignedBytes values;
  TQC_TRY_ASSIGN(const bool has_halves, wants_halves_in_v(cache.description().identity));
  for (const Part& part : parts) {
    TQC_TRY(part.kind == TensorKind::kArray ? values_of.read_array(part.layer, part.array, values)
                                            : values_of.read_tensor(part.layer, part.kind, values));
    if (has_halves && part.kind == TensorKind::kValues) {
      const cache::LayerDesc& layer = cache.description().layers[part.layer];
      const std::int64_t size = cache::shape_of(layer, part.kind).head_dim;
      neighbors_to_halves(static_cast<std::size_t>(size),
                          dtype_size(cache::tensor_of(layer, part.kind).dtype), values);
    }
    TQC_TRY(file.write(values));
  }
  return {};
}

Result<void> write_tokens(const CacheDesc& manifest, AtomicFile& file) {
  if (manifest.hidden_tokens) return {};
  const auto text = cache::with_placeholders(manifest.tokens, manifest.media);
  const std::vector<std::int64_t> ids(text.begin(), text.end());
  return file.write(object_bytes(ids));
}

}  // namespace

Result<void> export_hf(const cache::CacheReader& cache, const std::filesystem::path& path,
                       Overwrite overwrite, const Progress& progress) {
  const cache::Identity& identity = cache.description().identity;
  TQC_TRY(check_key_order(identity.architecture, identity.source_format));
  if (auto halves = wants_halves_in_v(identity); !halves) return std::move(halves).error();
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, overwrite));
  TQC_TRY_ASSIGN(const auto dense, cache::dequantize(cache::borrow(cache)));
  TQC_TRY_ASSIGN(const HfPlan plan, make_plan(dense->description()));
  TQC_TRY(file.write(plan.header(dense->description())));
  TQC_TRY(write_tokens(dense->description(), file));
  TQC_TRY(write_values(*dense, plan.parts(), file, progress));
  return file.commit();
}

}  // namespace tqcache::interop
