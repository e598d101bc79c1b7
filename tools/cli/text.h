#pragma once
// tools/cli/text.h: numbers as people read them.

#include <cstdint>
#include <string>
#include <string_view>

namespace tqcache::cli {

// "1,234,567"
std::string grouped(std::uint64_t number);

// "1.2 MiB"; bytes below 1 KiB as they are.
std::string human_bytes(std::uint64_t bytes);

// The number of single-character changes that turn one word into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace tqcache::cli
