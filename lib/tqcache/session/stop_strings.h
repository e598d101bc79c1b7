#pragma once
// session/stop_strings.h: Texts before which generation stops, wherever token borders fall.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tqcache::session {

// Passes a text on, piece by piece, up to the first stop string. A piece that may begin a stop
// string is held back until that is known.
class StopFilter {
 public:
  // Requires: no stop string is empty.
  explicit StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // The text that may be shown now.
  std::string add(std::string_view text);

  // The rest of the text: what was held back.
  std::string end();

  // Whether a stop string was found; nothing is passed on from then on.
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace tqcache::session
