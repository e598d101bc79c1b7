#pragma once
// golden/golden_cases.h: the caches that golden files are made from.
//
// Their values come from integers alone, so that they are the same on every machine and with every
// C library. A case is never changed once its file is there: a new one is added instead.

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/cache.h"
#include "tqcache/format/manifest.h"

namespace tqcache::test {

struct GoldenCase {
  std::string name;  // of the file, without its ending
  format::Compression compression = format::Compression::kNone;
  std::function<cache::Cache()> make;
  // Of a file that was appended to: how many tokens it held before, state after state.
  std::vector<std::int64_t> earlier = {};
};

std::vector<GoldenCase> golden_cases();

// Those that there is an encrypted file of, too.
inline constexpr std::array<std::string_view, 6> kEncryptedCases = {
    "appended", "archive", "dense", "hidden_tokens", "planes", "turbo_rotating"};

}  // namespace tqcache::test
