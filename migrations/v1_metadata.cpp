
#include "migrations/v1_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <system_error>
#include <utility>

#include "migrations/v1_file.h"
#include "migrations/v1_json.h"
#include "tqcache/cache.h"
#include "tqcache/codec_spec.h"
#include "tqcache/error.h"
#include "tqcache/format/container_format.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::migrations {

namespace {

using tensors::printable_name;

constexpr std::int64_t kMetaVersion = 1;
constexpr std::string_view kCodebook = "v1-lloyd-max-beta";
constexpr int kMaxBitsTotal = codec::kMaxBits + 1;  // mode prod: one is the sign bit
constexpr std::int64_t kMaxPrefixTokens = cache::kTokenBlock;

Result<std::int64_t> ranged(const Json& json, const char* key, std::int64_t lowest,
                            std::int64_t highest) {
  TQC_TRY_ASSIGN(const std::int64_t value, get_int(json, key));
  if (value >= lowest && value <= highest) return value;
  return unsupported(fmt::format("{} {}: outside {} to {}", key, value, lowest, highest));
}

Result<int> bits(const Json& json, const char* key, int highest = codec::kMaxBits) {
  TQC_TRY_ASSIGN(const std::int64_t value, ranged(json, key, codec::kMinBits, highest));
  return static_cast<int>(value);
}

Result<std::uint64_t> seed(const Json& json, const char* key) {
  TQC_TRY_ASSIGN(const std::int64_t value, get_int(json, key));
  if (value < 0) return corrupt(fmt::format("{} {}: below 0", key, value));
  return static_cast<std::uint64_t>(value);
}

// A text with one of two values. True: the second.
Result<bool> one_of(const Json& json, const char* key, std::string_view first,
                    std::string_view second) {
  TQC_TRY_ASSIGN(const std::string value, get_string(json, key));
  if (value == first || value == second) return value == second;
  return unsupported(std::string(key) + " " + printable_name(value) + ": not known");
}

Result<void> require_text(const Json& json, const char* key, std::string_view expected) {
  TQC_TRY_ASSIGN(const bool equal, one_of(json, key, expected, expected));
  static_cast<void>(equal);
  return {};
}

Result<void> check_versions(const Json& json) {
  TQC_TRY_ASSIGN(const std::int64_t version, get_int(json, "schema_version"));
  if (version != kMetaVersion) {
    return unsupported(fmt::format("schema_version {}: not known", version));
  }
  TQC_TRY(require_text(json, "quantizer_version", "turbomlx-v0.1"));
  TQC_TRY(require_text(json, "codebook_version", kCodebook));
  return require_text(json, "packing_layout", "little_endian_compact");
}

// The codebook's name contains head_dim and bits again.
Result<void> check_codebook(const Json& json, const TurboMeta& meta) {
  TQC_TRY_ASSIGN(const std::string id, get_string(json, "codebook_id"));
  const std::string expected = std::string(kCodebook) + "-d" + std::to_string(meta.head_dim) +
                               "-b" + std::to_string(meta.bits_mse);
  if (id == expected) return {};
  return corrupt("codebook_id " + printable_name(id) + " where " + printable_name(expected) +
                 " belongs");
}

Result<void> read_bits(const Json& json, TurboMeta& meta) {
  TQC_TRY_ASSIGN(meta.is_prod, one_of(json, "mode", "mse", "prod"));
  TQC_TRY_ASSIGN(const int total, bits(json, "bits_total", kMaxBitsTotal));
  TQC_TRY_ASSIGN(meta.bits_mse, bits(json, "bits_mse"));
  if (meta.bits_mse == meta.code_bits(total)) return {};
  return corrupt(fmt::format("bits_mse {} beside bits_total {}", meta.bits_mse, total));
}

Result<void> read_values_mode(const Json& json, TurboMeta& meta) {
  TQC_TRY_ASSIGN(meta.has_affine_values, one_of(json, "values_mode", "dense", "affine"));
  if (!meta.has_affine_values) return {};
  TQC_TRY_ASSIGN(meta.value_bits, bits(json, "value_bits"));
  TQC_TRY_ASSIGN(meta.value_group_size, ranged(json, "value_group_size", 1, cache::kMaxHeadDim));
  return {};
}

Result<MixedMeta> read_mixed(const Json& json, const TurboMeta& meta) {
  MixedMeta mixed;
  TQC_TRY_ASSIGN(mixed.outlier_channels, ranged(json, "outlier_channels", codec::kMinPartDim,
                                                meta.head_dim - codec::kMinPartDim));
  TQC_TRY_ASSIGN(mixed.outlier_high_bits, bits(json, "outlier_high_bits", kMaxBitsTotal));
  TQC_TRY_ASSIGN(mixed.regular_bits, bits(json, "regular_bits", kMaxBitsTotal));
  for (const int total : {mixed.outlier_high_bits, mixed.regular_bits}) {
    const int codes = meta.code_bits(total);
    if (codes < codec::kMinBits || codes > codec::kMaxBits) {
      return unsupported(fmt::format("codes of {} bits", codes));
    }
  }
  TQC_TRY(one_of(json, "outlier_selection_policy", "calibration_variance", "rolling_variance"));
  TQC_TRY(ranged(json, "calibration_prefix_tokens", 1, kMaxPrefixTokens));
  return mixed;
}

// "calibration_variance:outliers=32,hi=3,lo=2"
std::string profile_of(const MixedMeta& mixed, const std::string& policy) {
  return policy + ":outliers=" + std::to_string(mixed.outlier_channels) +
         ",hi=" + std::to_string(mixed.outlier_high_bits) +
         ",lo=" + std::to_string(mixed.regular_bits);
}

Result<void> read_mixed_precision(const Json& json, TurboMeta& meta) {
  TQC_TRY_ASSIGN(const std::string profile, get_string(json, "mixed_precision_profile"));
  std::string expected = "disabled";
  if (find_value(json, "mixed_precision") != nullptr) {
    TQC_TRY_ASSIGN(const Json* object, get_object(json, "mixed_precision"));
    auto mixed = read_mixed(*object, meta);
    if (!mixed) return in_context("mixed_precision", std::move(mixed).error());
    meta.mixed = *mixed;
    TQC_TRY_ASSIGN(const std::string policy, get_string(*object, "outlier_selection_policy"));
    expected = profile_of(*meta.mixed, policy);
  }
  if (profile == expected) return {};
  return corrupt("mixed_precision_profile " + printable_name(profile) + " where " +
                 printable_name(expected) + " belongs");
}

Result<TurboMeta> turbo_meta(const Json& json) {
  TurboMeta meta;
  TQC_TRY(check_versions(json));
  TQC_TRY(read_bits(json, meta));
  TQC_TRY_ASSIGN(meta.head_dim, ranged(json, "head_dim", codec::kMinPartDim, codec::kMaxHeadDim));
  TQC_TRY_ASSIGN(meta.num_kv_heads, ranged(json, "num_kv_heads", 1, cache::kMaxKvHeads));
  TQC_TRY_ASSIGN(meta.is_wht, one_of(json, "rotation_kind", "qr", "wht"));
  TQC_TRY_ASSIGN(meta.rotation_seed, seed(json, "rotation_seed"));
  TQC_TRY_ASSIGN(meta.qjl_seed, seed(json, "qjl_seed"));
  TQC_TRY(check_codebook(json, meta));
  TQC_TRY(read_values_mode(json, meta));
  TQC_TRY(read_mixed_precision(json, meta));
  TQC_TRY_ASSIGN(meta.offset, ranged(json, "offset", 0, cache::kMaxTokens));
  return meta;
}

Result<std::int64_t> as_number(const Json& value) {
  const bool is_integer = value.kind == Json::Kind::kInteger;
  if (is_integer && value.integer >= 0 && value.integer <= cache::kMaxTokens) return value.integer;
  if (value.kind == Json::Kind::kText) {
    const std::string& text = value.text;
    std::uint32_t number = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    if (error == std::errc() && stop == end && number <= cache::kMaxTokens) return number;
  }
  return corrupt("not a number from 0 to " + std::to_string(cache::kMaxTokens));
}

Result<std::vector<std::int64_t>> numbers(const Json& json) {
  std::vector<std::int64_t> result;
  if (json.kind == Json::Kind::kText && json.text.empty()) return result;
  if (json.kind != Json::Kind::kArray) return corrupt("not a JSON array");
  for (const Json& each : json.values) {
    auto number = as_number(each);
    if (!number) {
      return in_context("number " + std::to_string(result.size()), std::move(number).error());
    }
    result.push_back(*number);
  }
  return result;
}

Result<CalibrationMeta> calibration_meta(const Json& json) {
  CalibrationMeta meta;
  TQC_TRY_ASSIGN(meta.tokens_seen, ranged(json, "calibration_tokens_seen", 0, cache::kMaxTokens));
  TQC_TRY_ASSIGN(meta.is_done, get_bool(json, "outlier_mask_frozen"));
  return meta;
}

template <class T>
Result<T> from(std::string_view place, Result<T> result) {
  if (!result) return in_context(place, std::move(result).error());
  return result;
}

}  // namespace

