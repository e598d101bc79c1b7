#pragma once
// store/backends/engine_text.h: text of an engine, or of a URL, made fit for an error message.
//
// Only for the sources of store.

#include <string>
#include <string_view>

namespace tqcache::store {

// Cut after 200 bytes; everything but printable ASCII becomes '?'. An engine's words are no more to
// be trusted than a file's.
std::string printable(std::string_view text);

// The same, in double quotes.
std::string in_quotes(std::string_view text);

}  // namespace tqcache::store
