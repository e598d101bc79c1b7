#pragma once
// predict/rate.h: the bits and the divergence to expect of a step, from a profile alone.
//
// Spec: docs/reference/profile.md, "Bits and divergence of a step".

#include "tqcache/error.h"
#include "tqcache/predict.h"

namespace tqcache::predict {

inline constexpr float kMinStep = 0x1p-20f;
inline constexpr float kMaxStep = 0x1p20f;

// Bits per value of coded residuals, on text like that of the calibration; falls with the step.
double rate_of_step(const Profile& profile, double step);

// Its inverse, from kMinStep to kMaxStep. Requires: rate > 0.
double step_of_rate(const Profile& profile, double rate);

// Mean KL divergence in nats; grows with the step.
double expected_divergence(const Profile& profile, double step);

// Its inverse.
// Errors: kInvalidArgument (a divergence that no step between kMinStep and kMaxStep has, or that
//         lies far outside the profile's curve).
Result<double> step_of_divergence(const Profile& profile, double divergence);

}  // namespace tqcache::predict
