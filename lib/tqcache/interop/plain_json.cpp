#include "tqcache/interop/plain_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tqcache::interop {
namespace {

// Sees every event of the parser, and remembers what it does not say of itself.
class Watch {
 public:
  explicit Watch(int max_depth) : max_depth_(max_depth) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, const nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    const bool opens = event == Event::object_start || event == Event::array_start;
    if (opens && depth >= max_depth_) is_too_deep = true;
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key && !keys_.back().insert(value.get<std::string>()).second) {
      has_key_twice = true;
    }
    return true;
  }

  bool is_too_deep = false;
  bool has_key_twice = false;

 private:
  int max_depth_;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

}  // namespace

Result<nlohmann::json> parse_plain_json(std::string_view text, std::size_t max_bytes,
                                        int max_depth) {
  if (text.size() > max_bytes) {
    return too_large(fmt::format("{} bytes of JSON", text.size()));
  }
  // The parser takes a NUL for the end of its input.
  if (text.find('\0') != std::string_view::npos) return corrupt("holds a NUL");
  Watch watch(max_depth);
  nlohmann::json value = nlohmann::json::parse(text.begin(), text.end(), std::ref(watch), false);
  if (value.is_discarded()) return corrupt("not valid JSON");
  if (watch.is_too_deep) return corrupt("JSON nested too deep");
  if (watch.has_key_twice) return corrupt("JSON with a key given twice");
  return value;
}

bool is_plain_text(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= 0x20 && c <= 0x7e; });
}

}  // namespace tqcache::interop
