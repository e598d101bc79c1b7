#pragma once
// codec/codec_spec.h: the parameters that decide what packed codes mean.
//
// They travel in the file, so a reader never guesses: two equal specs give equal bytes.
//
// Spec: docs/codec.md §1.

#include <cstdint>

#include "tqcache/base/result.h"

namespace tqcache::codec {

inline constexpr int kMinHeadDim = 32;
inline constexpr int kMaxHeadDim = 512;
inline constexpr int kMinBits = 1;
inline constexpr int kMaxBits = 8;

// The sign seed of files that ask for no other. Any value would do; this one is the first 16
// hexadecimal digits of SHA-256("tqcache").
inline constexpr std::uint64_t kDefaultSignSeed = 0xc37e5e14f940a46f;

struct CodecSpec {
  int head_dim = 0;                            // components of a head vector
  int bits = 0;                                // bits of a code
  std::uint64_t sign_seed = kDefaultSignSeed;  // seed of the signs of the rotation

  bool operator==(const CodecSpec&) const = default;
};

// Errors: kUnsupported when head_dim or bits is out of range.
Result<void> validate(const CodecSpec& spec);

}  // namespace tqcache::codec
