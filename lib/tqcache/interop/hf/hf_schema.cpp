#include "tqcache/interop/hf/hf_schema.h"

#include <charconv>

namespace tqcache::interop {
namespace {

// Digits without a sign or a leading zero.
std::optional<std::size_t> number_of(std::string_view digits) {
  if (digits.empty() || digits.size() > 4) return std::nullopt;
  if (digits.front() == '0' && digits.size() > 1) return std::nullopt;
  std::size_t number = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (failure != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

}  // namespace

std::optional<HfState> hf_state_of(std::string_view name) {
  const bool is_recurrent = name.starts_with(kHfRecurrentStates);
  if (!is_recurrent && !name.starts_with(kHfConvStates)) return std::nullopt;
  name.remove_prefix(is_recurrent ? kHfRecurrentStates.size() : kHfConvStates.size());
  const auto number = number_of(name);
  if (!number) return std::nullopt;
  return HfState{is_recurrent, *number};
}

}  // namespace tqcache::interop
