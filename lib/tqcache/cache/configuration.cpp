#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "tqcache/cache/codec_words.h"
#include "tqcache/cache/configuration_items.h"
#include "tqcache/error.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {
namespace {

ConvertOptions dense_options() {
  ConvertOptions options;
  options.keys.dense = true;
  options.values.dense = true;
  return options;
}

// Errors: kInvalidArgument for an unknown name.
Result<ConvertOptions> named_options(std::string_view name) {
  if (name == kDenseName) return dense_options();
  if (name == kLosslessName) return ConvertOptions{.keep_all = true};
  auto found = preset(name);
  if (found) return found;
  return invalid(found.error().message + ", " + std::string(kDenseName) + ", " +
                 std::string(kLosslessName));
}

// --- reading

enum class Scope { kBoth, kKeys, kValues };

// One NAME=VALUE item of a text.
struct Item {
  std::string_view text;
  Scope scope = Scope::kBoth;  // from k. or v. before the name
  std::string_view name;
  std::string_view value;
};

bool is_item(std::string_view text) { return text.find('=') != std::string_view::npos; }

Item read_item(std::string_view text) {
  Item item{text, Scope::kBoth, text.substr(0, text.find('=')), text.substr(text.find('=') + 1)};
  if (item.name.starts_with("k.")) item.scope = Scope::kKeys;
  if (item.name.starts_with("v.")) item.scope = Scope::kValues;
  if (item.scope != Scope::kBoth) item.name.remove_prefix(2);
  return item;
}

std::string all_names() {
  std::string all = "k, v, boundary";
  for (const TensorItem& each : tensor_items()) all += ", " + std::string(each.name);
  return all + ", k.weights, v.weights, windows, fit, profile";
}

// "2" or "2:8".
Result<BoundaryLayers> parse_boundary(std::string_view value) {
  BoundaryLayers boundary;
  const std::size_t colon = value.find(':');
  const auto n = parse_count(value.substr(0, colon));
  const auto bits = colon == std::string_view::npos
                        ? std::optional(static_cast<std::uint64_t>(boundary.bits))
                        : parse_count(value.substr(colon + 1));
  if (!n || *n > static_cast<std::uint64_t>(kMaxLayers) || !bits || *bits < codec::kMinBits ||
      *bits > codec::kMaxBits) {
    return invalid(std::string(value) + " is not a number of layers, or one and 1 to 8 bits (2:8)");
  }
  return BoundaryLayers{static_cast<std::int64_t>(*n), static_cast<int>(*bits)};
}

Result<void> apply_weights(const Item& item, ConvertOptions& options) {
  const bool of_keys = item.scope == Scope::kKeys;
  const TensorPlan& plan = of_keys ? options.keys : options.values;
  if (item.scope == Scope::kBoth) return invalid("weights are of keys or of values: k.weights");
  if (plan.dense || plan.codec.mode != codec::Mode::kTrellis) {
    return invalid("that tensor is not of mode trellis");
  }
  std::vector<float>& weights = of_keys ? options.weights.keys : options.weights.values;
  TQC_TRY_ASSIGN(weights, parse_weights(item.value));
  return {};
}

Result<WindowMode> parse_windows(std::string_view value) {
  const auto form = find_word(kWindowWords, value);
  if (form) return *form;
  return invalid(std::string(value) + " is none of " + all_words(kWindowWords));
}

Result<Fit> parse_fit(std::string_view value) {
  const auto fit = find_word(kFitWords, value);
  if (fit) return *fit;
  return invalid(std::string(value) + " is none of " + all_words(kFitWords));
}

// Applies the items k, v, boundary, windows and fit. False: another item.
Result<bool> apply_frame(const Item& item, ConvertOptions& options) {
  if (item.scope != Scope::kBoth) return false;
  if (item.name == "k") {
    TQC_TRY_ASSIGN(options.keys, parse_tensor(item.value));
  } else if (item.name == "v") {
    TQC_TRY_ASSIGN(options.values, parse_tensor(item.value));
  } else if (item.name == "boundary") {
    TQC_TRY_ASSIGN(options.boundary, parse_boundary(item.value));
  } else if (item.name == "windows") {
    TQC_TRY_ASSIGN(options.windows, parse_windows(item.value));
  } else if (item.name == "fit") {
    TQC_TRY_ASSIGN(options.fit, parse_fit(item.value));
  } else if (item.name == "profile") {
    options.calibration_path = item.value;
    TQC_TRY_ASSIGN(Calibration calibration, read_calibration(options.calibration_path));
    options.calibration = std::make_shared<const Calibration>(std::move(calibration));
  } else {
    return false;
  }
  return true;
}

Result<void> apply_tensor_item(const Item& item, ConvertOptions& options) {
  if (item.name == kWeightsName) return apply_weights(item, options);
  const auto found = std::ranges::find(tensor_items(), item.name, &TensorItem::name);
  if (found == tensor_items().end()) return invalid("not one of " + all_names());
  bool has_effect = false;
  for (const auto& [plan, other] :
       {std::pair{&options.keys, Scope::kValues}, std::pair{&options.values, Scope::kKeys}}) {
    if (item.scope == other || !found->fits(*plan)) continue;
    TQC_TRY(found->set(item.value, *plan));
    has_effect = true;
  }
  if (!has_effect) return invalid("nothing of this configuration has that");
  return {};
}

Result<void> check_rounds(const TensorPlan& plan) {
  if (plan.dense || plan.codec.rotation != codec::TransformKind::kDenseQr) return {};
  if (plan.codec.rounds == 1) return {};
  return invalid("rounds do not go with rotation=dense");
}

Result<void> check_repeats(std::span<const Item> items) {
  for (auto item = items.begin(); item != items.end(); ++item) {
    const auto same = [&](const Item& other) {
      return other.name == item->name && other.scope == item->scope;
    };
    if (std::any_of(items.begin(), item, same)) {
      return invalid(std::string(item->text) + ": given twice");
    }
  }
  return {};
}

// Plans are set first; then items for both K and V, then items for one of them.
Result<void> apply_items(std::span<const Item> items, ConvertOptions& options) {
  std::vector<Item> of_tensors;
  for (const Item& item : items) {
    const auto applied = apply_frame(item, options);
    if (!applied) return in_context(item.text, applied.error());
    if (!*applied) of_tensors.push_back(item);
  }
  std::ranges::stable_sort(of_tensors, {},
                           [](const Item& item) { return item.scope != Scope::kBoth; });
  for (const Item& item : of_tensors) {
    if (auto applied = apply_tensor_item(item, options); !applied) {
      return in_context(item.text, std::move(applied).error());
    }
  }
  TQC_TRY(check_rounds(options.keys));
  return check_rounds(options.values);
}

Result<ConvertOptions> parse_options(std::string_view text) {
  TQC_TRY_ASSIGN(ConvertOptions options, preset(kDefaultPreset));
  std::vector<Item> items;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::string_view part = text.substr(begin, text.find(',', begin) - begin);
    if (is_item(part)) {
      items.push_back(read_item(part));
    } else if (begin == 0) {
      TQC_TRY_ASSIGN(options, named_options(part));
    } else {
      return invalid("\"" + std::string(part) + "\": not NAME=VALUE; a name stands first");
    }
    begin += part.size() + 1;
  }
  TQC_TRY(check_repeats(items));
  if (options.keep_all && !items.empty()) {
    return invalid(std::string(items.front().text) +
                   ": lossless has no settings, because nothing is quantized");
  }
  TQC_TRY(apply_items(items, options));
  return options;
}

