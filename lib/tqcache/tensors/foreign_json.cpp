#include "tqcache/tensors/foreign_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tqcache::tensors {
namespace {

// Builds the value from the events of the parser, and stops the parser at a limit. The time is that
// of the text's length: nlohmann's own parser with a callback goes through the whole of a list at
// the end of each object in it, and its ordered objects search all of their keys for each new one.
template <typename Json>
class JsonBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit JsonBuilder(const JsonLimits& limits) : limits_(limits) {}

  Result<Json> take() && {
    if (error_) return *std::move(error_);
    return std::move(root_);
  }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(typename Json::number_integer_t value) override { return add(value); }
  bool number_unsigned(typename Json::number_unsigned_t value) override { return add(value); }
  bool number_float(typename Json::number_float_t value, const typename Json::string_t&) override {
    return add(value);
  }
  bool string(typename Json::string_t& value) override { return add(std::move(value)); }
  bool binary(typename Json::binary_t&) override { return fail(corrupt("not valid JSON")); }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return fail(corrupt("not valid JSON"));
  }

  bool key(typename Json::string_t& name) override {
    auto& object = open_.back()->template get_ref<typename Json::object_t&>();
    if (object.size() == limits_.max_keys) {
      return fail(too_large(fmt::format("JSON object of more than {} keys", limits_.max_keys)));
    }
    bool is_new = true;
    if constexpr (std::is_same_v<Json, nlohmann::ordered_json>) {
      is_new = keys_.back().insert(name).second;
      if (is_new) next_ = &object.emplace_back(std::move(name), nullptr).second;
    } else {
      const auto [place, inserted] = object.emplace(std::move(name), nullptr);
      is_new = inserted || limits_.takes_repeated_keys;
      next_ = &place->second;
    }
    return is_new || fail(corrupt("JSON with a key given twice"));
  }

 private:
  bool fail(Error error) {
    error_ = std::move(error);
    return false;
  }

  // The place of the next value. Open values do not move: nothing is added behind them.
  Json& place() {
    if (open_.empty()) return root_;
    if (open_.back()->is_object()) return *next_;
    auto& list = open_.back()->template get_ref<typename Json::array_t&>();
    return list.emplace_back(nullptr);
  }

  bool add(Json value) {
    if (++n_values_ > limits_.max_values) {
      return fail(too_large(fmt::format("JSON of more than {} values", limits_.max_values)));
    }
    Json& here = place();
    here = std::move(value);
    if (here.is_structured()) {
      open_.push_back(&here);
      keys_.emplace_back();
    }
    return true;
  }

  bool open(Json value) {
    if (open_.size() < static_cast<std::size_t>(limits_.max_depth)) return add(std::move(value));
    return fail(too_large(fmt::format("JSON nested more than {} deep", limits_.max_depth)));
  }

  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  const JsonLimits& limits_;
  Json root_;
  std::size_t n_values_ = 0;
  std::vector<Json*> open_;  // from the root inwards
  Json* next_ = nullptr;     // behind the last key
  // Of each value in open_, where the objects of Json keep the order of their keys and have no
  // index.
  std::vector<std::set<std::string>> keys_;
  std::optional<Error> error_;
};

template <typename Json>
Result<Json> parse(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return too_large(
        fmt::format("{} bytes of JSON, at most {} are read", text.size(), limits.max_bytes));
  }
  // The parser treats a NUL as the end of its input.
  if (text.find('\0') != std::string_view::npos)
    return corrupt("not valid JSON: it contains a NUL");
  JsonBuilder<Json> builder(limits);
  static_cast<void>(Json::sax_parse(text.begin(), text.end(), &builder));  // it keeps the error
  return std::move(builder).take();
}

}  // namespace

Result<nlohmann::json> parse_json(std::string_view text, const JsonLimits& limits) {
  return parse<nlohmann::json>(text, limits);
}

Result<nlohmann::ordered_json> parse_ordered_json(std::string_view text, const JsonLimits& limits) {
  return parse<nlohmann::ordered_json>(text, limits);
}

bool is_plain_text(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= 0x20 && c <= 0x7e; });
}

}  // namespace tqcache::tensors
