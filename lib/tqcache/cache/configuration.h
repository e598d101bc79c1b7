#pragma once
// cache/configuration.h: a way to keep a cache, as people write it on one line.
//
//   a preset            turbo4, k8v4, kfv4, ... (cache/presets.h), or f32: all stays dense
//   items, by commas    k=mse:4,v=mse:3,boundary=2:8,sink=4
//
//   k=MODE:BITS, v=...  mse:4, prod:3, mixed:3 (mixed:3:32:4 says outlier channels and their bits),
//                       affine:4 (affine:4:32 says the group), dense; trellis:0.25, the archive
//                       tier with that step, trellis:0.25:map with maps made for the vectors
//   k.weights=W:W:...   of trellis: for each layer of the model its step as a multiple of the
//   side's,
//                       .125 to 8, or 0: that layer stays dense. v.weights of values
//   boundary=N[:BITS]   so many layers at each end with so many bits of mode mse; 8 unless told
//   windows=WORD        sliding windows: keep (as they are), turbo, or turbo:center: with their
//                       keys centered, too (cache/plan.h, WindowForm)
//   sink=N              first tokens that stay dense
//   center=WORD         none, post-rope, pre-rope
//   rotation=WORD, rounds=N, seed=N, scale=WORD, residual=WORD (of mode prod), outliers=WORD (of
//   mode mixed)         as the flags of convert have them (cache/codec_words.h)
//
// A preset may be followed by items that change it: turbo4,sink=4,center=none. Without one the
// items change the default preset. k= and v= give a side anew, with its mode's usual ways; the
// other items change what is there then, whatever the order they stand in. Those from `sink` on are
// for both sides, as far as these can have them, or with k. or v. before the name for one:
// k.center=none.

#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/cache/plan.h"

namespace tqcache::cache {

// The name of the configuration that leaves everything dense.
inline constexpr std::string_view kDenseName = "f32";

// A value; what is not said is as convert has it by default.
struct Configuration {
  std::string name;  // as it was written
  ConvertOptions options = {};

  bool is_dense() const { return options.keys.dense && options.values.dense; }
};

// Errors: kInvalidArgument; the message names the item, and what could stand there. What depends on
//         the model, as a head_dim that a group does not divide, shows when it is put to use.
Result<Configuration> parse_configuration(std::string_view text);

// A list of them. A name begins a configuration, and the items behind it belong to it: turbo4,
// kfv4,sink=4 are two. Where one begins with an item, semicolons part them all:
// k=mse:4;k=mse:3,v=mse:3.
Result<std::vector<Configuration>> parse_configurations(std::string_view text);

// The shortest text that parse_configuration() makes the same of: what does not count is left out,
// such as the bits of a side that stays dense.
std::string configuration_text(const ConvertOptions& options);

}  // namespace tqcache::cache
