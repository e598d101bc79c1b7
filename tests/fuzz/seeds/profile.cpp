// Profiles of models: a whole file, and the text behind the first line of two.

#include <string>

#include "fuzz/seeds/seeds.h"
#include "tqcache/eval.h"

namespace tqcache::fuzz {
namespace {

eval::Profile profile_of(std::size_t n_layers) {
  eval::Profile profile;
  profile.architecture = "qwen3";
  profile.model_name = "seed";
  profile.window = 2048;
  profile.n_windows = 4;
  profile.n_sinks = 4;
  profile.step = 0.25;
  profile.key_sensitivity.assign(n_layers, 0.002);
  profile.value_sensitivity.assign(n_layers, 0.0035);
  profile.weights = {std::vector<float>(n_layers, 1.25f), std::vector<float>(n_layers, 0.8f)};
  profile.curve = {{0.125, 0.02}, {0.25, 0.1}};
  return profile;
}

std::string file_of(const eval::Profile& profile) {
  const Bytes bytes = eval::profile_bytes(profile);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string body_of(const eval::Profile& profile) {
  const std::string file = file_of(profile);
  return file.substr(file.find('\n') + 1);
}

}  // namespace

void make_profile(const SeedFolder& seeds) {
  seeds.add("whole", file_of(profile_of(1)));
  seeds.add("body", body_of(profile_of(2)));
  eval::Profile points = profile_of(1);
  points.curve = {{0.1, 0.01}, {0.2, 0.04}, {0.4, 0.16}};
  seeds.add("points", body_of(points));
}

}  // namespace tqcache::fuzz
