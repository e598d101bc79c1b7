#pragma once
// tools/cli/codec_flags.h: flags that choose how K and V are quantized: --bits for most users,
// --config for every other setting, --profile for what a calibration of the model gives.

#include <optional>
#include <string>

#include "cli/console.h"
#include "cli/flags.h"
#include "tqcache/error.h"
#include "tqcache/quantize.h"

namespace tqcache::cli {

struct CodecFlags {
  std::optional<std::string> bits;           // "4", "4,3": keys and values; "2.4": of archives
  std::optional<std::string> configuration;  // tqcache/quantize.h
  std::string profile;                       // file of tqcache profile; convert: a folder, too

  bool given() const { return bits || configuration || !profile.empty(); }
};

// `group` is the heading in the help.
void add_bits_flag(FlagSet& app, CodecFlags& flags, const std::string& group);
void add_config_flag(FlagSet& app, CodecFlags& flags, const std::string& group);

// The three flags, for a cache that a verb makes and continues.
void add_codec_flags(FlagSet& app, CodecFlags& flags);

// The configuration that --config and --bits name; without both the default. A number of bits
// replaces that of the configuration. --profile is not read.
// Errors: kInvalidArgument, naming the flag.
Result<cache::Configuration> configuration_of(const CodecFlags& flags);

// Whether --bits or --config says how keys ('k') or values ('v') are to be quantized: v=dense says
// nothing of keys.
bool asks_for(const CodecFlags& flags, char tensor);

// Errors: kInvalidArgument (the options would quantize K or V that is quantized already).
Result<void> check_kept_codes(const cache::CacheDesc& cache, const cache::ConvertOptions& options);

// Puts the factors of keys in a profile into the options; of a folder those of the first profile,
// by name, that belongs to the model of the cache, and none, with a note, if there is none. Errors:
// kInvalidArgument (the options have a calibration), those of the profile's file.
Result<void> add_calibration(const Console& console, const std::string& profile,
                             const cache::CacheDesc& cache, cache::ConvertOptions& options);

// The options for a cache in memory, with the calibration of --profile; nullopt: no flag is given.
// Errors: kInvalidArgument (archives cannot be continued), those of the profile's file.
Result<std::optional<cache::ConvertOptions>> options_in_memory(const Console& console,
                                                               const CodecFlags& flags);

}  // namespace tqcache::cli
