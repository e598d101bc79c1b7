#pragma once
// format/type_names.h: the names of layers, of K and V, and of codecs in a file.
//
// A reader knows a name or rejects the file; names are only looked up in tables. The meaning of a
// name never changes: a change gets the next ".v".
//
// Spec: docs/reference/format.md §4.2 to §4.4.

#include <array>
#include <cstddef>
#include <string_view>

#include "tqcache/description.h"
#include "tqcache/error.h"

namespace tqcache::format {

// Layers.
inline constexpr std::string_view kAttentionType = "tqcache.attention.v1";
inline constexpr std::string_view kArraysType = "tqcache.arrays.v1";
inline constexpr std::string_view kOpaqueType = "tqcache.opaque.v1";      // in checkpoints alone
inline constexpr std::string_view kRotatingType = "tqcache.rotating.v1";  // dense, as arrays
inline constexpr std::string_view kTurboRotatingType = "tqcache.rotating.v2";  // in token blocks

// The same three with values of another size than the keys. Readers that do not know the names
// refuse such layers, so none takes the values for others.
inline constexpr std::string_view kUnequalAttentionType = "tqcache.attention.v2";
inline constexpr std::string_view kUnequalRotatingType = "tqcache.rotating.v3";
inline constexpr std::string_view kUnequalTurboRotatingType = "tqcache.rotating.v4";

// K and V of attention layers and of windows in token blocks: dense, or quantized in some mode.
inline constexpr std::string_view kDenseType = "tqcache.dense.v1";

// The bit layout of packed codes.
inline constexpr std::string_view kLayoutName = "lanes.v1";

template <class Kind>
struct KindName {
  Kind kind;
  std::string_view name;
};

inline constexpr std::array<KindName<codec::Mode>, 5> kTurboTypes = {{
    {codec::Mode::kMse, "tqcache.turbo_mse.v1"},
    {codec::Mode::kProd, "tqcache.turbo_prod.v1"},
    {codec::Mode::kMixed, "tqcache.turbo_mixed.v1"},
    {codec::Mode::kAffine, "tqcache.affine.v1"},
    {codec::Mode::kTrellis, "tqcache.trellis.v1"},
}};

inline constexpr std::array<KindName<codec::TransformKind>, 5> kTransformNames = {{
    {codec::TransformKind::kHadamard, "hartley_hadamard.v1"},
    {codec::TransformKind::kDenseQr, "dense_qr.v1"},
    {codec::TransformKind::kGaussian, "gaussian.v1"},
    {codec::TransformKind::kNone, "none.v1"},
    {codec::TransformKind::kMatrix, "matrix.v1"},
}};

inline constexpr std::array<KindName<codec::ScaleRule>, 5> kScaleNames = {{
    {codec::ScaleRule::kUnbiased, "unbiased.v1"},
    {codec::ScaleRule::kNorm, "norm.v1"},
    {codec::ScaleRule::kRaw, "raw.v1"},
    {codec::ScaleRule::kPeak, "peak.v1"},
    {codec::ScaleRule::kStep, "step.v1"},
}};

inline constexpr std::array<KindName<cache::Centering>, 3> kCenteringNames = {{
    {cache::Centering::kNone, "none"},
    {cache::Centering::kPostRope, "post_rope.v1"},
    {cache::Centering::kPreRope, "pre_rope.v1"},
}};

// The same with factors of keys, which older readers would not apply.
inline constexpr std::array<KindName<cache::Centering>, 2> kFactorCenteringNames = {{
    {cache::Centering::kPostRope, "post_rope.v2"},
    {cache::Centering::kPreRope, "pre_rope.v2"},
}};

// The name of the centering of a codec, with or without factors.
std::string_view centering_name(const cache::QuantSpec& quant);

bool is_centering_with_factors(std::string_view name);

// Errors: kUnsupported, as unknown_name().
Result<cache::Centering> centering_of(std::string_view name);

// Requires: the kind is in the table.
template <class Kind, std::size_t n>
constexpr std::string_view name_of(const std::array<KindName<Kind>, n>& table, Kind kind) {
  for (const KindName<Kind>& each : table) {
    if (each.kind == kind) return each.name;
  }
  return {};
}

// The name of the storage format of K or V, or of a layer.
std::string_view type_name(const cache::TensorDesc& tensor);
std::string_view type_name(const cache::LayerDesc& layer);

// The error for a name that this reader does not know. The message shows it in printable ASCII
// only, so that a file cannot control a terminal: `rotation "x"`.
Error unknown_name(std::string_view what, std::string_view name);

// Errors: kUnsupported, as unknown_name().
template <class Kind, std::size_t n>
Result<Kind> kind_of(const std::array<KindName<Kind>, n>& table, std::string_view what,
                     std::string_view name) {
  for (const KindName<Kind>& each : table) {
    if (each.name == name) return each.kind;
  }
  return unknown_name(what, name);
}

}  // namespace tqcache::format
