#include "migrations/v1_facts.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <system_error>

#include "migrations/v1_json.h"
#include "migrations/v1_limits.h"
#include "tqcache/base/result.h"
#include "tqcache/format/container_format.h"

namespace tqcache::migrations {
namespace {

using Metadata = std::vector<std::pair<std::string, std::string>>;

const std::string* find(const Metadata& metadata, std::string_view key) {
  const auto found = std::ranges::find(metadata, key, &Metadata::value_type::first);
  return found == metadata.end() ? nullptr : &found->second;
}

Result<std::string> read_name(const std::string& value) {
  if (value.size() <= format::kMaxTextBytes) return value;
  return Error{ErrorCode::kTooLarge, std::to_string(value.size()) + " bytes"};
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
  return Error{ErrorCode::kUnsupported, "key \"style\": not known"};
}

Result<cache::Rope> read_rope(const std::string& value) {
  if (value.size() > kMaxMetaBytes) {
    return Error{ErrorCode::kTooLarge, std::to_string(value.size()) + " bytes"};
  }
  TQC_TRY_ASSIGN(const Json json, parse_object(value));
  cache::Rope rope;
  TQC_TRY_ASSIGN(rope.style, read_style(json));
  TQC_TRY_ASSIGN(rope.n_dims, get_int(json, "n_dims"));
  if (rope.n_dims < 0 || rope.n_dims > cache::kMaxHeadDim) {
    return Error{ErrorCode::kTooLarge, "n_dims " + std::to_string(rope.n_dims)};
  }
  TQC_TRY_ASSIGN(rope.base, get_number(json, "base"));
  if (!std::isfinite(rope.base) || rope.base < 0) return corrupt("key \"base\": below 0");
  // Anything else would say that the angles are other ones.
  if (json.keys.size() != 3) return Error{ErrorCode::kUnsupported, "a key that is not known"};
  return rope;
}

// [ids], by hand: as JSON values they would take many times the memory.
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

// Calls `read` with the fact's value, if it is there, for what `out` then is.
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

// A cache is of use to a model only if all three are known.
Result<void> read_origin(const Metadata& metadata, V1Facts& facts) {
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

Result<V1Facts> read_facts(const std::vector<std::pair<std::string, std::string>>& metadata) {
  V1Facts facts;
  facts.identity.source_format = "tqcache-v1";
  TQC_TRY(read_fact(metadata, "model", facts.identity.model_name, read_name));
  TQC_TRY(read_fact(metadata, "rope", facts.identity.rope, read_rope));
  TQC_TRY(read_origin(metadata, facts));
  TQC_TRY(read_fact(metadata, "tokens", facts.tokens, read_tokens));
  return facts;
}

}  // namespace tqcache::migrations
