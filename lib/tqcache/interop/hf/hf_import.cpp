#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/interop/hf/hf.h"
#include "tqcache/interop/hf/hf_schema.h"
#include "tqcache/interop/media_json.h"
#include "tqcache/interop/whole_tensors.h"
#include "tqcache/tensors/foreign_json.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

// Digits without a sign or a leading zero.
std::optional<std::size_t> number_of(std::string_view digits) {
  if (digits.empty() || digits.size() > 4) return std::nullopt;
  if (digits.front() == '0' && digits.size() > 1) return std::nullopt;
  std::size_t number = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (failure != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

using tensors::printable_name;
using tensors::SafetensorsIndex;
using tensors::TensorPlace;
using tensors::TensorType;

constexpr std::size_t kMaxListBytes = 64 << 10;  // for layer_types and sliding_window
constexpr std::size_t kTokensAtOnce = 8192;

Result<std::string> metadata_of(const SafetensorsIndex& index, std::string_view key) {
  const auto found = index.metadata.find(std::string(key));
  if (found == index.metadata.end()) {
    return corrupt("metadata " + printable_name(key) + ": missing");
  }
  return found->second;
}

Result<std::int64_t> read_n_tokens(const SafetensorsIndex& index) {
  TQC_TRY_ASSIGN(const std::string text, metadata_of(index, kHfTokensKey));
  std::int64_t n = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, n);
  if (failure == std::errc::result_out_of_range || n > cache::kMaxTokens) {
    return too_large("metadata \"n_tokens\": " + printable_name(text));
  }
  if (failure != std::errc() || stop != end || n < 0) {
    return corrupt("metadata \"n_tokens\": not a number of tokens");
  }
  return n;
}

Result<nlohmann::json> read_list(const SafetensorsIndex& index, std::string_view key) {
  const std::string where = "metadata " + printable_name(key);
  TQC_TRY_ASSIGN(const std::string text, metadata_of(index, key));
  auto list = tensors::parse_json(text, {.max_bytes = kMaxListBytes, .max_depth = 1});
  if (!list) return in_context(where, std::move(list).error());
  if (!list->is_array()) return corrupt(where + ": not a list");
  return list;
}

Result<std::vector<std::string>> read_layer_types(const SafetensorsIndex& index) {
  TQC_TRY_ASSIGN(const nlohmann::json list, read_list(index, kHfLayerTypesKey));
  if (list.size() > static_cast<std::size_t>(cache::kMaxLayers)) {
    return too_large(fmt::format("{} layers", list.size()));
  }
  std::vector<std::string> types;
  for (const nlohmann::json& type : list) {
    if (!type.is_string()) return corrupt("metadata \"layer_types\": an entry that is no text");
    types.push_back(type.get<std::string>());
  }
  return types;
}

// The window of each layer in transformers; 0: no window.
Result<std::vector<std::int64_t>> read_windows(const SafetensorsIndex& index,
                                               const std::vector<std::string>& types) {
  std::vector<std::int64_t> windows(types.size());
  if (std::ranges::none_of(types, hf_has_window)) return windows;
  TQC_TRY_ASSIGN(const nlohmann::json list, read_list(index, kHfWindowKey));
  if (list.size() != types.size()) {
    return corrupt(fmt::format("metadata \"sliding_window\": {} entries for {} layers", list.size(),
                               types.size()));
  }
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (!hf_has_window(types[i])) continue;
    // A window of 1 would keep no tokens, and transformers then keeps all of them.
    if (!list[i].is_number_unsigned() || list[i].get<std::uint64_t>() < 2) {
      return corrupt(
          fmt::format("metadata \"sliding_window\": entry {} is no number of at least 2", i));
    }
    if (list[i].get<std::uint64_t>() > std::uint64_t{cache::kMaxTokens} + 1) {
      return too_large(fmt::format("metadata \"sliding_window\": entry {}", i));
    }
    windows[i] = list[i].get<std::int64_t>();
  }
  return windows;
}

Result<Dtype> dtype_of(const TensorPlace& place) {
  if (const auto dtype = wide_dtype(place.type)) return *dtype;
  return unsupported("values of type " + place.type_name);
}

// Takes the tensors of a file one by one, and finds those that were not taken.
class HfReader {
 public:
  HfReader(std::shared_ptr<const ByteSource> file, SafetensorsIndex index)
      : file_(std::move(file)), index_(std::move(index)) {}

  const SafetensorsIndex& index() const { return index_; }

