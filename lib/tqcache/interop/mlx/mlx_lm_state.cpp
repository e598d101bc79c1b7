#include "tqcache/interop/mlx/mlx_lm_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/interop/whole_tensors.h"
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

// The branch of the metadata tree that a key belongs to, and the rest of the key.
std::optional<std::pair<char, std::string_view>> split_key(std::string_view key) {
  if (key.size() < 3 || !is_digit(key[0]) || key[1] != '.') return std::nullopt;
  return std::pair(key[0], key.substr(2));
}

// The texts of one branch, indexed by the rest of their keys.
MlxMeta::Texts branch(const SafetensorsIndex& index, char number) {
  MlxMeta::Texts texts;
  for (const auto& [key, value] : index.metadata) {
    const auto split = split_key(key);
    if (split && split->first == number) texts.emplace(split->second, value);
  }
  return texts;
}

// Class names under the keys "0", "1", ...; other keys are refused.
Result<std::vector<std::string_view>> read_classes(const MlxMeta::Texts& texts) {
  if (std::ssize(texts) > cache::kMaxLayers) {
    return too_large(fmt::format("metadata: {} layers", texts.size()));
  }
  std::vector<std::string_view> classes;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto found = texts.find(std::to_string(i));
    if (found == texts.end()) return corrupt(fmt::format("metadata: no class of layer {}", i));
    classes.push_back(found->second);
  }
  return classes;
}

Result<MlxScalar> scalar_kind(std::string_view word) {
  if (word == "scalar") return MlxScalar::kNumber;
  if (word == "string") return MlxScalar::kText;
  if (word == "none") return MlxScalar::kNone;
  return unsupported("kind " + printable_name(word) + " is unknown");
}

// "0" is empty; the others are pairs "<i>.0" and "<i>.1": the name of a tensor and its kind.
Result<void> read_scalars(const SafetensorsIndex& index, const MlxMeta::Texts& texts,
                          MlxMeta& meta) {
  for (std::size_t i = 1; i <= texts.size() / 2; ++i) {
    const std::string place = fmt::format("metadata: scalar {}", i);
    const auto name = texts.find(fmt::format("{}.0", i));
    const auto kind = texts.find(fmt::format("{}.1", i));
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

// Refuses keys outside the branches that mlx-lm makes.
void add_strangers(const SafetensorsIndex& index, MlxMeta& meta) {
  for (const auto& [key, value] : index.metadata) {
    const auto split = split_key(key);
    if (!split || split->first > '2') meta.user.emplace(key, value);
  }
}

using tensors::TensorPlace;
using enum tensors::TensorType;

constexpr std::uint64_t kMaxTextLength = 256;  // of a class name

std::string tensor_place(std::string_view name) { return "tensor " + printable_name(name); }

template <class T>
void append_all(ByteView bytes, std::vector<std::int64_t>& numbers) {
  for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    numbers.push_back(static_cast<std::int64_t>(number_at<T>(bytes, at)));
  }
}

Result<std::int64_t> bounded(std::int64_t number) {
  if (number >= 0 && number <= cache::kMaxTokens) return number;
  if (number < 0) return corrupt("a number below 0");
  return too_large(fmt::format("a number of {}", number));
}

Result<std::int64_t> info_number(const MlxCache& cache, MlxNumber name) {
  const std::string_view text = cache.number_text(name);
  const auto number = mlx_number(text);
  if (number) return bounded(*number);
  const auto at = std::ranges::find(cache.numbers, name) - cache.numbers.begin();
  return corrupt(fmt::format("metadata: number {} is {}", at, printable_name(text)));
}

Result<std::int64_t> to_dimension(std::uint64_t size) {
  // Products of three such sizes fit 64 bits.
  if (size <= static_cast<std::uint64_t>(cache::kMaxTokens)) return static_cast<std::int64_t>(size);
  return too_large(fmt::format("a dimension of {}", size));
}

}  // namespace

