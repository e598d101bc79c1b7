#include "tqcache/interop/turbomlx/turbomlx_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/interop/turbomlx/pickle.h"
#include "tqcache/interop/turbomlx/value_tree.h"
#include "tqcache/tensors/printable_name.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache::interop {
namespace {

using tensors::printable_name;
using Kind = Value::Kind;

constexpr std::uint64_t kHeaderAt = kTurboMlxV3Magic.size() + sizeof(std::uint64_t);
constexpr std::uint64_t kMaxHeaderBytes = 16u << 20;  // a header of 128 layers takes half of 1 MiB

// The end of a file, presented as a file.
class FileEnd : public ByteSource {
 public:
  FileEnd(const ByteSource& file, std::uint64_t offset) : file_(file), offset_(offset) {}

  std::uint64_t size() const override {
    const std::uint64_t size = file_.size();
    return size > offset_ ? size - offset_ : 0;
  }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    const auto at = checked_add(offset, offset_);
    if (!at) return Error{ErrorCode::kTruncated, fmt::format("byte {}: no end", offset)};
    return file_.read_at(*at, out);
  }

 private:
  const ByteSource& file_;
  std::uint64_t offset_;
};

Result<std::string> read_header(const ByteSource& file) {
  Bytes start(kHeaderAt);
  TQC_TRY(file.read_at(0, start));
  const auto size = number_at<std::uint64_t>(start, kTurboMlxV3Magic.size());
  if (size > kMaxHeaderBytes) {
    return too_large(fmt::format("a header of {} bytes", size));
  }
  if (size > file.size() - kHeaderAt) {
    return Error{ErrorCode::kTruncated, fmt::format("a header of {} bytes, of which {} are there",
                                                    size, file.size() - kHeaderAt)};
  }
  std::string header(static_cast<std::size_t>(size), '\0');
  TQC_TRY(file.read_at(kHeaderAt, std::as_writable_bytes(std::span(header))));
  return header;
}

Result<std::vector<std::uint64_t>> read_shape_list(const ValueTree& tree, const Value& list) {
  std::vector<std::uint64_t> shape;
  for (const ValueId id : list.items) {
    const Value& n = tree.at(id);
    if (n.kind != Kind::kInteger || n.integer < 0) return corrupt("shape: not numbers from 0 on");
    shape.push_back(static_cast<std::uint64_t>(n.integer));
  }
  return shape;
}

// The JSON representation of an array: {"__tq_array__": true, "tensor_id", "dtype", "shape"}. The
// shape may differ from the tensor's if the number of values agrees.
Result<Value> make_array(const ValueTree& tree, const Value& dict,
                         const tensors::SafetensorsIndex& index, std::uint64_t blob_at) {
  TQC_TRY_ASSIGN(const std::string id, get_text(tree, dict, "tensor_id"));
  const auto found = index.tensors.find(id);
  if (found == index.tensors.end()) {
    return corrupt("array " + printable_name(id) + ": not in the file");
  }
  const tensors::TensorPlace& place = found->second;
  TQC_TRY_ASSIGN(const Value* list, require_value(tree, dict, "shape", Kind::kList));
  TQC_TRY_ASSIGN(auto shape, read_shape_list(tree, *list));
  if (element_count(shape) != element_count(place.shape)) {
    return corrupt("array " + printable_name(id) + ": a shape of another size than the tensor's");
  }
  Value value{.kind = Kind::kArray};
  value.array = std::make_shared<ArrayValue>();
  value.array->type = place.type;
  value.array->type_name = place.type_name;
  value.array->shape = std::move(shape);
  value.array->bytes = {blob_at + place.offset, place.bytes};
  return value;
}

bool is_marked(const Value* flag) {
  return flag != nullptr && flag->kind == Kind::kBool && flag->integer != 0;
}

