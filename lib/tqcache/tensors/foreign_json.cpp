#include "tqcache/tensors/foreign_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tqcache::tensors {
namespace {

// Receives every event of the parser, and checks what the parser does not. It cannot stop the
// parser, but it drops the values beyond the limits.
class Watch {
 public:
  explicit Watch(const JsonLimits& limits) : limits_(limits) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, const nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (is_too_deep || n_values > limits_.max_values) return false;
    const bool opens = event == Event::object_start || event == Event::array_start;
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key && !keys_.back().insert(value.get<std::string>()).second) {
      has_key_twice = true;
    }
    if (opens && depth >= limits_.max_depth) is_too_deep = true;
    if (opens || event == Event::value) ++n_values;
    return !is_too_deep && n_values <= limits_.max_values;
  }

  bool is_too_deep = false;
  bool has_key_twice = false;
  std::size_t n_values = 0;

 private:
  const JsonLimits& limits_;
  std::vector<std::set<std::string>> keys_;  // of the objects that are still open
};

}  // namespace

Result<nlohmann::json> parse_json(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return too_large(
        fmt::format("{} bytes of JSON, at most {} are read", text.size(), limits.max_bytes));
  }
  // The parser treats a NUL as the end of its input.
  if (text.find('\0') != std::string_view::npos)
    return corrupt("not valid JSON: it contains a NUL");
  Watch watch(limits);
  nlohmann::json value = nlohmann::json::parse(text.begin(), text.end(), std::ref(watch), false);
  if (watch.is_too_deep) {
    return too_large(fmt::format("JSON nested more than {} deep", limits.max_depth));
  }
  if (watch.n_values > limits.max_values) {
    return too_large(fmt::format("JSON of more than {} values", limits.max_values));
  }
  if (value.is_discarded()) return corrupt("not valid JSON");
  if (watch.has_key_twice) return corrupt("JSON with a key given twice");
  return value;
}

bool is_plain_text(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= 0x20 && c <= 0x7e; });
}

}  // namespace tqcache::tensors
