#pragma once
// tensors/printable_name.h: names from a foreign file, made fit for an error message.

#include <string>
#include <string_view>

namespace tqcache::tensors {

// `name` in double quotes, cut after 64 bytes. Everything but printable ASCII becomes '?': a name
// is chosen by whoever made the file, and must not move the cursor of the terminal it lands on.
std::string printable_name(std::string_view name);

}  // namespace tqcache::tensors