// Replaces the JSON representations of arrays and tuples by their values.
Result<void> restore(ValueTree& tree, const tensors::SafetensorsIndex& index,
                     std::uint64_t blob_at) {
  for (ValueId id = 0; id < tree.size(); ++id) {
    Value& value = tree.at(id);
    TQC_TRY_ASSIGN(const Value* array, find_value(tree, value, "__tq_array__"));
    TQC_TRY_ASSIGN(const Value* tuple, find_value(tree, value, "__tq_tuple__"));
    if (is_marked(array)) {
      TQC_TRY_ASSIGN(value, make_array(tree, value, index, blob_at));
    } else if (is_marked(tuple)) {
      TQC_TRY_ASSIGN(const Value* items, require_value(tree, value, "items", Kind::kList));
      value = Value{.kind = Kind::kTuple, .items = items->items};
    }
  }
  return {};
}

Result<ValueTree> read(const ByteSource& file) {
  TQC_TRY_ASSIGN(const std::string header, read_header(file));
  auto tree = parse_json_tree(header);
  if (!tree) return in_context("header", std::move(tree).error());
  const std::uint64_t blob_at = kHeaderAt + header.size();
  const FileEnd blob(file, blob_at);
  tensors::SafetensorsIndex index;
  if (blob.size() > 0) {
    TQC_TRY_ASSIGN(index, tensors::index_safetensors(blob));
  }
  auto restored = restore(*tree, index, blob_at);
  if (!restored) return in_context("header", std::move(restored).error());
  return tree;
}

constexpr std::int64_t kMetaVersion = 1;
constexpr std::string_view kCodebook = "v1-lloyd-max-beta";
constexpr std::size_t kMaxMetaBytes = 64 * 1024;
constexpr int kMaxCodeBits = 8;  // limit of TurboMLX's bit packing
constexpr std::int64_t kMinDim = 2;

// The fields of one object.
class Fields {
 public:
  Fields(const ValueTree& tree, const Value& object) : tree_(tree), object_(object) {}

  Result<const Value*> find(std::string_view key) const { return find_value(tree_, object_, key); }
  const ValueTree& tree() const { return tree_; }

  Result<std::int64_t> number(std::string_view key, std::int64_t lowest,
                              std::int64_t highest) const {
    TQC_TRY_ASSIGN(const std::int64_t value, get_integer(tree_, object_, key));
    if (value >= lowest && value <= highest) return value;
    return unsupported(fmt::format("{} {}: outside {} to {}", key, value, lowest, highest));
  }

  Result<int> bits(std::string_view key, int highest) const {
    TQC_TRY_ASSIGN(const std::int64_t value, number(key, 1, highest));
    return static_cast<int>(value);
  }

  Result<std::uint64_t> seed(std::string_view key) const {
    TQC_TRY_ASSIGN(const std::int64_t value, get_integer(tree_, object_, key));
    if (value >= 0) return static_cast<std::uint64_t>(value);
    return corrupt(fmt::format("{} {}: below 0", key, value));
  }

  Result<std::string> text(std::string_view key) const { return get_text(tree_, object_, key); }

  // A text with one of two values. Returns true for the second.
  Result<bool> one_of(std::string_view key, std::string_view first, std::string_view second) const {
    TQC_TRY_ASSIGN(const std::string value, text(key));
    if (value == first || value == second) return value == second;
    return unsupported(std::string(key) + " " + printable_name(value));
  }

 private:
  const ValueTree& tree_;
  const Value& object_;
};

Result<void> check_versions(const Fields& fields) {
  TQC_TRY_ASSIGN(const std::int64_t version,
                 fields.number("schema_version", kMetaVersion, kMetaVersion));
  static_cast<void>(version);
  TQC_TRY(fields.one_of("quantizer_version", "turbomlx-v0.1", "turbomlx-v0.1"));
  TQC_TRY(fields.one_of("codebook_version", kCodebook, kCodebook));
  TQC_TRY(fields.one_of("packing_layout", "little_endian_compact", "little_endian_compact"));
  return {};
}

