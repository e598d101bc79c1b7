#pragma once
// tests/fuzz/store_calls.h: calls of a store backend whose server says anything.

#include <cstdint>
#include <string_view>

#include "tqcache/bytes.h"
#include "tqcache/store.h"

namespace tqcache::fuzz {

// No value is larger.
inline constexpr std::uint64_t kMostValueBytes = 2048;

// Limits so small that inputs reach them. Nothing waits for them: no server keeps silent.
store::BackendOptions small_limits();

// A password that a store may be opened with.
inline constexpr std::string_view kSecret = "S3cr3tOfTheUser";

// An error has a message in printable ASCII, without the password that was given, if any.
void check_error(const Error& error, std::string_view password = kSecret);

// One call of the backend, chosen by a number, and what holds for its result: values are within the
// limit, each key of a get() is answered once, and listed keys are keys with the prefix.
void call(store::Backend& backend, unsigned choice, std::string_view password = kSecret);

}  // namespace tqcache::fuzz
