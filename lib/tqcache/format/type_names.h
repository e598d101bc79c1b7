#pragma once
// format/type_names.h: the names by which a file says what a layer, a side or a codec is.
//
// A reader knows a name or refuses the file; a name never leads to code by any other way. What a
// name means is fixed for ever: a change gets the next ".v".
//
// Spec: docs/format.md §4.2 and §4.3.

#include <string_view>

namespace tqcache::format {

// Layers.
inline constexpr std::string_view kAttentionType = "tqcache.attention.v1";
inline constexpr std::string_view kArraysType = "tqcache.arrays.v1";

// Sides of attention layers.
inline constexpr std::string_view kDenseType = "tqcache.dense.v1";
inline constexpr std::string_view kTurboMseType = "tqcache.turbo_mse.v1";

// Parts of the turbo codec (docs/codec.md).
inline constexpr std::string_view kRotationName = "hartley_hadamard.v1";
inline constexpr std::string_view kScaleName = "unbiased.v1";
inline constexpr std::string_view kLayoutName = "lanes.v1";
inline constexpr std::string_view kCentringNone = "none";
inline constexpr std::string_view kCentringPostRope = "post_rope.v1";
inline constexpr std::string_view kCentringPreRope = "pre_rope.v1";

}  // namespace tqcache::format
