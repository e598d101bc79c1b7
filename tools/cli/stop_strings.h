#pragma once
// tools/cli/stop_strings.h: texts at which generation ends, wherever token borders fall.

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tqcache::cli {

CLI::Option* add_stop_flag(CLI::App& app, std::vector<std::string>& stops);

// Lets a text through piece by piece, up to the first stop string. What may be the beginning of one
// is held back until it is known.
class StopFilter {
 public:
  // Requires: no stop string is empty.
  explicit StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // The text that may be shown now.
  std::string add(std::string_view text);

  // The end of the text: what was held back.
  std::string end();

  // Whether a stop string has come; nothing is let through from then on.
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace tqcache::cli
