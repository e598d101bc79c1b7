#include <algorithm>
#include <utility>

#include "tqcache/session.h"

namespace tqcache::session {
namespace {

// The length of the longest proper prefix of `stop` that is a suffix of `text`.
std::size_t begun(std::string_view text, std::string_view stop) {
  std::size_t n = std::min(text.size(), stop.size() - 1);
  while (n > 0 && !text.ends_with(stop.substr(0, n))) --n;
  return n;
}

}  // namespace

std::string StopFilter::add(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  std::size_t end = std::string::npos;  // of the stop string that begins first
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

}  // namespace tqcache::session
