#include "tqcache/interop/mlx/mlx_lm_meta.h"

#include <algorithm>
#include <utility>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

using tensors::printable_name;
using tensors::SafetensorsIndex;

constexpr std::int64_t kMaxNumber = (std::int64_t{1} << 53) - 1;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// "12_keys"
bool is_pair_name(std::string_view name) {
  const std::size_t n_digits = std::min(name.find('_'), name.size());
  const std::string_view rest = name.substr(n_digits);
  return n_digits > 0 &&
         std::all_of(name.begin(), name.begin() + std::ptrdiff_t(n_digits), is_digit) &&
         (rest == "_keys" || rest == "_values");
}

// The branch of the metadata's tree that a key begins with, and the rest of the key.
std::optional<std::pair<char, std::string_view>> split_key(std::string_view key) {
  if (key.size() < 3 || !is_digit(key[0]) || key[1] != '.') return std::nullopt;
  return std::pair(key[0], key.substr(2));
}

// The texts of one branch by the rest of their keys.
MlxMeta::Texts branch(const SafetensorsIndex& index, char number) {
  MlxMeta::Texts texts;
  for (const auto& [key, value] : index.metadata) {
    const auto split = split_key(key);
    if (split && split->first == number) texts.emplace(split->second, value);
  }
  return texts;
}

// "0", "1", ... and nothing else.
Result<std::vector<std::string_view>> read_classes(const MlxMeta::Texts& texts) {
  if (std::ssize(texts) > cache::kMaxLayers) {
    return Error{ErrorCode::kTooLarge, "metadata: " + std::to_string(texts.size()) + " layers"};
  }
  std::vector<std::string_view> classes;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto found = texts.find(std::to_string(i));
    if (found == texts.end()) return corrupt("metadata: no class of layer " + std::to_string(i));
    classes.push_back(found->second);
  }
  return classes;
}

Result<MlxScalar> scalar_kind(std::string_view word) {
  if (word == "scalar") return MlxScalar::kNumber;
  if (word == "string") return MlxScalar::kText;
  if (word == "none") return MlxScalar::kNone;
  return Error{ErrorCode::kUnsupported, "kind " + printable_name(word) + " is unknown"};
}

// "0" is empty, and the others are pairs "<i>.0" and "<i>.1": a tensor's name and its kind.
Result<void> read_scalars(const SafetensorsIndex& index, const MlxMeta::Texts& texts,
                          MlxMeta& meta) {
  for (std::size_t i = 1; i <= texts.size() / 2; ++i) {
    const std::string place = "metadata: scalar " + std::to_string(i);
    const auto name = texts.find(std::to_string(i) + ".0");
    const auto kind = texts.find(std::to_string(i) + ".1");
    if (name == texts.end() || kind == texts.end()) return corrupt(place + " is missing");
    if (!index.tensors.contains(std::string(name->second))) {
      return corrupt(place + ": no tensor " + printable_name(name->second));
    }
    auto known = scalar_kind(kind->second);
    if (!known) return in_context(place, std::move(known).error());
    if (!meta.scalars.emplace(name->second, *known).second) return corrupt(place + ": given twice");
  }
  return {};
}

// What stands in none of the branches that mlx-lm makes.
void add_strangers(const SafetensorsIndex& index, MlxMeta& meta) {
  for (const auto& [key, value] : index.metadata) {
    const auto split = split_key(key);
    if (!split || split->first > '2') meta.user.emplace(key, value);
  }
}

}  // namespace

std::vector<std::string_view> MlxMeta::info_list(const std::string& key) const {
  std::vector<std::string_view> list;
  for (;;) {
    const auto found = info.find(key + '.' + std::to_string(list.size()));
    if (found == info.end()) return list;
    list.push_back(found->second);
  }
}

std::optional<MlxLayout> mlx_layout(const SafetensorsIndex& index) {
  const auto third = index.metadata.find("2.0");
  if (third != index.metadata.end() && !third->second.empty()) return MlxLayout::kMetaState;
  if (third != index.metadata.end() && index.metadata.contains("1.0")) return MlxLayout::kScalars;
  const auto is_pair = [](const auto& entry) { return is_pair_name(entry.first); };
  if (!index.tensors.empty() && std::ranges::all_of(index.tensors, is_pair)) {
    return MlxLayout::kNamedPairs;
  }
  return std::nullopt;
}

Result<MlxMeta> read_mlx_meta(const SafetensorsIndex& index) {
  MlxMeta meta;
  meta.layout = mlx_layout(index).value_or(MlxLayout::kNamedPairs);
  if (meta.layout == MlxLayout::kNamedPairs) {
    meta.user.insert(index.metadata.begin(), index.metadata.end());
    return meta;
  }
  const bool has_info = meta.layout == MlxLayout::kMetaState;
  if (has_info) meta.info = branch(index, '0');
  meta.user = branch(index, has_info ? '1' : '0');
  TQC_TRY_ASSIGN(meta.classes, read_classes(branch(index, has_info ? '2' : '1')));
  if (!has_info) TQC_TRY(read_scalars(index, branch(index, '2'), meta));
  add_strangers(index, meta);
  return meta;
}

std::optional<std::int64_t> mlx_number(std::string_view text) {
  if (text.empty() || text.size() > 16 || !std::ranges::all_of(text, is_digit)) return std::nullopt;
  std::int64_t number = 0;
  for (const char c : text) number = 10 * number + (c - '0');
  if (number > kMaxNumber) return std::nullopt;
  return number;
}

std::string mlx_text(std::string_view text, std::size_t max_bytes) {
  std::string out(text.substr(0, max_bytes));
  const auto is_strange = [](char c) { return c < ' ' || c > '~'; };
  std::ranges::replace_if(out, is_strange, '?');
  return out;
}

}  // namespace tqcache::interop