  // Adds a layer of transformers: a hybrid one is two, the recurrent state first.
  Result<void> read_layer(std::size_t layer, std::string_view type, std::int64_t window,
                          std::vector<ForeignLayer>& layers) {
    const std::string prefix = hf_layer_prefix(layer);
    const bool is_known = type == kHfFull || type == kHfSliding || type == kHfLinear ||
                          type == kHfDummy || hf_is_hybrid(type);
    if (!is_known) return unsupported("a layer of type " + printable_name(type));
    if (type == kHfDummy) layers.push_back(state_layer({}));
    if (type == kHfLinear || hf_is_hybrid(type)) {
      TQC_TRY_ASSIGN(ForeignLayer state, read_linear(prefix));
      layers.push_back(std::move(state));
    }
    if (type == kHfFull || type == kHfHybrid) {
      TQC_TRY_ASSIGN(ForeignLayer full, read_full(prefix));
      layers.push_back(std::move(full));
    }
    if (hf_has_window(type)) {
      TQC_TRY_ASSIGN(ForeignLayer sliding, read_sliding(prefix, window - 1));
      layers.push_back(std::move(sliding));
    }
    return {};
  }

  // Whether a tensor that was read has numbers of 8 bits.
  bool has_f8() const { return has_f8_; }

  Result<std::optional<std::vector<std::int32_t>>> read_tokens() {
    const auto place = find(std::string(kHfTokens));
    if (!place) return std::optional<std::vector<std::int32_t>>();
    if (place->type != TensorType::kI64) return unsupported("tokens of type " + place->type_name);
    TQC_TRY(check_token_shape(place->shape));
    std::vector<std::int32_t> tokens;
    tokens.reserve(static_cast<std::size_t>(n_tokens));
    while (tokens.size() < static_cast<std::size_t>(n_tokens)) {
      TQC_TRY(read_some_tokens(place->offset, tokens));
    }
    return std::optional(std::move(tokens));
  }

  Result<void> check_all_taken() const {
    for (const auto& [name, place] : index_.tensors) {
      if (!taken_.contains(name)) {
        return unsupported("tensor " + printable_name(name) + ": of no layer that is named");
      }
    }
    return {};
  }

  std::int64_t n_tokens = 0;

 private:
  struct HeadRows {
    cache::HeadShape shape;
    Dtype dtype = Dtype::kF16;
    ReadTensor values;
  };

  const TensorPlace* find(const std::string& name) {
    const auto found = index_.tensors.find(name);
    if (found == index_.tensors.end()) return nullptr;
    taken_.insert(name);
    return &found->second;
  }

  Result<HeadRows> read_kv(const std::string& name, std::int64_t n_rows) {
    const TensorPlace* const place = find(name);
    if (!place) return corrupt("tensor " + printable_name(name) + ": missing");
    auto rows = rows_in(*place, n_rows);
    if (!rows) return in_context("tensor " + printable_name(name), std::move(rows).error());
    return rows;
  }

  // The values of a tensor, as dtype_of() it.
  ReadTensor values_of(const TensorPlace& place) {
    has_f8_ = has_f8_ || !float_dtype(place.type);
    return wide_tensor_at(file_, place.offset, place.type);
  }

  Result<HeadRows> rows_in(const TensorPlace& place, std::int64_t n_rows) {
    TQC_TRY_ASSIGN(const Dtype dtype, dtype_of(place));
    std::span<const std::uint64_t> shape(place.shape);
    if (shape.size() == 4) {
      if (shape[0] != 1) {
        return unsupported(
            fmt::format("a batch of {}: save one of its prompts, save(..., row=N)", shape[0]));
      }
      shape = shape.subspan(1);
    }
    TQC_TRY_ASSIGN(const cache::HeadShape heads, head_shape_of(shape, n_rows));
    return HeadRows{heads, dtype, values_of(place)};
  }

  struct KeysAndValues {
    HeadRows k, v;
    std::int64_t value_dim = 0;  // cache::AttentionDesc::value_dim
  };
  Result<KeysAndValues> read_both(const std::string& prefix, std::int64_t n_rows) {
    TQC_TRY_ASSIGN(const HeadRows k, read_kv(prefix + "key", n_rows));
    TQC_TRY_ASSIGN(const HeadRows v, read_kv(prefix + "value", n_rows));
    if (k.shape.n_kv_heads != v.shape.n_kv_heads) {
      return corrupt(
          fmt::format("{} heads of keys and {} of values", k.shape.n_kv_heads, v.shape.n_kv_heads));
    }
    return KeysAndValues{k, v, cache::value_dim_of(k.shape.head_dim, v.shape.head_dim)};
  }

