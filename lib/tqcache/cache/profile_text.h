#pragma once
// cache/profile_text.h: profiles of models as text (docs/reference/profile.md): their first line,
// and the fields that codecs in memory use. eval::parse_profile() reads the rest.

#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/json.h"
#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/hash.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {

// A larger file is refused without reading it: 256 layers of 128 kv heads of 128 fit.
inline constexpr std::uint64_t kMaxProfileTextBytes = 16 << 20;

// Version 1 has what archives use, and may have factors of keys, which older programs ignore.
// Version 3 has nothing but factors.
struct ProfileText {
  int version = 0;  // 1 or 3
  Json body;        // an object
};

// Safe for untrusted input.
// Errors: kCorrupt (not a profile, truncated or changed), kUnsupported (another version),
// kTooLarge.
Result<ProfileText> parse_profile_text(ByteView file);

// The bytes of a file. Equal bodies give equal bytes.
Bytes profile_text(int version, const Json& body);

// Fingerprints and factors. Errors: kCorrupt, with the key.
Result<Calibration> calibration_of(const ProfileText& profile);

Json factors_json(const std::vector<std::vector<std::int8_t>>& key_factors);

}  // namespace tqcache::cache