Result<TurboMeta> read_turbo_meta(std::string_view json) {
  TQC_TRY_ASSIGN(const Json object, from("meta_state", parse_object(json)));
  return from("meta_state", turbo_meta(object));
}

Result<CalibrationMeta> read_calibration_meta(std::string_view json) {
  if (json.empty()) return CalibrationMeta{};
  TQC_TRY_ASSIGN(const Json object, from("extra_meta", parse_object(json)));
  return from("extra_meta", calibration_meta(object));
}

Result<std::vector<std::int64_t>> read_numbers(std::string_view json) {
  if (json.empty()) return std::vector<std::int64_t>();
  TQC_TRY_ASSIGN(const Json array, from("meta_state", parse_json(json)));
  return from("meta_state", numbers(array));
}

namespace {

using Metadata = std::vector<std::pair<std::string, std::string>>;

const std::string* find(const Metadata& metadata, std::string_view key) {
  const auto found = std::ranges::find(metadata, key, &Metadata::value_type::first);
  return found == metadata.end() ? nullptr : &found->second;
}

Result<std::string> read_name(const std::string& value) {
  if (value.size() <= cache::kMaxTextBytes) return value;
  return too_large(std::to_string(value.size()) + " bytes");
}

Result<Sha256> read_fingerprint(const std::string& value) {
  Sha256 digest;
  if (value.size() != 2 * digest.size()) {
    return corrupt(std::to_string(value.size()) + " characters where 64 hexadecimal digits belong");
  }
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const char* digits = value.data() + 2 * i;
    std::uint8_t byte = 0;
    const auto [stop, error] = std::from_chars(digits, digits + 2, byte, 16);
    if (error != std::errc() || stop != digits + 2) return corrupt("not hexadecimal digits");
    digest[i] = std::byte{byte};
  }
  return digest;
}

