#include <profile_v2_generated.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "tqcache/base/integers.h"
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
  if (space > 8) return corrupt("no version in line 1");  // npos is the largest number
  const std::string_view version = text.substr(0, space);
  if (version == "2") {
    return unsupported(
        "a profile of version 2, which predicts layers for archives; versions 1 and 3 are wanted "
        "(tqcache profile without --depth)");
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

namespace {

// Version 2 is for archives and large, and may have factors, too.
constexpr std::string_view kPredictedWord = "tqcache-profile 2 ";
constexpr std::uint64_t kMaxPredictedBytes = std::uint64_t{1} << 30;

// The factors in a profile of version 2. predict::parse_profile() checks the rest.
Result<Calibration> calibration_of_predicted(ByteView file) {
  const std::size_t line_bytes = kPredictedWord.size() + kDigestDigits + 1;
  if (file.size() < line_bytes || as_text(file)[line_bytes - 1] != '\n') {
    return corrupt("truncated in line 1");
  }
  const AlignedBytes body(file.begin() + static_cast<std::ptrdiff_t>(line_bytes), file.end());
  if (to_hex(sha256(body)) != as_text(file).substr(kPredictedWord.size(), kDigestDigits)) {
    return corrupt("its SHA-256 does not match line 1");
  }
  namespace fb = predict::fb;
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(body.data());
  flatbuffers::Verifier verifier(bytes, body.size(), 8, 10'000);
  if (body.size() < 8 || !fb::VerifyProfileBuffer(verifier)) {
    return corrupt("not the FlatBuffer of a profile");
  }
  const fb::Profile& in = *fb::GetProfile(bytes);
  const auto digest_of = [](const fb::Sha256& from) {
    Sha256 digest;
    std::ranges::transform(*from.bytes(), digest.begin(),
                           [](std::uint8_t byte) { return std::byte{byte}; });
    return digest;
  };
  Calibration calibration;
  calibration.weights_fingerprint = digest_of(*in.weights_fingerprint());
  calibration.tokenizer_fingerprint = digest_of(*in.tokenizer_fingerprint());
  if (in.key_factors() == nullptr) return calibration;
  if (in.key_factors()->size() != in.n_layers() || in.n_layers() > kMaxLayers) {
    return corrupt("key_factors: not one list for each layer");
  }
  for (const fb::KeyFactors* const layer : *in.key_factors()) {
    auto& factors = calibration.key_factors.emplace_back();
    if (layer->eighths() == nullptr) continue;
    if (layer->eighths()->size() > to_size(kMaxKvHeads * kMaxHeadDim)) {
      return corrupt("key_factors: more than heads have components");
    }
    factors.assign(layer->eighths()->begin(), layer->eighths()->end());
    if (std::ranges::find(factors, std::int8_t{-128}) != factors.end()) {
      return corrupt("key_factors: not a whole number from -127 to 127");
    }
  }
  return calibration;
}

}  // namespace

Result<Calibration> read_calibration(const std::string& path, const MemoryBudget& memory) {
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, open_file(path));
  std::array<std::byte, kPredictedWord.size()> start{};
  TQC_TRY(source->read_at(0, std::span(start).first(static_cast<std::size_t>(
                                 std::min<std::uint64_t>(start.size(), source->size())))));
  const bool is_predicted = as_text(start) == kPredictedWord;
  if (is_predicted && source->size() <= kMaxPredictedBytes) {
    TQC_TRY(memory.check(2 * source->size(), "the profile"));  // the file, an aligned copy
  }
  TQC_TRY_ASSIGN(const Bytes file,
                 read_file(path, is_predicted ? kMaxPredictedBytes : kMaxProfileTextBytes));
  Calibration calibration;
  if (is_predicted) {
    TQC_TRY_ASSIGN(calibration, calibration_of_predicted(file));
  } else {
    TQC_TRY_ASSIGN(const ProfileText profile, parse_profile_text(file));
    TQC_TRY_ASSIGN(calibration, calibration_of(profile));
  }
  if (calibration.key_factors.empty()) {
    return invalid(
        "a profile of an older version, without factors of keys; tqcache profile makes "
        "one with them, tqcache profile --quick in less time");
  }
  return calibration;
}

}  // namespace tqcache::cache
