#include "tqcache/model/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace tqcache::model {
namespace {

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }  // utf8proc hands out malloc's
};

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

}  // namespace

std::string_view normalizer_name(Normalizer normalizer) {
  return normalizer == Normalizer::kNfc ? "nfc" : "none";
}

Result<std::string> normalize(Normalizer normalizer, std::string_view text) {
  if (normalizer == Normalizer::kNone || is_ascii(text)) return std::string(text);
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &raw,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, FreeMemory> owner(raw);
  if (size < 0) {
    return Error{ErrorCode::kTooLarge, std::string("normalizer: ") + utf8proc_errmsg(size)};
  }
  return std::string(reinterpret_cast<const char*>(raw), static_cast<std::size_t>(size));
}

}  // namespace tqcache::model
