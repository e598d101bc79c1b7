#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/interop/npz/npz_cache.h"
#include "tqcache/interop/npz/npz_schema.h"
#include "tqcache/interop/whole_tensors.h"
#include "tqcache/tensors/foreign_json.h"
#include "tqcache/tensors/npy.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

using nlohmann::json;
using tensors::Npz;
using tensors::NpzArray;
using tensors::printable_name;
using tensors::TensorType;

constexpr std::size_t kMaxArraysOfLayer = 64;
constexpr std::size_t kTokensAtOnce = 8192;

// A number of the description.
Result<std::int64_t> number_of(const json& object, const char* key, std::int64_t max) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned()) {
    return corrupt(printable_name(key) + ": no number that is not negative");
  }
  if (found->get<std::uint64_t>() > static_cast<std::uint64_t>(max)) {
    return too_large(fmt::format("{}: more than {}", printable_name(key), max));
  }
  return found->get<std::int64_t>();
}

// A list of names; empty if absent.
Result<std::vector<std::string>> names_of(const json& object, const char* key) {
  std::vector<std::string> names;
  const auto found = object.find(key);
  if (found == object.end()) return names;
  if (!found->is_array()) return corrupt(printable_name(key) + ": no list");
  if (found->size() > kMaxArraysOfLayer) {
    return too_large(fmt::format("{}: {} names", printable_name(key), found->size()));
  }
  for (const json& name : *found) {
    if (!name.is_string() || !fits_npz_name(name.get_ref<const std::string&>()) ||
        std::ranges::count(names, name.get_ref<const std::string&>()) > 0) {
      return corrupt(printable_name(key) + ": a name that cannot be");
    }
    names.push_back(name.get<std::string>());
  }
  return names;
}

// Texts that can be displayed and stored; others become empty.
std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return {};
  const auto& text = found->get_ref<const std::string&>();
  return tensors::is_plain_text(text) ? text : std::string();
}

// The values of an array; bf16 values are stored as f32 in the file.
struct Values {
  std::shared_ptr<const Npz> npz;
  const NpzArray* array = nullptr;
  Dtype dtype = Dtype::kF32;

  bool is_wide() const { return dtype == Dtype::kBF16; }

  ReadTensor reader() const {
    return [*this](std::uint64_t offset, std::span<std::byte> out) -> Result<void> {
      if (!is_wide()) return npz->read_at(*array, offset, out);
      Bytes wide(2 * out.size());
      TQC_TRY(npz->read_at(*array, 2 * offset, wide));
      narrow_to_bf16(wide, out);
      return {};
    };
  }

  ReadArray whole_reader() const {
    return [*this](std::span<std::byte> out) -> Result<void> {
      if (!is_wide()) return npz->read_all(*array, out);
      Bytes wide(2 * out.size());
      TQC_TRY(npz->read_all(*array, wide));
      narrow_to_bf16(wide, out);
      return {};
    };
  }
};

class NpzReader {
 public:
  NpzReader(std::shared_ptr<const Npz> npz, std::int64_t n_tokens)
      : npz_(std::move(npz)), n_tokens_(n_tokens) {
    taken_.emplace(kNpzDescription);
  }

  Result<ForeignLayer> read_layer(std::size_t layer, const json& description) {
    if (!description.is_object()) return corrupt("its description is not an object");
    TQC_TRY_ASSIGN(bf16_, names_of(description, "bf16"));
    const std::string kind = text_of(description, "kind");
    if (kind == kNpzAttention) return read_attention(layer);
    if (kind == kNpzWindow) return read_window(layer, description);
    if (kind == kNpzArrays) return read_arrays(layer, description);
    return unsupported("a layer of kind " + printable_name(kind));
  }

  Result<std::optional<std::vector<std::int32_t>>> read_tokens() {
    const NpzArray* const array = find(std::string(kNpzTokens));
    if (array == nullptr) return std::optional<std::vector<std::int32_t>>();
    if (array->header.type != TensorType::kI64) {
      return unsupported("tokens of type " + printable_name(array->header.descr));
    }
    if (array->header.shape != std::vector{static_cast<std::uint64_t>(n_tokens_)}) {
      return corrupt(fmt::format("array \"tokens\": not {} ids", n_tokens_));
    }
    return read_ids(*array);
  }