// The texts of the configurations of a list.
std::vector<std::string_view> split_list(std::string_view text) {
  const char separator = text.find(';') == std::string_view::npos ? ',' : ';';
  std::vector<std::string_view> texts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::string_view part = text.substr(begin, text.find(separator, begin) - begin);
    if (separator == ',' && is_item(part) && !texts.empty()) {
      const std::size_t before = texts.back().size();
      texts.back() = {texts.back().data(), before + 1 + part.size()};
    } else {
      texts.push_back(part);
    }
    begin += part.size() + 1;
  }
  return texts;
}

// --- writing

bool same_encoding(const TensorPlan& a, const TensorPlan& b) {
  return tensor_text(a) == tensor_text(b);
}

// The plan that k= or v= would make of `from` on the way to `to`; adds that item if needed.
TensorPlan add_tensor(std::string_view name, const TensorPlan& from, const TensorPlan& to,
                      std::vector<std::string>& items) {
  if (same_encoding(from, to)) return from;
  items.push_back(std::string(name) + "=" + tensor_text(to));
  auto given = parse_tensor(tensor_text(to));
  return given ? std::move(given).value() : to;
}

// Adds the shortest items that turn `from` into `to`.
void add_tensor_item(const TensorItem& item, const std::array<TensorPlan, 2>& from,
                     const std::array<TensorPlan, 2>& to, std::vector<std::string>& items) {
  constexpr std::array<std::string_view, 2> kPrefixes = {"k.", "v."};
  std::array<std::string, 2> wanted;
  std::vector<std::size_t> needed;
  for (std::size_t tensor = 0; tensor < 2; ++tensor) {
    if (!item.fits(to[tensor])) continue;
    wanted[tensor] = item.get(to[tensor]);
    if (item.get(from[tensor]) != wanted[tensor]) needed.push_back(tensor);
  }
  if (needed.empty()) return;
  const bool one_has_it = wanted[0].empty() || wanted[1].empty();
  const bool for_both = one_has_it || wanted[0] == wanted[1];
  for (const std::size_t tensor : needed) {
    items.push_back((for_both ? "" : std::string(kPrefixes[tensor])) + std::string(item.name) +
                    "=" + wanted[tensor]);
    if (for_both) return;
  }
}

