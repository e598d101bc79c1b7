#include "tqcache/store/backends/engine_text.h"

namespace tqcache::store {

std::string printable(std::string_view text) {
  constexpr std::size_t kMaxPrintedBytes = 200;  // a key is shown whole
  std::string out;
  for (const char c : text.substr(0, kMaxPrintedBytes)) out += c >= ' ' && c <= '~' ? c : '?';
  if (text.size() > kMaxPrintedBytes) out += "...";
  return out;
}

std::string in_quotes(std::string_view text) { return '"' + printable(text) + '"'; }

}  // namespace tqcache::store
