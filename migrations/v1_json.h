#pragma once
// migrations/v1_json.h: JSON texts of version 1 as a tree of plain values. Safe for untrusted
// input.
//
// The parser is nlohmann::json's, but not the value type: its destructor allocates memory and
// terminates the process if that fails.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"

namespace tqcache::migrations {

struct Json {
  enum class Kind { kNull, kBool, kInteger, kNumber, kText, kArray, kObject };

  Kind kind = Kind::kNull;
  bool flag = false;              // kBool
  std::int64_t integer = 0;       // kInteger: a number that fits
  double number = 0;              // kNumber: any other
  std::string text;               // kText
  std::vector<std::string> keys;  // kObject: of the values, in their order; no two are equal
  std::vector<Json> values;       // kArray, kObject
};

// Requires: a text of moderate size, because its values take many times the memory.
// Errors:   kCorrupt (not JSON, a duplicate key), kTooLarge (nested too deep, too many keys).
Result<Json> parse_json(std::string_view text);

// The same for an object. Errors: kCorrupt also for any other value.
Result<Json> parse_object(std::string_view text);

// The value of a key; nullptr if it is missing or null, or if `object` is not an object.
const Json* find_value(const Json& object, std::string_view key);

// Errors: kCorrupt, naming the key, if it is missing or has another type.
Result<std::int64_t> get_int(const Json& object, std::string_view key);
Result<double> get_number(const Json& object, std::string_view key);
Result<bool> get_bool(const Json& object, std::string_view key);
Result<std::string> get_string(const Json& object, std::string_view key);
Result<const Json*> get_object(const Json& object, std::string_view key);

}  // namespace tqcache::migrations