  Result<void> check_all_taken() const {
    for (const auto& [name, array] : npz_->arrays()) {
      if (!taken_.contains(name)) {
        return unsupported("array " + printable_name(name) + ": of no layer that is named");
      }
    }
    return {};
  }

 private:
  const NpzArray* find(const std::string& name) {
    const auto found = npz_->arrays().find(name);
    if (found == npz_->arrays().end()) return nullptr;
    taken_.insert(name);
    return &found->second;
  }

  // `short_name`: the name used in the list "bf16".
  Result<Values> find_values(const std::string& name, std::string_view short_name) {
    const NpzArray* const array = find(name);
    if (array == nullptr) return corrupt("array " + printable_name(name) + ": missing");
    const bool is_bf16 = std::ranges::count(bf16_, short_name) > 0;
    const TensorType type = array->header.type;
    if (type == TensorType::kF32) {
      return Values{npz_, array, is_bf16 ? Dtype::kBF16 : Dtype::kF32};
    }
    if (is_bf16) return corrupt("array " + printable_name(name) + ": bf16 that is not kept as f32");
    if (type == TensorType::kF16) return Values{npz_, array, Dtype::kF16};
    return unsupported("array " + printable_name(name) + ": values of type " +
                       printable_name(array->header.descr));
  }

  struct Tensors {
    cache::HeadShape k_shape, v_shape;
    Values k, v;

    std::int64_t value_dim() const {
      return cache::value_dim_of(k_shape.head_dim, v_shape.head_dim);
    }
  };
  Result<Tensors> read_tensors(std::size_t layer, std::int64_t n_rows) {
    TQC_TRY_ASSIGN(const Values k, find_values(npz_tensor_name(layer, kNpzKey), kNpzKey));
    TQC_TRY_ASSIGN(const Values v, find_values(npz_tensor_name(layer, kNpzValue), kNpzValue));
    auto k_shape = head_shape_of(k.array->header.shape, n_rows);
    if (!k_shape) return in_context("key", std::move(k_shape).error());
    auto v_shape = head_shape_of(v.array->header.shape, n_rows);
    if (!v_shape) return in_context("value", std::move(v_shape).error());
    if (k_shape->n_kv_heads != v_shape->n_kv_heads) {
      return corrupt(fmt::format("{} heads of keys and {} of values", k_shape->n_kv_heads,
                                 v_shape->n_kv_heads));
    }
    return Tensors{*k_shape, *v_shape, k, v};
  }

  Result<ForeignLayer> read_attention(std::size_t layer) {
    TQC_TRY_ASSIGN(const Tensors tensors, read_tensors(layer, n_tokens_));
    const auto tensor = [&](const Values& values, cache::HeadShape shape) {
      return ForeignTensor{{values.dtype, {}},
                           rows_of(values.reader(), shape, n_tokens_, dtype_size(values.dtype))};
    };
    return attention_layer(tensors.k_shape, tensor(tensors.k, tensors.k_shape),
                           tensor(tensors.v, tensors.v_shape), tensors.value_dim());
  }

  Result<ForeignLayer> read_window(std::size_t layer, const json& description) {
    TQC_TRY_ASSIGN(const std::int64_t size, number_of(description, "size", cache::kMaxTokens));
    TQC_TRY_ASSIGN(const std::int64_t keep, number_of(description, "keep", cache::kMaxTokens));
    TQC_TRY_ASSIGN(const Tensors tensors, read_tensors(layer, std::min(size, n_tokens_)));
    return window_layer(tensors.k_shape, {size, keep}, foreign_array(cache::kWindowKeys, tensors.k),
                        foreign_array(cache::kWindowValues, tensors.v), tensors.value_dim());
  }

  Result<ForeignLayer> read_arrays(std::size_t layer, const json& description) {
    TQC_TRY_ASSIGN(const std::vector<std::string> names, names_of(description, "arrays"));
    std::vector<ForeignArray> arrays;
    for (const std::string& name : names) {
      TQC_TRY_ASSIGN(const Values values, find_values(npz_array_name(layer, name), name));
      arrays.push_back(foreign_array(name, values));
    }
    return state_layer(std::move(arrays));
  }

  static ForeignArray foreign_array(std::string_view name, const Values& values) {
    return {{std::string(name), values.dtype, values.array->header.shape}, values.whole_reader()};
  }

