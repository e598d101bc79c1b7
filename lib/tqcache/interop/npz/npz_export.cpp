#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/interop/npz/npz_cache.h"
#include "tqcache/interop/npz/npz_schema.h"
#include "tqcache/interop/whole_tensors.h"
#include "tqcache/reader.h"
#include "tqcache/tensors/foreign_json.h"
#include "tqcache/tensors/npy.h"
#include "tqcache/tensors/printable_name.h"
#include "tqcache/tensors/zip_writer.h"

namespace tqcache::interop {
namespace {

using cache::CacheDesc;
using cache::LayerDesc;
using cache::TensorKind;
using nlohmann::json;

// An array of the file, and the part of the cache that it holds.
struct Part {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::uint64_t> shape;
  std::size_t layer = 0;
  TensorKind tensor = TensorKind::kKeys;
  std::size_t array = 0;  // for kArray
};

class NpzPlan {
 public:
  Result<void> add_layer(std::size_t number, const LayerDesc& layer, std::int64_t n_tokens) {
    bf16_ = json::array();
    json description = json::object();
    TQC_TRY(std::visit(Overload{[&](const cache::AttentionDesc& attention) -> Result<void> {
                                  description["kind"] = kNpzAttention;
                                  add_attention(number, attention, n_tokens);
                                  return {};
                                },
                                [&](const cache::WindowDesc& window) -> Result<void> {
                                  description = {{"kind", kNpzWindow},
                                                 {"size", window.window.size},
                                                 {"keep", window.window.keep}};
                                  add_window(number, cache::arrays_of(layer, n_tokens));
                                  return {};
                                },
                                [&](const cache::StateDesc& state) -> Result<void> {
                                  description["kind"] = kNpzArrays;
                                  TQC_TRY_ASSIGN(description["arrays"], add_arrays(number, state));
                                  return {};
                                }},
                       layer));
    if (!bf16_.empty()) description["bf16"] = bf16_;
    layers_.push_back(std::move(description));
    return {};
  }

  const std::vector<Part>& parts() const { return parts_; }

  std::string description(const CacheDesc& manifest) const {
    json description = {
        {"format", kNpzFormat}, {"n_tokens", manifest.n_tokens()}, {"layers", layers_}};
    const auto add_text = [&](const char* key, const std::string& text) {
      if (!text.empty() && tensors::is_plain_text(text)) description[key] = text;
    };
    add_text("architecture", manifest.identity.architecture);
    add_text("model_name", manifest.identity.model_name);
    return description.dump();
  }

 private:
  // `short_name`: the name used in the list "bf16".
  void add_part(Part part, std::string_view short_name) {
    if (part.dtype == Dtype::kBF16) bf16_.push_back(short_name);
    parts_.push_back(std::move(part));
  }

  void add_attention(std::size_t number, const cache::AttentionDesc& layer, std::int64_t n_tokens) {
    const auto dims = [&](cache::HeadShape shape) {
      return std::vector{to_u64(shape.n_kv_heads), to_u64(n_tokens), to_u64(shape.head_dim)};
    };
    add_part({npz_tensor_name(number, kNpzKey), layer.k.dtype, dims(layer.shape), number,
              TensorKind::kKeys},
             kNpzKey);
    add_part({npz_tensor_name(number, kNpzValue), layer.v.dtype, dims(layer.value_shape()), number,
              TensorKind::kValues},
             kNpzValue);
  }

  void add_window(std::size_t number, const std::vector<cache::ArrayDesc>& arrays) {
    const std::array names = {kNpzKey, kNpzValue};
    for (std::size_t i = 0; i < names.size(); ++i) {
      add_part({npz_tensor_name(number, names[i]), arrays[i].dtype, arrays[i].shape, number,
                TensorKind::kArray, i},
               names[i]);
    }
  }

  Result<json> add_arrays(std::size_t number, const cache::StateDesc& layer) {
    json names = json::array();
    for (std::size_t i = 0; i < layer.arrays.size(); ++i) {
      const cache::ArrayDesc& array = layer.arrays[i];
      const bool is_there = std::ranges::count(names, json(array.name)) > 0;
      if (is_there || !fits_npz_name(array.name)) {
        return unsupported("array " + tensors::printable_name(array.name) +
                           ": no name that an array of NumPy can have");
      }
      names.push_back(array.name);
      add_part({npz_array_name(number, array.name), array.dtype, array.shape, number,
                TensorKind::kArray, i},
               array.name);
    }
    return names;
  }

  std::vector<Part> parts_;
  json layers_ = json::array();
  json bf16_;  // list for the layer being added
};

Result<NpzPlan> make_plan(const CacheDesc& manifest) {
  NpzPlan plan;
  for (std::size_t i = 0; i < manifest.layers.size(); ++i) {
    auto added = plan.add_layer(i, manifest.layers[i], manifest.n_tokens());
    if (!added) return in_context(fmt::format("layer {}", i), std::move(added).error());
  }
  return plan;
}

Result<void> add_member(tensors::ZipWriter& zip, std::string_view name, ByteView header,
                        ByteView values) {
  const std::array parts = {header, values};
  return zip.add(std::string(name) + ".npy", parts);
}

Result<void> add_tokens(tensors::ZipWriter& zip, const CacheDesc& manifest) {
  if (manifest.hidden_tokens) return {};
  const auto text = cache::with_placeholders(manifest.tokens, manifest.media);
  const std::vector<std::int64_t> ids(text.begin(), text.end());
  return add_member(zip, kNpzTokens, tensors::make_npy_header("<i8", {to_u64(manifest.n_tokens())}),
                    object_bytes(ids));
}

Result<void> add_values(tensors::ZipWriter& zip, const cache::CacheReader& cache,
                        const std::vector<Part>& parts, const Progress& progress) {
  WholeTensors tensors(cache, progress);
  AlignedBytes values;
  for (const Part& part : parts) {
    TQC_TRY(part.tensor == TensorKind::kArray
                ? tensors.read_array(part.layer, part.array, values)
                : tensors.read_tensor(part.layer, part.tensor, values));
    if (part.dtype == Dtype::kBF16) widen_bf16(values);
    const Bytes header =
        tensors::make_npy_header(part.dtype == Dtype::kF16 ? "<f2" : "<f4", part.shape);
    TQC_TRY(add_member(zip, part.name, header, values));
  }
  return {};
}

}  // namespace

Result<void> export_npz(const cache::CacheReader& cache, const std::filesystem::path& path,
                        Overwrite overwrite, const Progress& progress) {
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, overwrite));
  TQC_TRY_ASSIGN(const auto dense, cache::dequantize(cache::borrow(cache)));
  TQC_TRY_ASSIGN(const NpzPlan plan, make_plan(dense->description()));
  tensors::ZipWriter zip(std::move(file));
  TQC_TRY(
      add_member(zip, kNpzDescription, {}, make_npz_text(plan.description(dense->description()))));
  TQC_TRY(add_tokens(zip, dense->description()));
  TQC_TRY(add_values(zip, *dense, plan.parts(), progress));
  return zip.finish();
}

}  // namespace tqcache::interop