  ForeignTensor foreign_tensor(const HeadRows& rows) const {
    return {{rows.dtype, {}}, rows_of(rows.values, rows.shape, n_tokens, dtype_size(rows.dtype))};
  }

  ForeignArray foreign_array(std::string name, Dtype dtype, std::vector<std::uint64_t> shape,
                             ReadTensor values) const {
    return {{std::move(name), dtype, std::move(shape)},
            [values = std::move(values)](std::span<std::byte> out) { return values(0, out); }};
  }

  Result<ForeignLayer> read_full(const std::string& prefix) {
    TQC_TRY_ASSIGN(const KeysAndValues both, read_both(prefix, n_tokens));
    return attention_layer(both.k.shape, foreign_tensor(both.k), foreign_tensor(both.v),
                           both.value_dim);
  }

  Result<ForeignLayer> read_sliding(const std::string& prefix, std::int64_t n_kept) {
    TQC_TRY_ASSIGN(const KeysAndValues both, read_both(prefix, std::min(n_kept, n_tokens)));
    const cache::Window window{n_kept, 0};
    const auto array = [&](std::string_view name, const HeadRows& rows) {
      return foreign_array(std::string(name), rows.dtype,
                           cache::window_array_shape(rows.shape, window, n_tokens), rows.values);
    };
    return window_layer(both.k.shape, window, array(cache::kWindowKeys, both.k),
                        array(cache::kWindowValues, both.v), both.value_dim);
  }

  Result<ForeignLayer> read_linear(const std::string& prefix) {
    std::vector<std::pair<HfState, std::string>> states;
    for (auto it = index_.tensors.lower_bound(prefix);
         it != index_.tensors.end() && it->first.starts_with(prefix); ++it) {
      const auto state = hf_state_of(std::string_view(it->first).substr(prefix.size()));
      if (state) states.emplace_back(*state, it->first);
    }
    std::ranges::sort(states);
    if (states.empty()) return corrupt("a linear-attention layer without a state");
    std::vector<ForeignArray> arrays;
    for (const auto& [state, name] : states) {
      const TensorPlace& place = *find(name);
      auto dtype = dtype_of(place);
      if (!dtype) return in_context("tensor " + printable_name(name), std::move(dtype).error());
      arrays.push_back(
          foreign_array(name.substr(prefix.size()), *dtype, place.shape, values_of(place)));
    }
    return state_layer(std::move(arrays));
  }

  Result<void> check_token_shape(std::span<const std::uint64_t> shape) const {
    if (shape.size() == 2 && shape[0] == 1) shape = shape.subspan(1);
    if (shape.size() == 1 && shape[0] == static_cast<std::uint64_t>(n_tokens)) return {};
    return corrupt(fmt::format("tensor \"tokens\": not {} ids", n_tokens));
  }

  Result<void> read_some_tokens(std::uint64_t offset, std::vector<std::int32_t>& tokens) const {
    std::array<std::int64_t, kTokensAtOnce> ids;
    const std::size_t n =
        std::min(kTokensAtOnce, static_cast<std::size_t>(n_tokens) - tokens.size());
    TQC_TRY(file_->read_at(offset + tokens.size() * sizeof(std::int64_t),
                           std::as_writable_bytes(std::span(ids).first(n))));
    for (const std::int64_t id : std::span(ids).first(n)) {
      if (id < cache::kUnknownToken || id > std::numeric_limits<std::int32_t>::max()) {
        return corrupt(fmt::format("token {}: id {}", tokens.size(), id));
      }
      tokens.push_back(static_cast<std::int32_t>(id));
    }
    return {};
  }

  std::shared_ptr<const ByteSource> file_;
  SafetensorsIndex index_;
  std::set<std::string, std::less<>> taken_;
  bool has_f8_ = false;
};

std::string text_or_none(const SafetensorsIndex& index, std::string_view key) {
  const auto found = index.metadata.find(std::string(key));
  return found == index.metadata.end() ? std::string() : found->second;
}