  Result<std::optional<std::vector<std::int32_t>>> read_ids(const NpzArray& array) const {
    std::vector<std::int32_t> tokens;
    tokens.reserve(static_cast<std::size_t>(n_tokens_));
    std::array<std::int64_t, kTokensAtOnce> ids;
    while (tokens.size() < static_cast<std::size_t>(n_tokens_)) {
      const std::size_t n =
          std::min(kTokensAtOnce, static_cast<std::size_t>(n_tokens_) - tokens.size());
      TQC_TRY(npz_->read_at(array, tokens.size() * sizeof(std::int64_t),
                            std::as_writable_bytes(std::span(ids).first(n))));
      for (const std::int64_t id : std::span(ids).first(n)) {
        if (id < 0 || id > std::numeric_limits<std::int32_t>::max()) {
          return corrupt(fmt::format("token {}: id {}", tokens.size(), id));
        }
        tokens.push_back(static_cast<std::int32_t>(id));
      }
    }
    return std::optional(std::move(tokens));
  }

  std::shared_ptr<const Npz> npz_;
  std::int64_t n_tokens_;
  std::vector<std::string> bf16_;  // list for the layer being read
  std::set<std::string, std::less<>> taken_;
};

Result<void> check_format(const json& description) {
  const std::string format = text_of(description, "format");
  if (format == kNpzFormat) return {};
  return unsupported(format.starts_with(kNpzFormatPrefix)
                         ? "format " + printable_name(format) + " is newer than this reader"
                         : "not of the schema " + std::string(kNpzFormat));
}

Result<void> read_layers(NpzReader& reader, const json& description, ForeignCache& cache) {
  const auto layers = description.find("layers");
  if (layers == description.end() || !layers->is_array()) return corrupt("\"layers\": no list");
  if (layers->size() > static_cast<std::size_t>(cache::kMaxLayers)) {
    return too_large(fmt::format("{} layers", layers->size()));
  }
  for (std::size_t i = 0; i < layers->size(); ++i) {
    auto layer = reader.read_layer(i, (*layers)[i]);
    if (!layer) return in_context(fmt::format("layer {}", i), std::move(layer).error());
    cache.layers.push_back(std::move(layer).value());
  }
  return {};
}

}  // namespace

Result<bool> is_npz_cache(const ByteSource& file) {
  TQC_TRY_ASSIGN(const bool is_zip, tensors::begins_as_zip(file));
  if (!is_zip) return false;
  const std::shared_ptr<const ByteSource> alias(std::shared_ptr<void>(), &file);
  TQC_TRY_ASSIGN(auto zip, tensors::ZipArchive::open(alias));
  const std::string member = std::string(kNpzDescription) + ".npy";
  if (!std::ranges::count(zip->members(), member, &tensors::ZipMember::name)) return false;
  TQC_TRY_ASSIGN(const Npz npz, Npz::open(std::move(zip)));
  TQC_TRY_ASSIGN(const json description, read_npz_description(npz));
  return check_format(description).ok();
}

Result<ForeignCache> import_npz(std::shared_ptr<const ByteSource> file,
                                const MemoryBudget& memory) {
  TQC_TRY_ASSIGN(const bool is_zip, tensors::begins_as_zip(*file));
  if (!is_zip) return corrupt("not a .npz file");
  TQC_TRY_ASSIGN(Npz opened, Npz::open(std::move(file), {.memory = memory}));
  const auto npz = std::make_shared<const Npz>(std::move(opened));
  TQC_TRY_ASSIGN(const json description, read_npz_description(*npz));
  TQC_TRY(check_format(description));
  ForeignCache cache;
  TQC_TRY_ASSIGN(cache.n_tokens, number_of(description, "n_tokens", cache::kMaxTokens));
  NpzReader reader(npz, cache.n_tokens);
  TQC_TRY(read_layers(reader, description, cache));
  TQC_TRY_ASSIGN(cache.tokens, reader.read_tokens());
  TQC_TRY(reader.check_all_taken());
  cache.identity.source_format = "numpy";
  cache.identity.architecture = text_of(description, "architecture");
  cache.identity.model_name = text_of(description, "model_name");
  cache.metadata.emplace_back("schema", kNpzFormat);
  return cache;
}

}  // namespace tqcache::interop
