#pragma once
// eval/profile.h: a model's profile: the sensitivity of its layers to quantization, measured once
// and kept in a file.
//
// The same error hurts some layers more than others, and keys more or less than values. The
// sensitivity of a tensor (K or V of a layer) is the divergence of the model's predictions when
// only that tensor is quantized. Divergences add up and grow with the square of the quantization
// step; bits shrink with its logarithm. The best use of a number of bits therefore makes each
// tensor's step proportional to 1 / sqrt(sensitivity): these are the weights. A curve maps steps to
// expected divergences with these weights, so that a step can be chosen for a divergence.
//
// Spec: docs/reference/profile.md.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tqcache/base/bytes.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/plan.h"

namespace tqcache::eval {

// Limits. A larger file is rejected unread.
inline constexpr std::uint64_t kMaxProfileBytes = 1 << 20;
inline constexpr std::size_t kMaxCurvePoints = 64;

// A quantization step, and the mean divergence in nats with all tensors quantized with it times
// their weights.
struct CurvePoint {
  double step = 0;
  double kld = 0;

  bool operator==(const CurvePoint&) const = default;
};

struct Profile {
  // The model.
  std::string architecture;
  std::string model_name;  // for people
  Sha256 weights_fingerprint{};
  Sha256 tokenizer_fingerprint{};
  // The sample.
  std::int64_t window = 0;  // tokens
  std::int64_t n_windows = 0;
  std::int64_t n_sinks = 0;  // dense tokens at the start of each window
  // Mean divergence with only that tensor quantized, with `step`. [n_layers]
  double step = 0;
  std::vector<double> key_sensitivity;
  std::vector<double> value_sensitivity;
  cache::StepWeights weights;     // [n_layers] each
  std::vector<CurvePoint> curve;  // two or more, ascending in both

  std::int64_t n_layers() const { return static_cast<std::int64_t>(weights.keys.size()); }
  bool operator==(const Profile&) const = default;
};

// The bytes of a file. The same profile has the same bytes.
Bytes profile_bytes(const Profile& profile);

// Safe for untrusted input.
// Errors: kCorrupt (not a profile, truncated or changed, a field missing or out of range),
//         kUnsupported (an unknown version), kTooLarge.
Result<Profile> parse_profile(ByteView file);

// Checks that `profile` was measured on the model of a cache with this identity and number of
// layers. Errors: kMismatch, naming both fingerprints or numbers, or if the cache does not name its
// model.
Result<void> check_profile(const Profile& profile, const cache::Identity& identity,
                           std::int64_t n_layers);

// The step whose expected divergence is `kld`: between two points of the curve, logarithms go
// straight.
// Errors: kInvalidArgument when the curve does not reach there, saying from where to where it goes.
Result<double> step_for_divergence(const Profile& profile, double kld);

// The inverse: the divergence of a step; nullopt outside the curve.
std::optional<double> divergence_of_step(const Profile& profile, double step);

// 1 / sqrt(sensitivity), scaled to a geometric mean of 1, clamped to kLeastWeight..kMostWeight and
// rounded to three decimals.
//
// Shapes: [n_layers] each; a sensitivity of 0 or less counts as the least one above 0.
cache::StepWeights weights_of(const std::vector<double>& key_sensitivity,
                              const std::vector<double>& value_sensitivity);

inline constexpr double kLeastWeight = 0.5;
inline constexpr double kMostWeight = 2.0;

}  // namespace tqcache::eval
