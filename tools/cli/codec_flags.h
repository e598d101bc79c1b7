#pragma once
// tools/cli/codec_flags.h: flags that choose how K and V are quantized.
//
// A preset gives a plan for K and one for V. Flags change it: --mode both of them, --key-mode and
// --value-mode one, and so on. Contradicting flags are rejected by name before any file is opened.
// --config gives all settings as one text, --quality names a goal; neither can be combined with the
// other flags.

#include <cstdint>
#include <optional>
#include <string>

#include "cli/flags.h"
#include "tqcache/cache/codec_words.h"
#include "tqcache/error.h"
#include "tqcache/quantize.h"

namespace tqcache::cli {

// Flags for K, for V, or for both. Absent: as in the preset.
struct SideFlags {
  std::optional<int> bits;           // 16: dense; also absent if the number is not whole
  std::optional<double> exact_bits;  // as given
  std::optional<std::string> mode;
  std::optional<std::string> scale;
  std::optional<std::string> rotation;
  std::optional<int> rounds;
  std::optional<std::uint64_t> seed;
  std::optional<std::string> residual;
  std::optional<int> outlier_channels;
  std::optional<int> outlier_high_bits;
  std::optional<int> regular_bits;
  std::optional<int> group_size;
  std::optional<std::int64_t> sink_tokens;
  std::optional<std::string> center;
};

struct CodecFlags {
  std::optional<std::string> configuration;  // tqcache/quantize.h; replaces all others
  std::optional<std::string> quality;        // tqcache/quantize.h; likewise
  std::optional<std::string> preset;         // the other flags change its settings; if absent those
                                             // of quality("balanced")
  std::string boundary_layers;               // "N" or "N:BITS"; empty: no boundary layers
  std::string windows{cache::word_of(cache::kWindowWords, cache::WindowForm::kAsTheyAre)};
  std::string fit{cache::word_of(cache::kFitWords, cache::Fit::kFirstBlock)};
  SideFlags both;
  SideFlags keys;
  SideFlags values;
};

void add_codec_flags(FlagSet& app, CodecFlags& flags);

// Errors: kInvalidArgument, naming the flags that exclude each other.
Result<cache::ConvertOptions> convert_options(const CodecFlags& flags);

struct FormFlags {
  std::optional<int> bits;
  std::optional<std::string> configuration;
  std::string profile;  // file with factors of keys

  bool given() const { return bits || configuration || !profile.empty(); }
};

void add_form_flags(FlagSet& app, FormFlags& flags);

// The options of convert(); nullopt if no flag is given.
// Errors: kInvalidArgument, naming the flag.
Result<std::optional<cache::ConvertOptions>> form_of(const FormFlags& flags);

}  // namespace tqcache::cli
