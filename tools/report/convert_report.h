#pragma once
// tools/report/convert_report.h: what `tqcache convert` says of its result, in words and as JSON.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/console.h"
#include "tqcache/error.h"
#include "tqcache/quantize.h"
#include "tqcache/reader.h"

namespace tqcache::cli {

struct ConvertReport {
  std::string output;   // "-" is standard output
  std::string from;     // "llama.cpp state file"
  std::string to;       // ".tqkv file"
  bool is_tqkv = true;  // the output
  bool is_cut = false;  // only the first tokens were converted
  std::int64_t n_tokens = 0;
  std::uint64_t bytes_before = 0;
  std::uint64_t bytes_after = 0;  // 0: a device
  std::uint64_t n_values = 0;     // keys and values of these tokens
  // Of an archive: its configuration, with the step, and the digest of the profile that predicts
  // it.
  std::optional<std::string> archive = {};
  std::optional<std::string> profile = {};
  std::optional<double> expected_kld = {};
  cache::ConvertOptions options = {};  // with the losses that were measured
  std::vector<std::string> notes = {};
  std::vector<std::string> dropped = {};
};

// Warns of keys and values that quantize badly, says what the user may not know, and prints the
// JSON. `source`: the cache that was converted.
Result<void> report_conversion(const Console& console, const cache::CacheDesc& source,
                               const ConvertReport& report);

}  // namespace tqcache::cli
