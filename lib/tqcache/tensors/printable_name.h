#pragma once
// tensors/printable_name.h: names from a foreign file, escaped for error messages.

#include <cstddef>
#include <string>
#include <string_view>

namespace tqcache::tensors {

// `name` in double quotes, cut after 64 bytes (every tensor name that ggml accepts fits
// completely). All bytes except printable ASCII become '?': the author of the file chooses the
// name, and it must not move the cursor of the terminal that prints it.
inline std::string printable_name(std::string_view name) {
  constexpr std::size_t kMaxPrintedBytes = 64;
  std::string out = "\"";
  for (const char c : name.substr(0, kMaxPrintedBytes)) {
    const bool is_plain = c >= ' ' && c <= '~' && c != '"' && c != '\\';
    out += is_plain ? c : '?';
  }
  if (name.size() > kMaxPrintedBytes) out += "...";
  return out + '"';
}

}  // namespace tqcache::tensors
