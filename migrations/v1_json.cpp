#include "migrations/v1_json.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "migrations/v1_file.h"

namespace tqcache::migrations {
namespace {

Error bad_key(std::string_view key, std::string_view what) {
  std::string message = "key \"";
  message.append(key).append("\": ").append(what);
  return {ErrorCode::kCorrupt, std::move(message)};
}

// Builds the tree from the events of the parser. Each call returns whether to continue.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Result<Json> take() && {
    if (error_) return *std::move(error_);
    return std::move(root_);
  }

  bool null() override { return add({}); }
  bool boolean(bool value) override {
    Json json;
    json.kind = Json::Kind::kBool;
    json.flag = value;
    return add(std::move(json));
  }
  bool number_integer(std::int64_t value) override { return add_integer(value); }
  bool number_unsigned(std::uint64_t value) override {
    constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    return value <= kMax ? add_integer(static_cast<std::int64_t>(value))
                         : number_float(static_cast<double>(value), {});
  }
  bool number_float(double value, const std::string&) override {
    Json json;
    json.kind = Json::Kind::kNumber;
    json.number = value;
    return add(std::move(json));
  }
  bool string(std::string& value) override {
    Json json;
    json.kind = Json::Kind::kText;
    json.text = std::move(value);
    return add(std::move(json));
  }
  bool binary(binary_t&) override { return refuse(ErrorCode::kCorrupt, "not JSON"); }

  bool start_object(std::size_t) override { return open(Json::Kind::kObject); }
  bool start_array(std::size_t) override { return open(Json::Kind::kArray); }
  bool end_object() override { return open_.pop_back(), true; }
  bool end_array() override { return open_.pop_back(), true; }

  bool key(std::string& value) override {
    std::vector<std::string>& keys = open_.back()->keys;
    if (std::ranges::find(keys, value) != keys.end()) {
      return refuse(ErrorCode::kCorrupt, "JSON: a duplicate key");
    }
    if (keys.size() == kMaxJsonKeys) return refuse(ErrorCode::kTooLarge, "JSON: too many keys");
    keys.push_back(std::move(value));
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return refuse(ErrorCode::kCorrupt, "not JSON");
  }

 private:
  bool refuse(ErrorCode code, std::string message) {
    error_ = Error{code, std::move(message)};
    return false;
  }

  // The place of the next value. Open values do not move, because nothing is appended after them.
  Json& place() {
    if (open_.empty()) return root_;
    return open_.back()->values.emplace_back();
  }
  bool add(Json json) {
    place() = std::move(json);
    return true;
  }
  bool add_integer(std::int64_t value) {
    Json json;
    json.kind = Json::Kind::kInteger;
    json.integer = value;
    return add(std::move(json));
  }
  bool open(Json::Kind kind) {
    if (open_.size() == kMaxJsonDepth) return refuse(ErrorCode::kTooLarge, "JSON: nested too deep");
    Json& json = place();
    json.kind = kind;
    open_.push_back(&json);
    return true;
  }

  Json root_;
  std::vector<Json*> open_;  // from the root inwards
  std::optional<Error> error_;
};

Result<const Json*> require(const Json& object, std::string_view key, Json::Kind kind,
                            std::string_view otherwise) {
  const Json* value = find_value(object, key);
  if (value == nullptr) return bad_key(key, "missing");
  if (value->kind != kind) return bad_key(key, otherwise);
  return value;
}

}  // namespace

Result<Json> parse_json(std::string_view text) {
  Builder builder;
  static_cast<void>(nlohmann::json::sax_parse(text, &builder));  // errors are in the builder
  return std::move(builder).take();
}

Result<Json> parse_object(std::string_view text) {
  TQC_TRY_ASSIGN(Json json, parse_json(text));
  if (json.kind != Json::Kind::kObject) return corrupt("not a JSON object");
  return json;
}

const Json* find_value(const Json& object, std::string_view key) {
  const auto found = std::ranges::find(object.keys, key);
  if (found == object.keys.end()) return nullptr;
  const Json& value = object.values[static_cast<std::size_t>(found - object.keys.begin())];
  return value.kind == Json::Kind::kNull ? nullptr : &value;
}

Result<std::int64_t> get_int(const Json& object, std::string_view key) {
  TQC_TRY_ASSIGN(const Json* value,
                 require(object, key, Json::Kind::kInteger, "not an integer of 64 bits"));
  return value->integer;
}

Result<double> get_number(const Json& object, std::string_view key) {
  const Json* value = find_value(object, key);
  if (value != nullptr && value->kind == Json::Kind::kInteger) {
    return static_cast<double>(value->integer);
  }
  TQC_TRY_ASSIGN(value, require(object, key, Json::Kind::kNumber, "not a number"));
  return value->number;
}

Result<bool> get_bool(const Json& object, std::string_view key) {
  TQC_TRY_ASSIGN(const Json* value, require(object, key, Json::Kind::kBool, "not true or false"));
  return value->flag;
}

Result<std::string> get_string(const Json& object, std::string_view key) {
  TQC_TRY_ASSIGN(const Json* value, require(object, key, Json::Kind::kText, "not a string"));
  return value->text;
}

Result<const Json*> get_object(const Json& object, std::string_view key) {
  return require(object, key, Json::Kind::kObject, "not an object");
}

}  // namespace tqcache::migrations
