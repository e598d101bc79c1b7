#include "tqcache/format/type_names.h"

#include <string>

namespace tqcache::format {

Error unknown_name(std::string_view what, std::string_view name) {
  constexpr std::size_t kShown = 64;
  std::string text = std::string(what) + " \"";
  for (const char c : name.substr(0, kShown)) text += c >= ' ' && c <= '~' ? c : '?';
  return {ErrorCode::kUnsupported, text + "\""};
}

}  // namespace tqcache::format
