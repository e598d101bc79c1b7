#include "tqcache/base/json.h"

#include <limits>
#include <string_view>
#include <utility>

namespace tqcache {
namespace {

// Model files nest at most 8 deep. Each level costs a few hundred bytes of memory per byte of text.
constexpr int kMaxDepth = 32;

Error corrupt(const char* key, std::string_view what) {
  return {ErrorCode::kCorrupt, "key \"" + std::string(key) + "\": " + std::string(what)};
}

bool nests_too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') ++i;
    if (c == '"') in_string = !in_string;
    if (in_string) continue;
    if ((c == '{' || c == '[') && ++depth > kMaxDepth) return true;
    if (c == '}' || c == ']') --depth;
  }
  return false;
}

Result<const Json*> require(const Json& object, const char* key) {
  const Json* value = find_value(object, key);
  if (value == nullptr) return corrupt(key, "missing");
  return value;
}

Result<std::int64_t> as_int(const Json& value, const char* key) {
  if (!value.is_number_integer()) return corrupt(key, "not an integer");
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > kMax) {
    return corrupt(key, "beyond 64 bits");
  }
  return value.get<std::int64_t>();
}

Result<std::string> as_string(const Json& value, const char* key) {
  if (!value.is_string()) return corrupt(key, "not a string");
  return value.get<std::string>();
}

}  // namespace

Result<Json> parse_json_object(ByteView text) {
  const char* begin = reinterpret_cast<const char*>(text.data());
  if (nests_too_deep({begin, text.size()})) {
    return Error{ErrorCode::kTooLarge, "JSON: nested deeper than " + std::to_string(kMaxDepth)};
  }
  try {
    Json object = Json::parse(begin, begin + text.size());
    if (!object.is_object()) return Error{ErrorCode::kCorrupt, "JSON: not an object"};
    return object;
  } catch (const Json::parse_error& error) {
    return Error{ErrorCode::kCorrupt, "byte " + std::to_string(error.byte) + ": not JSON"};
  } catch (const Json::exception&) {
    return Error{ErrorCode::kCorrupt, "JSON: a number out of range"};
  }
}

const Json* find_value(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Result<std::int64_t> get_int(const Json& object, const char* key) {
  TQC_TRY_ASSIGN(const Json* value, require(object, key));
  return as_int(*value, key);
}

Result<std::string> get_string(const Json& object, const char* key) {
  TQC_TRY_ASSIGN(const Json* value, require(object, key));
  return as_string(*value, key);
}

Result<const Json*> get_array(const Json& object, const char* key) {
  TQC_TRY_ASSIGN(const Json* value, require(object, key));
  if (!value->is_array()) return corrupt(key, "not an array");
  return value;
}

Result<const Json*> get_object(const Json& object, const char* key) {
  TQC_TRY_ASSIGN(const Json* value, require(object, key));
  if (!value->is_object()) return corrupt(key, "not an object");
  return value;
}

Result<std::int64_t> get_int_or(const Json& object, const char* key, std::int64_t fallback) {
  const Json* value = find_value(object, key);
  return value == nullptr ? Result<std::int64_t>(fallback) : as_int(*value, key);
}

Result<double> get_number_or(const Json& object, const char* key, double fallback) {
  const Json* value = find_value(object, key);
  if (value == nullptr) return fallback;
  if (!value->is_number()) return corrupt(key, "not a number");
  return value->get<double>();
}

Result<bool> get_bool_or(const Json& object, const char* key, bool fallback) {
  const Json* value = find_value(object, key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return corrupt(key, "not true or false");
  return value->get<bool>();
}

Result<std::string> get_string_or(const Json& object, const char* key, const char* fallback) {
  const Json* value = find_value(object, key);
  return value == nullptr ? Result<std::string>(fallback) : as_string(*value, key);
}

}  // namespace tqcache