Result<void> read_bits(const Fields& fields, TurboMlxMeta& meta) {
  TQC_TRY_ASSIGN(meta.is_prod, fields.one_of("mode", "mse", "prod"));
  TQC_TRY_ASSIGN(meta.bits_total, fields.bits("bits_total", kMaxCodeBits + 1));
  TQC_TRY_ASSIGN(const int codes, fields.bits("bits_mse", kMaxCodeBits));
  if (codes == meta.code_bits(meta.bits_total)) return {};
  return corrupt(fmt::format("bits_mse {} beside bits_total {}", codes, meta.bits_total));
}

// The name of the codebook has to agree. None: no key has been seen yet.
Result<void> check_codebook(const Fields& fields, const TurboMlxMeta& meta) {
  TQC_TRY_ASSIGN(const Value* given, fields.find("codebook_id"));
  if (given == nullptr) return {};
  const std::string expected =
      turbomlx_codebook_id(meta.shape.head_dim, meta.code_bits(meta.bits_total));
  if (given->kind == Kind::kText && given->text == expected) return {};
  return corrupt("codebook_id " + printable_name(given->text) + " where " +
                 printable_name(expected) + " belongs");
}

Result<void> read_shape(const Fields& fields, TurboMlxMeta& meta) {
  TQC_TRY_ASSIGN(const Value* head_dim, fields.find("head_dim"));
  if (head_dim == nullptr) return unsupported("a cache that has seen no token");
  TQC_TRY_ASSIGN(meta.shape.head_dim, fields.number("head_dim", kMinDim, cache::kMaxHeadDim));
  TQC_TRY_ASSIGN(meta.shape.n_kv_heads, fields.number("num_kv_heads", 1, cache::kMaxKvHeads));
  return {};
}

Result<void> read_maps(const Fields& fields, TurboMlxMeta& meta) {
  TQC_TRY_ASSIGN(meta.is_wht, fields.one_of("rotation_kind", "qr", "wht"));
  TQC_TRY_ASSIGN(meta.rotation_seed, fields.seed("rotation_seed"));
  TQC_TRY_ASSIGN(meta.qjl_seed, fields.seed("qjl_seed"));
  return {};
}

// The group size is present once a value was added.
Result<void> read_values_mode(const Fields& fields, TurboMlxMeta& meta) {
  TQC_TRY_ASSIGN(meta.has_affine_values, fields.one_of("values_mode", "dense", "affine"));
  if (!meta.has_affine_values) return {};
  TQC_TRY_ASSIGN(meta.value_bits, fields.bits("value_bits", kMaxCodeBits));
  TQC_TRY_ASSIGN(const Value* size, fields.find("value_group_size"));
  if (size == nullptr) return {};
  TQC_TRY_ASSIGN(meta.value_group_size, fields.number("value_group_size", 1, cache::kMaxHeadDim));
  return {};
}

Result<TurboMlxMixed> read_mixed(const Fields& fields, const TurboMlxMeta& meta) {
  TurboMlxMixed mixed;
  TQC_TRY_ASSIGN(mixed.outlier_channels,
                 fields.number("outlier_channels", kMinDim, meta.shape.head_dim - kMinDim));
  TQC_TRY_ASSIGN(mixed.outlier_high_bits, fields.bits("outlier_high_bits", kMaxCodeBits + 1));
  TQC_TRY_ASSIGN(mixed.regular_bits, fields.bits("regular_bits", kMaxCodeBits + 1));
  for (const int total : {mixed.outlier_high_bits, mixed.regular_bits}) {
    const int codes = meta.code_bits(total);
    if (codes < 1 || codes > kMaxCodeBits) {
      return unsupported(fmt::format("codes of {} bits", codes));
    }
  }
  return mixed;
}

// "calibration_variance:outliers=32,hi=3,lo=2"
std::string profile_of(const TurboMlxMixed& mixed, std::string_view policy) {
  std::string text(policy);
  text.append(":outliers=").append(std::to_string(mixed.outlier_channels));
  text.append(",hi=").append(std::to_string(mixed.outlier_high_bits));
  return text.append(",lo=").append(std::to_string(mixed.regular_bits));
}

