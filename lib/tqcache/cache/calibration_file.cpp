#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "tqcache/cache/profile_text.h"
#include "tqcache/file.h"

namespace tqcache::cache {
namespace {

constexpr std::string_view kProfileWord = "tqcache-profile ";
constexpr std::size_t kDigestDigits = 64;

std::string_view as_text(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::optional<std::uint8_t> hex_digit(char c) {
  if (c >= '0' && c <= '9') return static_cast<std::uint8_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<std::uint8_t>(c - 'a' + 10);
  return std::nullopt;
}

Result<Sha256> read_fingerprint(const Json& body, const char* key) {
  TQC_TRY_ASSIGN(const std::string text, get_string(body, key));
  Sha256 fingerprint{};
  bool is_good = text.size() == kDigestDigits;
  for (std::size_t i = 0; is_good && i < kDigestDigits; i += 2) {
    const auto high = hex_digit(text[i]), low = hex_digit(text[i + 1]);
    is_good = high && low;
    if (is_good) fingerprint[i / 2] = static_cast<std::byte>(*high << 4 | *low);
  }
  if (!is_good) return corrupt(std::string(key) + ": not 64 hexadecimal digits");
  return fingerprint;
}

// One list of whole numbers per layer. How many a layer has to have depends on the cache.
Result<std::vector<std::vector<std::int8_t>>> read_factors(const Json& body) {
  std::vector<std::vector<std::int8_t>> all;
  if (find_value(body, "key_factors") == nullptr) return all;
  TQC_TRY_ASSIGN(const Json* layers, get_array(body, "key_factors"));
  TQC_TRY_ASSIGN(const std::int64_t n_layers, get_int(body, "layers"));
  if (std::cmp_not_equal(layers->size(), n_layers) || n_layers > kMaxLayers) {
    return corrupt("key_factors: not one list per layer");
  }
  for (const Json& layer : *layers) {
    if (!layer.is_array()) return corrupt("key_factors: not one list per layer");
    auto& factors = all.emplace_back();
    for (const Json& each : layer) {
      const bool is_good = each.is_number_integer() && each >= -kMostFactor && each <= kMostFactor;
      if (!is_good) return corrupt("key_factors: not a whole number from -127 to 127");
      factors.push_back(each.get<std::int8_t>());
    }
  }
  return all;
}

}  // namespace

Result<ProfileText> parse_profile_text(ByteView file) {
  if (file.size() > kMaxProfileTextBytes) {
    return Error{ErrorCode::kTooLarge,
                 std::to_string(file.size()) + " bytes: larger than any profile"};
  }
  std::string_view text = as_text(file);
  if (!text.starts_with(kProfileWord)) {
    return corrupt("not a profile: the file does not begin with \"tqcache-profile\"");
  }
  text.remove_prefix(kProfileWord.size());
  const std::size_t space = text.find(' ');
  if (space == std::string_view::npos || space > 8) return corrupt("no version in line 1");
  const std::string_view version = text.substr(0, space);
  if (version == "2") {
    return unsupported(
        "a profile of version 2, which predicts layers for archives; versions 1 and "
        "3 are wanted (tqcache profile without --depth)");
  }
  if (version != "1" && version != "3") {
    return unsupported("unknown profile version; this program reads versions 1 to 3");
  }
  text.remove_prefix(space + 1);
  if (text.size() <= kDigestDigits || text[kDigestDigits] != '\n') {
    return corrupt("truncated in line 1");
  }
  const std::string_view body = text.substr(kDigestDigits + 1);
  const ByteView bytes = std::as_bytes(std::span(body));
  if (to_hex(sha256(bytes)) != text.substr(0, kDigestDigits)) {
    return corrupt("its SHA-256 does not match line 1");
  }
  ProfileText profile;
  profile.version = version == "1" ? 1 : 3;
  TQC_TRY_ASSIGN(profile.body, parse_json_object(bytes));
  return profile;
}

Bytes profile_text(int version, const Json& body) {
  // Names come from model files and may not be UTF-8. Lists of factors stand on one line each.
  Json rest = body;
  std::string lists;
  if (rest.contains("key_factors")) {
    for (const Json& layer : rest["key_factors"]) {
      lists += (lists.empty() ? "\n  " : ",\n  ") + layer.dump();
    }
    rest["key_factors"] = "@";
  }
  std::string text = rest.dump(1, ' ', true, Json::error_handler_t::replace) + "\n";
  if (const std::size_t at = text.find("\"key_factors\": \"@\""); at != std::string::npos) {
    text.replace(at, std::string_view("\"key_factors\": \"@\"").size(),
                 "\"key_factors\": [" + lists + "\n ]");
  }
  const std::string whole = std::string(kProfileWord) + std::to_string(version) + " " +
                            to_hex(sha256(std::as_bytes(std::span(text)))) + "\n" + text;
  const ByteView bytes = std::as_bytes(std::span(whole));
  return {bytes.begin(), bytes.end()};
}

Result<Calibration> calibration_of(const ProfileText& profile) {
  Calibration calibration;
  TQC_TRY_ASSIGN(calibration.weights_fingerprint,
                 read_fingerprint(profile.body, "weights_fingerprint"));
  TQC_TRY_ASSIGN(calibration.tokenizer_fingerprint,
                 read_fingerprint(profile.body, "tokenizer_fingerprint"));
  TQC_TRY_ASSIGN(calibration.key_factors, read_factors(profile.body));
  if (profile.version == 3 && calibration.key_factors.empty()) {
    return corrupt("key_factors: missing");
  }
  return calibration;
}

Json factors_json(const std::vector<std::vector<std::int8_t>>& key_factors) {
  Json all = Json::array();
  for (const auto& layer : key_factors) {
    all.push_back(Json::array());
    for (const std::int8_t each : layer) all.back().push_back(int{each});
  }
  return all;
}

Result<Calibration> read_calibration(const std::string& path) {
  TQC_TRY_ASSIGN(const Bytes file, read_file(path, kMaxProfileTextBytes));
  TQC_TRY_ASSIGN(const ProfileText profile, parse_profile_text(file));
  TQC_TRY_ASSIGN(Calibration calibration, calibration_of(profile));
  if (calibration.key_factors.empty()) {
    return invalid(
        "a profile of an older version, without factors of keys; tqcache profile makes "
        "one with them, tqcache profile --quick in less time");
  }
  return calibration;
}

}  // namespace tqcache::cache
