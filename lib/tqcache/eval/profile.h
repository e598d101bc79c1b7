#pragma once
// eval/profile.h: what a model needs of an archive: measured once, kept in a file.
//
// Not every layer suffers as much from the same error, nor keys as much as values. A profile says
// how much each does: the divergence of the model's predictions when that side alone is coded, all
// others being dense. Divergences add up, and go with the square of the step; bits go with its
// logarithm. So most is had of all bits when every side's step goes with one over the root of its
// sensitivity: these are the weights. And a curve says what divergence to expect of a step with
// these weights, so that a step can be chosen for a divergence.
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

// What a profile may hold at most; a file that is larger is refused unread.
inline constexpr std::uint64_t kMaxProfileBytes = 1 << 20;
inline constexpr std::size_t kMaxCurvePoints = 64;

// A step, and the mean divergence in nats of all sides coded with it, times their weights.
struct CurvePoint {
  double step = 0;
  double kld = 0;

  bool operator==(const CurvePoint&) const = default;
};

struct Profile {
  // Whose it is.
  std::string architecture;
  std::string model_name;  // for people
  Sha256 weights_fingerprint{};
  Sha256 tokenizer_fingerprint{};
  // What was read.
  std::int64_t window = 0;  // tokens
  std::int64_t n_windows = 0;
  std::int64_t n_sinks = 0;  // dense tokens at the start of each window
  // Mean divergence with one side coded alone, with `step`. [n_layers]
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
// Errors: kCorrupt (no profile, cut or changed, a field missing or out of range), kUnsupported (a
//         version that is not known), kTooLarge.
Result<Profile> parse_profile(ByteView file);

// Whether `profile` was measured on the model that made a cache of this identity and so many
// layers.
// Errors: kMismatch, naming both fingerprints or numbers, or saying that the cache is of unknown
//         origin.
Result<void> check_profile(const Profile& profile, const cache::Identity& identity,
                           std::int64_t n_layers);

// The step whose expected divergence is `kld`: between two points of the curve, logarithms go
// straight.
// Errors: kInvalidArgument when the curve does not reach there, saying from where to where it goes.
Result<double> step_for_divergence(const Profile& profile, double kld);

// The other way round: absent beyond the curve.
std::optional<double> divergence_of_step(const Profile& profile, double step);

// One over the root of each sensitivity, their geometric mean being 1, from kLeastWeight to
// kMostWeight, to three decimals.
//
// Shapes: [n_layers] each; what is 0 or less counts as the least one above 0.
cache::StepWeights weights_of(const std::vector<double>& key_sensitivity,
                              const std::vector<double>& value_sensitivity);

inline constexpr double kLeastWeight = 0.5;
inline constexpr double kMostWeight = 2.0;

}  // namespace tqcache::eval