Result<void> read_mixed_precision(const Fields& fields, TurboMlxMeta& meta) {
  std::string expected = "disabled";
  TQC_TRY_ASSIGN(const Value* object, fields.find("mixed_precision"));
  if (object != nullptr) {
    const Fields inner(fields.tree(), *object);
    auto mixed = read_mixed(inner, meta);
    if (!mixed) return in_context("mixed_precision", std::move(mixed).error());
    meta.mixed = *mixed;
    TQC_TRY_ASSIGN(const bool rolls, inner.one_of("outlier_selection_policy",
                                                  "calibration_variance", "rolling_variance"));
    expected = profile_of(*mixed, rolls ? "rolling_variance" : "calibration_variance");
  }
  TQC_TRY_ASSIGN(meta.mixed_profile, fields.text("mixed_precision_profile"));
  if (meta.mixed_profile == expected) return {};
  return corrupt("mixed_precision_profile " + printable_name(meta.mixed_profile) + " where " +
                 printable_name(expected) + " belongs");
}

Result<TurboMlxMeta> read_meta(const Fields& fields) {
  TurboMlxMeta meta;
  TQC_TRY(check_versions(fields));
  TQC_TRY(read_bits(fields, meta));
  TQC_TRY(read_shape(fields, meta));
  TQC_TRY(check_codebook(fields, meta));
  TQC_TRY(read_maps(fields, meta));
  TQC_TRY(read_values_mode(fields, meta));
  TQC_TRY(read_mixed_precision(fields, meta));
  TQC_TRY_ASSIGN(meta.has_native_scorer,
                 fields.one_of("scorer_mode", "oracle_preview", "native_mlx"));
  TQC_TRY_ASSIGN(meta.offset, fields.number("offset", 0, cache::kMaxTokens));
  return meta;
}

Result<TurboMlxMeta> parse(std::string_view text) {
  if (text.size() > kMaxMetaBytes) {
    return too_large(fmt::format("{} bytes", text.size()));
  }
  TQC_TRY_ASSIGN(const ValueTree tree, parse_json_tree(text));
  const Value& object = tree.at(tree.root);
  if (object.kind != Kind::kDict) return corrupt("not a JSON object");
  return read_meta(Fields(tree, object));
}

constexpr std::string_view kTurboTypeId = "turbomlx.cache.turboquant_kv.v1";
constexpr std::string_view kTurboClass = "TurboQuantKVCache";
constexpr std::array<std::string_view, 2> kPackages = {"turbomlx.", "mlx_lm."};

Result<std::string> class_of_path(const std::string& path) {
  for (const std::string_view package : kPackages) {
    if (path.starts_with(package)) return path.substr(path.rfind('.') + 1);
  }
  return unsupported("class " + printable_name(path));
}

Result<std::string> class_of(const ValueTree& tree, const Value& entry) {
  TQC_TRY_ASSIGN(const Value* type_id, find_value(tree, entry, "cache_type_id"));
  if (type_id != nullptr && type_id->text == kTurboTypeId) return std::string(kTurboClass);
  TQC_TRY_ASSIGN(const std::string path, get_text(tree, entry, "class_path"));
  return class_of_path(path);
}

// The id of the value of a key.
Result<ValueId> id_of(const ValueTree& tree, const Value& entry, std::string_view key,
                      ValueId if_absent) {
  TQC_TRY(find_value(tree, entry, key));  // checks that the key is not repeated
  ValueId found = if_absent;
  for (std::size_t i = 0; i + 1 < entry.items.size(); i += 2) {
    if (tree.at(entry.items[i]).text == key) found = entry.items[i + 1];
  }
  return found;
}