Result<cache::RopeStyle> read_style(const Json& json) {
  TQC_TRY_ASSIGN(const std::string style, get_string(json, "style"));
  if (style == "none") return cache::RopeStyle::kNone;
  if (style == "half_split") return cache::RopeStyle::kHalfSplit;
  if (style == "interleaved") return cache::RopeStyle::kInterleaved;
  return unsupported("key \"style\": not known");
}

Result<cache::Rope> read_rope(const std::string& value) {
  if (value.size() > kMaxMetaBytes) {
    return too_large(std::to_string(value.size()) + " bytes");
  }
  TQC_TRY_ASSIGN(const Json json, parse_object(value));
  cache::Rope rope;
  TQC_TRY_ASSIGN(rope.style, read_style(json));
  TQC_TRY_ASSIGN(rope.n_dims, get_int(json, "n_dims"));
  if (rope.n_dims < 0 || rope.n_dims > cache::kMaxHeadDim) {
    return too_large("n_dims " + std::to_string(rope.n_dims));
  }
  TQC_TRY_ASSIGN(rope.base, get_number(json, "base"));
  if (!std::isfinite(rope.base) || rope.base < 0) return corrupt("key \"base\": below 0");
  // Any other key would mean different angles.
  if (json.keys.size() != 3) return unsupported("a key that is not known");
  return rope;
}

