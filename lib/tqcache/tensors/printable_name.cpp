#include "tqcache/tensors/printable_name.h"

namespace tqcache::tensors {
namespace {

constexpr std::size_t kMaxPrintedBytes = 64;  // every tensor name that ggml takes fits whole

bool is_plain(char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; }

}  // namespace

std::string printable_name(std::string_view name) {
  std::string out = "\"";
  for (const char c : name.substr(0, kMaxPrintedBytes)) out += is_plain(c) ? c : '?';
  if (name.size() > kMaxPrintedBytes) out += "...";
  return out + '"';
}

}  // namespace tqcache::tensors
