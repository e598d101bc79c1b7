#include "cli/stop_strings.h"

#include <algorithm>
#include <utility>

namespace tqcache::cli {
namespace {

// The longest end of `text` that `stop` begins with, and is longer than.
std::size_t begun(std::string_view text, std::string_view stop) {
  std::size_t n = std::min(text.size(), stop.size() - 1);
  while (n > 0 && !text.ends_with(stop.substr(0, n))) --n;
  return n;
}

}  // namespace

CLI::Option* add_stop_flag(CLI::App& app, std::vector<std::string>& stops) {
  return app.add_option("--stop", stops, "End before this text; may be given several times")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->check(CLI::Validator(
          [](std::string& word) { return word.empty() ? std::string("the text is empty") : ""; },
          ""));
}

std::string StopFilter::add(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  std::size_t end = std::string::npos;  // of all stop strings, the one that begins first
  std::size_t keep = 0;
  for (const std::string& stop : stops_) {
    end = std::min(end, held_.find(stop));
    keep = std::max(keep, begun(held_, stop));
  }
  stopped_ = end != std::string::npos;
  std::string shown = held_.substr(0, stopped_ ? end : held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopFilter::end() {
  if (stopped_) return {};
  return std::exchange(held_, {});
}

}  // namespace tqcache::cli