Result<TurboMlxEntry> read_entry(ValueTree& tree, const Value& value) {
  if (value.kind != Kind::kDict) return corrupt("not a dict");
  TurboMlxEntry entry;
  TQC_TRY_ASSIGN(entry.class_name, class_of(tree, value));
  const ValueId none = tree.add({});
  TQC_TRY_ASSIGN(entry.state, id_of(tree, value, "state", none));
  TQC_TRY_ASSIGN(entry.meta_state, id_of(tree, value, "meta_state", none));
  TQC_TRY_ASSIGN(entry.extra_state, id_of(tree, value, "extra_state", none));
  return entry;
}

Result<void> read_entries(TurboMlxContents& contents) {
  ValueTree& tree = contents.tree;
  TQC_TRY_ASSIGN(const Value* list, find_value(tree, tree.at(tree.root), "entries"));
  if (list == nullptr || !is_sequence(*list)) return corrupt("entries: missing, or not a list");
  if (list->items.size() > static_cast<std::size_t>(cache::kMaxLayers)) {
    return too_large(fmt::format("{} layers", list->items.size()));
  }
  for (const ValueId id : list->items) {
    auto entry = read_entry(tree, tree.at(id));
    if (!entry) {
      return in_context(fmt::format("layer {}", contents.entries.size()), std::move(entry).error());
    }
    contents.entries.push_back(std::move(entry).value());
  }
  return {};
}

Result<void> read_version(TurboMlxContents& contents) {
  const ValueTree& tree = contents.tree;
  const Value& root = tree.at(tree.root);
  if (root.kind != Kind::kDict) return corrupt("not a TurboMLX prompt cache: not a dict");
  TQC_TRY_ASSIGN(const std::int64_t version, get_integer(tree, root, "schema_version"));
  const bool is_v3 = contents.kind == TurboMlxFile::kV3;
  const bool is_known = is_v3 ? version == 3 : version == 1 || version == 2;
  if (!is_known) {
    return unsupported(
        fmt::format("schema_version {} in a {}", version, (is_v3 ? "safetensors file" : "pickle")));
  }
  contents.schema_version = static_cast<int>(version);
  return {};
}

Result<void> read_tree(const ByteSource& file, TurboMlxContents& contents) {
  if (contents.kind == TurboMlxFile::kV3) {
    TQC_TRY_ASSIGN(contents.tree, read_turbomlx_v3(file));
    return {};
  }
  TQC_TRY_ASSIGN(Pickle pickle, read_pickle(file));
  contents.pickle_protocol = pickle.protocol;
  contents.tree = std::move(pickle.tree);
  return {};
}

}  // namespace

Result<ValueTree> read_turbomlx_v3(const ByteSource& file) {
  if (file.size() < kHeaderAt) {
    return Error{ErrorCode::kTruncated, fmt::format("a file of {} bytes", file.size())};
  }
  return read(file);
}

std::string turbomlx_codebook_id(std::int64_t head_dim, int bits) {
  std::string id(kCodebook);
  id.append("-d").append(std::to_string(head_dim));
  return id.append("-b").append(std::to_string(bits));
}

Result<TurboMlxMeta> parse_turbomlx_meta(std::string_view json) {
  auto meta = parse(json);
  if (!meta) return in_context("meta_state", std::move(meta).error());
  return meta;
}

Result<std::string> turbomlx_meta_text(const ValueTree& tree, const Value& meta_state) {
  const Value* text = &meta_state;
  if (is_sequence(*text) && text->items.size() == 1) text = &tree.at(text->items[0]);
  if (text->kind == Kind::kText) return text->text;
  return corrupt("meta_state: not one text");
}

Result<TurboMlxContents> read_turbomlx(const ByteSource& file) {
  TQC_TRY_ASSIGN(const auto kind, is_turbomlx(file));
  if (!kind) return corrupt("not a TurboMLX prompt cache");
  TurboMlxContents contents;
  contents.kind = *kind;
  TQC_TRY(read_tree(file, contents));
  TQC_TRY(read_version(contents));
  TQC_TRY(read_entries(contents));
  return contents;
}

}  // namespace tqcache::interop