std::vector<std::string_view> MlxMeta::info_list(const std::string& key) const {
  std::vector<std::string_view> list;
  for (;;) {
    const auto found = info.find(fmt::format("{}.{}", key, list.size()));
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

bool MlxCache::has_number(MlxNumber number) const {
  return std::ranges::find(numbers, number) != numbers.end();
}

std::string_view MlxCache::number_text(MlxNumber number) const {
  const auto at = static_cast<std::size_t>(std::ranges::find(numbers, number) - numbers.begin());
  return at < info.size() && at < numbers.size() ? info[at] : std::string_view();
}

std::string MlxCache::slot(int number) const {
  if (is_named) return prefix + (number == 0 ? "keys" : "values");
  return fmt::format("{}{}", prefix, first_slot + number);
}

Result<MlxFile> MlxFile::open(std::shared_ptr<const ByteSource> bytes) {
  TQC_TRY_ASSIGN(auto index, tensors::index_safetensors(*bytes));
  if (!mlx_layout(index)) return corrupt("not a prompt cache of mlx-lm");
  auto kept = std::make_unique<const tensors::SafetensorsIndex>(std::move(index));
  TQC_TRY_ASSIGN(MlxMeta meta, read_mlx_meta(*kept));
  return MlxFile(std::move(bytes), std::move(kept), std::move(meta));
}

const TensorPlace* MlxFile::find(const std::string& name) const {
  const auto found = index_->tensors.find(name);
  return found == index_->tensors.end() ? nullptr : &found->second;
}

bool MlxFile::is_none(const std::string& name) const {
  const auto found = meta_.scalars.find(name);
  return found != meta_.scalars.end() && found->second == MlxScalar::kNone;
}

Result<const TensorPlace*> MlxFile::tensor(const std::string& name) {
  const TensorPlace* place = find(name);
  if (place == nullptr) return corrupt("no " + tensor_place(name));
  used_.insert(name);
  return place;
}

Result<std::vector<std::int64_t>> MlxFile::read_integers(const TensorPlace& place) const {
  Bytes bytes(static_cast<std::size_t>(place.bytes));
  TQC_TRY(bytes_->read_at(place.offset, bytes));
  std::vector<std::int64_t> numbers;
  if (place.type == kI32) {
    append_all<std::int32_t>(bytes, numbers);
  } else if (place.type == kI64) {
    append_all<std::int64_t>(bytes, numbers);
  } else if (place.type == kU32) {
    append_all<std::uint32_t>(bytes, numbers);
  } else if (place.type == kBool) {
    append_all<std::uint8_t>(bytes, numbers);
  } else {
    return corrupt(printable_name(place.type_name) + ", expected integers");
  }
  return numbers;
}

Result<std::int64_t> MlxFile::number(const std::string& name) {
  TQC_TRY_ASSIGN(const TensorPlace* place, tensor(name));
  if (!place->shape.empty()) return corrupt(tensor_place(name) + ": not a number");
  auto numbers = read_integers(*place);
  if (!numbers) return in_context(tensor_place(name), std::move(numbers).error());
  return numbers->front();
}

Result<std::vector<std::int64_t>> MlxFile::numbers(const std::string& name,
                                                   std::uint64_t max_count) {
  TQC_TRY_ASSIGN(const TensorPlace* place, tensor(name));
  if (place->shape.size() != 1 || place->shape[0] > max_count) {
    return corrupt(tensor_place(name) + ": not a list of numbers");
  }
  auto numbers = read_integers(*place);
  if (!numbers) return in_context(tensor_place(name), std::move(numbers).error());
  return numbers;
}

Result<std::string> MlxFile::text(const std::string& name) {
  TQC_TRY_ASSIGN(const auto characters, numbers(name, kMaxTextLength));
  std::string text;
  for (const std::int64_t c : characters) {
    if (c < ' ' || c > '~') return corrupt(tensor_place(name) + ": not a text");
    text += static_cast<char>(c);
  }
  return text;
}

Result<void> MlxFile::check_all_used() const {
  for (const auto& [name, place] : index_->tensors) {
    if (used_.contains(name)) continue;
    return unsupported(tensor_place(name) + ": part of no state that is known");
  }
  return {};
}

Result<std::int64_t> state_number(MlxFile& file, const MlxCache& cache, MlxNumber number,
                                  int slot) {
  if (file.layout() != MlxLayout::kScalars) return info_number(cache, number);
  const std::string name = cache.slot(slot);
  TQC_TRY_ASSIGN(const std::int64_t found, file.number(name));
  auto checked = bounded(found);
  if (!checked) return in_context(tensor_place(name), std::move(checked).error());
  return checked;
}

Result<TensorPlace> batch_row(const TensorPlace& place, std::int64_t row) {
  const std::uint64_t batch = place.shape[0];
  if (row < 0 || static_cast<std::uint64_t>(row) >= batch) {
    return invalid(fmt::format("row {} of a batch of {}", row, batch));
  }
  TensorPlace part = place;
  part.shape[0] = 1;
  part.bytes = place.bytes / batch;
  part.offset = place.offset + part.bytes * static_cast<std::uint64_t>(row);
  return part;
}

std::uint64_t batch_size(const MlxFile& file, const MlxCache& cache) {
  // Slots may be empty: the first tensor with values says it.
  const int n_slots = cache.n_slots.value_or(4);
  for (int slot = 0; slot < n_slots; ++slot) {
    const std::string name = cache.slot(slot);
    for (const std::string& each : {name, name + ".0", fmt::format("{}0.{}", cache.prefix, slot)}) {
      const TensorPlace* place = file.find(each);
      if (place == nullptr || place->shape.size() < 2 || place->bytes == 0) continue;
      if (!file.is_none(each)) return place->shape[0];
    }
  }
  return 1;
}

Result<MlxGrid> state_grid(MlxFile& file, const std::string& name, std::int64_t row) {
  if (file.is_none(name)) return unsupported("an empty cache");
  TQC_TRY_ASSIGN(const TensorPlace* place, file.tensor(name));
  if (place->shape.size() != 4) {
    return corrupt(fmt::format("{}: {} dimensions", tensor_place(name), place->shape.size()));
  }
  auto part = batch_row(*place, row);
  if (!part) return in_context(tensor_place(name), std::move(part).error());
  std::array<std::int64_t, 3> sizes{};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    auto size = to_dimension(place->shape[i + 1]);
    if (!size) return in_context(tensor_place(name), std::move(size).error());
    sizes[i] = *size;
  }
  return MlxGrid{place->type, place->type_name, place->shape[0], sizes[0],
                 sizes[1],    sizes[2],         part->offset};
}

Result<Dtype> float_dtype(tensors::TensorType type, std::string_view type_name) {
  if (const auto dtype = float_dtype(type)) return *dtype;
  return unsupported("values of dtype " + printable_name(type_name));
}

}  // namespace tqcache::interop