// [ids], parsed by hand: as JSON values they would take many times the memory.
class TokenReader {
 public:
  explicit TokenReader(std::string_view text) : at_(text.data()), end_(at_ + text.size()) {}

  Result<std::vector<std::int32_t>> read() {
    std::vector<std::int32_t> ids;
    if (!take('[')) return failure("'['");
    if (!take(']')) {
      do {
        std::int32_t id = 0;
        skip_space();
        const auto [stop, error] = std::from_chars(at_, end_, id);
        if (error != std::errc() || id < 0 || *at_ == '-') return failure("a token id");
        at_ = stop;
        if (static_cast<std::int64_t>(ids.size()) == cache::kMaxTokens) return too_many();
        ids.push_back(id);
      } while (take(','));
      if (!take(']')) return failure("',' or ']'");
    }
    skip_space();
    if (at_ != end_) return failure("the end");
    return ids;
  }

 private:
  void skip_space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }
  bool take(char c) {
    skip_space();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  static Error failure(std::string_view expected) {
    return corrupt("not an array of token ids: no " + std::string(expected));
  }
  static Error too_many() { return {ErrorCode::kTooLarge, "more tokens than a cache may have"}; }

  const char* at_;
  const char* end_;
};

Result<std::vector<std::int32_t>> read_tokens(const std::string& value) {
  return TokenReader(value).read();
}

// Calls `read` with the value of `key`, if it exists, and stores the result in `out`.
template <class Value, class Read>
Result<bool> read_fact(const Metadata& metadata, std::string_view key, Value& out, Read read) {
  const std::string* value = find(metadata, key);
  if (value == nullptr) return false;
  auto result = read(*value);
  if (!result) {
    return in_context(std::string("fact \"").append(key).append("\""), std::move(result).error());
  }
  out = std::move(result).value();
  return true;
}

// A model can use a cache only if all three are known.
Result<void> read_origin(const Metadata& metadata, V1Metadata& facts) {
  cache::Identity& identity = facts.identity;
  TQC_TRY_ASSIGN(const bool architecture,
                 read_fact(metadata, "architecture", identity.architecture, read_name));
  TQC_TRY_ASSIGN(const bool weights, read_fact(metadata, "weights_fingerprint",
                                               identity.weights_fingerprint, read_fingerprint));
  TQC_TRY_ASSIGN(const bool tokenizer, read_fact(metadata, "tokenizer_fingerprint",
                                                 identity.tokenizer_fingerprint, read_fingerprint));
  if (architecture && weights && tokenizer && !identity.architecture.empty()) return {};
  facts.is_origin_partial = architecture || weights || tokenizer;
  identity.architecture.clear();
  identity.weights_fingerprint = {};
  identity.tokenizer_fingerprint = {};
  return {};
}

}  // namespace

Result<V1Metadata> read_metadata(const std::vector<std::pair<std::string, std::string>>& metadata) {
  V1Metadata facts;
  facts.identity.source_format = "tqcache-v1";
  TQC_TRY(read_fact(metadata, "model", facts.identity.model_name, read_name));
  TQC_TRY(read_fact(metadata, "rope", facts.identity.rope, read_rope));
  TQC_TRY(read_origin(metadata, facts));
  TQC_TRY(read_fact(metadata, "tokens", facts.tokens, read_tokens));
  return facts;
}

}  // namespace tqcache::migrations
