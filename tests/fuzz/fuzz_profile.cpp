// Any bytes as a profile of a model, and as what stands behind the first line of one. What is taken
// is within its limits, and is written as what reads the same.

#include <string>

#include "fuzz/fuzz.h"
#include "tqcache/eval.h"

namespace tqcache {
namespace {

using fuzz::require;

void check(const eval::Profile& profile) {
  const auto n = static_cast<std::size_t>(profile.n_layers());
  require(n >= 1 && profile.weights.values.size() == n && profile.key_sensitivity.size() == n &&
              profile.value_sensitivity.size() == n,
          "every layer has its numbers");
  for (const double kld : {profile.curve.front().kld, profile.curve.back().kld}) {
    const auto step = eval::step_for_divergence(profile, kld);
    require(step && *step >= codec::kMinStep * 0.999 && *step <= codec::kMaxStep * 1.001,
            "the curve has a step for its ends");
  }
  const auto again = eval::parse_profile(eval::profile_bytes(profile));
  require(again.ok(), "what is written is read");
  require(eval::profile_bytes(*again) == eval::profile_bytes(profile), "... as the same");
}

void read(ByteView file) {
  const auto profile = eval::parse_profile(file);
  if (profile) return check(*profile);
  require(!profile.error().message.empty(), "an error has a message");
}

// With the SHA-256 that changes would have to guess.
std::string sealed(ByteView body) {
  return "tqcache-profile 1 " + to_hex(sha256(body)) + "\n" +
         std::string(reinterpret_cast<const char*>(body.data()), body.size());
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tqcache;
  const ByteView bytes = fuzz::view_of(data, size);
  read(bytes);
  const std::string file = sealed(bytes);
  read(std::as_bytes(std::span(file)));
  return 0;
}
