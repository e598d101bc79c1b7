#include "tqcache/interop/turbomlx/turbomlx_meta.h"

#include <utility>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/interop/json_tree.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

using tensors::printable_name;
using Kind = Value::Kind;

constexpr std::int64_t kMetaVersion = 1;
constexpr std::string_view kCodebook = "v1-lloyd-max-beta";
constexpr std::size_t kMaxMetaBytes = 64 * 1024;
constexpr int kMaxCodeBits = 8;  // of TurboMLX's packing
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
    return unsupported(std::string(key) + " " + std::to_string(value) + ": outside " +
                       std::to_string(lowest) + " to " + std::to_string(highest));
  }

  Result<int> bits(std::string_view key, int highest) const {
    TQC_TRY_ASSIGN(const std::int64_t value, number(key, 1, highest));
    return static_cast<int>(value);
  }

  Result<std::uint64_t> seed(std::string_view key) const {
    TQC_TRY_ASSIGN(const std::int64_t value, get_integer(tree_, object_, key));
    if (value >= 0) return static_cast<std::uint64_t>(value);
    return corrupt(std::string(key) + " " + std::to_string(value) + ": below 0");
  }

  Result<std::string> text(std::string_view key) const { return get_text(tree_, object_, key); }

  // A text that is one of two. True: the second.
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
  return corrupt("bits_mse " + std::to_string(codes) + " beside bits_total " +
                 std::to_string(meta.bits_total));
}

// The codebook's name says once more which one it is. None: no key was seen yet.
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

// The group size is there once a value was.
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
      return unsupported("codes of " + std::to_string(codes) + " bits");
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

Result<TurboMlxMeta> parse(std::string_view json) {
  if (json.size() > kMaxMetaBytes) {
    return Error{ErrorCode::kTooLarge, std::to_string(json.size()) + " bytes"};
  }
  TQC_TRY_ASSIGN(const ValueTree tree, parse_json_tree(json));
  const Value& object = tree.at(tree.root);
  if (object.kind != Kind::kDict) return corrupt("not a JSON object");
  return read_meta(Fields(tree, object));
}

}  // namespace

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

}  // namespace tqcache::interop