void add_weights(std::string_view prefix, const TensorPlan& plan, const std::vector<float>& weights,
                 std::vector<std::string>& items) {
  if (weights.empty() || plan.dense || plan.codec.mode != codec::Mode::kTrellis) return;
  items.push_back(std::string(prefix) + std::string(kWeightsName) + "=" + weights_text(weights));
}

// The text that begins with `name`, whose options are `base`.
std::string text_from(std::string_view name, const ConvertOptions& base,
                      const ConvertOptions& options) {
  std::vector<std::string> items;
  if (!name.empty()) items.emplace_back(name);
  const TensorPlan keys = add_tensor("k", base.keys, options.keys, items);
  const TensorPlan values = add_tensor("v", base.values, options.values, items);
  if (const BoundaryLayers& boundary = options.boundary; boundary.n > 0) {
    items.push_back("boundary=" + std::to_string(boundary.n));
    if (boundary.bits != BoundaryLayers{}.bits) {
      items.back() += ":" + std::to_string(boundary.bits);
    }
  }
  if (options.windows != WindowMode::kAsTheyAre) {
    items.push_back("windows=" + std::string(word_of(kWindowWords, options.windows)));
  }
  if (options.fit != base.fit) {
    items.push_back("fit=" + std::string(word_of(kFitWords, options.fit)));
  }
  if (options.calibration != nullptr) items.push_back("profile=" + options.calibration_path);
  for (const TensorItem& item : tensor_items()) {
    add_tensor_item(item, {keys, values}, {options.keys, options.values}, items);
  }
  add_weights("k.", options.keys, options.weights.keys, items);
  add_weights("v.", options.values, options.weights.values, items);
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ",") + item;
  return text;
}

}  // namespace

Result<Configuration> parse_configuration(std::string_view text) {
  if (text.empty()) return invalid("a configuration without a word");
  if (text.find(';') != std::string_view::npos) {
    return invalid("\"" + std::string(text) +
                   "\": one configuration is wanted, and these are several");
  }
  TQC_TRY_ASSIGN(ConvertOptions options, parse_options(text));
  const bool is_archive = text.substr(0, text.find(',')) == "archive";
  return Configuration{std::string(text), std::move(options), is_archive};
}

Result<std::vector<Configuration>> parse_configurations(std::string_view text) {
  std::vector<Configuration> configurations;
  for (const std::string_view each : split_list(text)) {
    TQC_TRY_ASSIGN(Configuration configuration, parse_configuration(each));
    configurations.push_back(std::move(configuration));
  }
  return configurations;
}

std::string configuration_text(const ConvertOptions& options) {
  if (options.keep_all) return std::string(kLosslessName);
  std::string shortest = text_from(kDenseName, dense_options(), options);
  const auto consider = [&](std::string_view name, const ConvertOptions& base) {
    std::string text = text_from(name, base, options);
    if (!text.empty() && text.size() < shortest.size()) shortest = std::move(text);
  };
  for (const std::string_view name : preset_names()) {
    if (const auto base = preset(name)) consider(name, *base);
  }
  if (const auto base = preset(kDefaultPreset)) consider("", *base);
  return shortest;
}

}  // namespace tqcache::cache
