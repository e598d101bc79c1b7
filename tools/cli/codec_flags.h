#pragma once
// tools/cli/codec_flags.h: Flags that choose how K and V are quantized.
//
// A preset gives a plan for keys and one for values. Flags change it: --mode both of them,
// --key-mode and --value-mode one, and so on. Flags that contradict each other are refused by name
// before any file is opened. --config says everything in one word, --quality names a goal; neither
// goes with the other flags.

#include <cstdint>
#include <optional>
#include <string>

#include "cli/flags.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/codec_words.h"
#include "tqcache/cache/plan.h"
#include "tqcache/cache/presets.h"
#include "tqcache/cache/quantize.h"

namespace tqcache::cli {

// What was given for one side, or for both. Absent: as the preset has it.
struct SideFlags {
  std::optional<int> bits;  // 16: dense; absent too when the number given is not a whole one
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
  std::optional<std::string> outlier_policy;
  std::optional<int> group_size;
  std::optional<std::int64_t> sink_tokens;
  std::optional<std::string> center;
};

struct CodecFlags {
  std::optional<std::string> configuration;  // cache/configuration.h; in the place of all others
  std::optional<std::string> quality;        // cache/presets.h; likewise
  std::string preset{cache::kDefaultPreset};
  std::string boundary_layers;  // "N" or "N:BITS"; empty: none
  std::string windows{cache::word_of(cache::kWindowWords, cache::WindowForm::kAsTheyAre)};
  SideFlags both;
  SideFlags keys;
  SideFlags values;
};

void add_codec_flags(FlagSet& app, CodecFlags& flags);

// Errors: kInvalidArgument, naming the flags that do not go together.
Result<cache::ConvertOptions> convert_options(const CodecFlags& flags);

struct FormFlags {
  std::optional<int> bits;
  std::optional<std::string> configuration;

  bool given() const { return bits || configuration; }
};

void add_form_flags(FlagSet& app, FormFlags& flags);

// As convert takes them; nullopt when none is given.
// Errors: kInvalidArgument, naming the flag.
Result<std::optional<cache::ConvertOptions>> form_of(const FormFlags& flags);

}  // namespace tqcache::cli