// Keeps only displayable texts: other names are of no use.
void describe(const SafetensorsIndex& index, ForeignCache& cache) {
  cache.identity.source_format = "transformers";
  const std::string model_type = text_or_none(index, kHfModelTypeKey);
  if (tensors::is_plain_text(model_type)) cache.identity.architecture = model_type;
  cache.metadata.emplace_back("schema", kHfFormat);
  for (const std::string_view key : {kHfVersionKey, kHfModelTypeKey}) {
    const std::string text = text_or_none(index, key);
    if (!text.empty() && tensors::is_plain_text(text))
      cache.metadata.emplace_back(key, text.substr(0, 256));
  }
  if (index.metadata.contains(std::string(kHfConfigKey))) {
    cache.dropped_fields.emplace_back("the config of the model is not kept");
  }
}

Result<void> read_layers(HfReader& reader, ForeignCache& cache) {
  TQC_TRY_ASSIGN(const std::vector<std::string> types, read_layer_types(reader.index()));
  TQC_TRY_ASSIGN(const std::vector<std::int64_t> windows, read_windows(reader.index(), types));
  for (std::size_t i = 0; i < types.size(); ++i) {
    auto read = reader.read_layer(i, types[i], windows[i], cache.layers);
    if (!read) return in_context(fmt::format("layer {}", i), std::move(read).error());
  }
  if (reader.has_f8()) {
    cache.dropped_fields.emplace_back("numbers of 8 bits become f16, which holds each of them");
  }
  if (std::ranges::none_of(types, hf_is_hybrid)) return {};
  cache.identity.source_layout = format_hf_types(types);
  if (cache.identity.source_layout.size() <= cache::kMaxTextBytes) return {};
  cache.identity.source_layout.clear();
  cache.dropped_fields.emplace_back("which layers are hybrid is not kept: too many changes");
  return {};
}

}  // namespace

std::string format_hf_types(std::span<const std::string> types) {
  std::string text;
  for (std::size_t i = 0; i < types.size();) {
    std::size_t end = i + 1;
    while (end < types.size() && types[end] == types[i]) ++end;
    text += (i == 0 ? "" : ",") + types[i];
    if (end - i > 1) text += fmt::format("*{}", end - i);
    i = end;
  }
  return text;
}

std::optional<std::vector<std::string>> parse_hf_types(std::string_view text, std::size_t most) {
  std::vector<std::string> types;
  while (true) {
    const std::string_view item = text.substr(0, text.find(','));
    const std::string_view name = item.substr(0, item.find('*'));
    const auto count = name.size() == item.size() ? std::optional<std::size_t>(1)
                                                  : number_of(item.substr(name.size() + 1));
    if (name.empty() || !count || *count == 0 || *count > most - types.size()) return std::nullopt;
    types.insert(types.end(), *count, std::string(name));
    if (item.size() == text.size()) return types;
    text.remove_prefix(item.size() + 1);
  }
}

std::optional<HfState> hf_state_of(std::string_view name) {
  const bool is_recurrent = name.starts_with(kHfRecurrentStates);
  if (!is_recurrent && !name.starts_with(kHfConvStates)) return std::nullopt;
  name.remove_prefix(is_recurrent ? kHfRecurrentStates.size() : kHfConvStates.size());
  const auto number = number_of(name);
  if (!number) return std::nullopt;
  return HfState{is_recurrent, *number};
}

bool is_hf(const SafetensorsIndex& index) { return text_or_none(index, kHfFormatKey) == kHfFormat; }

Result<ForeignCache> import_hf(std::shared_ptr<const ByteSource> file) {
  TQC_TRY_ASSIGN(SafetensorsIndex index, tensors::index_safetensors(*file));
  if (!is_hf(index)) {
    const std::string format = text_or_none(index, kHfFormatKey);
    return unsupported(format.starts_with(kHfFormatPrefix)
                           ? "format " + printable_name(format) + " is newer than this reader"
                           : "not of the schema " + std::string(kHfFormat));
  }
  TQC_TRY(check_key_order(text_or_none(index, kHfModelTypeKey), "transformers"));
  HfReader reader(std::move(file), std::move(index));
  TQC_TRY_ASSIGN(reader.n_tokens, read_n_tokens(reader.index()));
  ForeignCache cache;
  cache.n_tokens = reader.n_tokens;
  TQC_TRY(read_layers(reader, cache));
  TQC_TRY_ASSIGN(cache.tokens, reader.read_tokens());
  if (const std::string media = text_or_none(reader.index(), kHfMediaKey); !media.empty()) {
    auto spans = parse_media(media);
    if (!spans) return in_context("metadata \"media\"", std::move(spans).error());
    cache.media = *std::move(spans);
  }
  TQC_TRY(reader.check_all_taken());
  describe(reader.index(), cache);
  return cache;
}

}  // namespace tqcache::interop
