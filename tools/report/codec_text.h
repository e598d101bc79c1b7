#pragma once
// tools/report/codec_text.h: a side's codec in a few words.

#include <string>

#include "tqcache/format/manifest.h"

namespace tqcache::cli {

// "turbo 4 bits", "mixed 3 bits for 32 channels, 2 for 96, dense rotation", and what surrounds it:
// ", centering pre_rope.v1, 4 sink tokens".
std::string codec_text(const cache::QuantSpec& quant);

// Bits of the codes of a head vector, over its channels: 4, 3.25. Requires: as above.
double code_bits(const cache::QuantSpec& quant);

}  // namespace tqcache::cli
