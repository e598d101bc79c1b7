// Speed of predicted archives for models of any width, on synthetic numbers: a profile by chance
// and keys and values with the deviations that it states. One thread, without files.
//
// usage: predicted_speed [KV_HEADS HEAD_DIM LAYERS DEPTH FEATURES BITS]   (default: 8 128 4 1
// 0 1.2)

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/predict.h"
#include "tqcache/predict/predictor.h"
#include "tqcache/predict/rate.h"

namespace tqcache {
namespace {

constexpr std::size_t kTokens = 256;
constexpr std::int64_t kVocabulary = 1000;

predict::Profile made_up_profile(cache::HeadShape shape, std::int64_t n_layers, std::int64_t depth,
                                 std::int64_t n_features) {
  predict::Profile profile;
  profile.n_layers = n_layers;
  profile.shape = shape;
  profile.depth = depth;
  profile.n_features = n_features;
  profile.vocab_size = n_features > 0 ? kVocabulary : 0;
  std::minstd_rand random(1);
  const auto byte = [&](int most) {
    const auto n_values = static_cast<unsigned>(2 * most + 1);
    return static_cast<std::int8_t>(static_cast<int>(random() % n_values) - most);
  };
  profile.features.resize(to_size(profile.vocab_size * n_features));
  for (std::int8_t& each : profile.features) each = byte(127);
  const std::size_t dim = to_size(profile.channels());
  for (std::size_t i = 0; i < to_size(2 * n_layers); ++i) {
    predict::TensorProfile tensor;
    tensor.mean.assign(dim, 0);
    tensor.unit.assign(dim, 0.01f);
    tensor.weight_scale.assign(dim, 1e-9f);  // multiplied, and hardly added
    tensor.map_scale.assign(dim, 0.01f);
    tensor.weights.resize(to_size(profile.n_inputs(i)) * dim);
    for (std::int8_t& each : tensor.weights) each = byte(127);
    tensor.map.resize(dim * dim);
    for (std::int8_t& each : tensor.map) each = byte(1);
    for (std::size_t c = 0; c < dim; ++c) {
      tensor.map[c * dim + c] = 100;
      // Deviations fall over three octaves, as those of real residuals do.
      tensor.deviation.push_back(std::exp2(-3 * static_cast<float>(c) / static_cast<float>(dim)));
    }
    profile.tensors.push_back(std::move(tensor));
  }
  return profile;
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

void run(cache::HeadShape shape, std::int64_t n_layers, std::int64_t depth, std::int64_t n_features,
         double bits) {
  const predict::Profile profile = made_up_profile(shape, n_layers, depth, n_features);
  const auto step = static_cast<float>(predict::step_of_rate(profile, bits));
  const std::size_t dim = to_size(profile.channels());
  std::uint64_t n_numbers = 0;
  for (const auto& tensor : profile.tensors) n_numbers += tensor.weights.size() + tensor.map.size();
  const predict::Predictor predictor(profile, {});
  double began = cpu_seconds();
  if (!predictor.prepare_encoding(1)) std::abort();
  const double prepared = cpu_seconds() - began;

  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<AlignedFloats> rows;
  for (const auto& tensor : profile.tensors) {
    AlignedFloats& each = rows.emplace_back(kTokens * dim);
    for (std::size_t i = 0; i < each.size(); ++i)
      each[i] = normal(random) * tensor.deviation[i % dim];
  }
  const std::vector<std::int32_t> ids(kTokens, 1);
  std::vector<Bytes> coded(rows.size());
  AlignedFloats out(kTokens * dim);
  began = cpu_seconds();
  predict::BlockCoder encoder(predictor, step, ids, 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!encoder.encode(rows[i], coded[i], out)) std::abort();
  }
  const double encoded = cpu_seconds() - began;
  began = cpu_seconds();
  predict::BlockCoder decoder(predictor, step, ids, 0);
  std::uint64_t n_bytes = 0;
  for (const Bytes& each : coded) {
    if (!decoder.decode(each, out)) std::abort();
    n_bytes += each.size();
  }
  const double decoded = cpu_seconds() - began;
  const double n_values = static_cast<double>(kTokens * dim * rows.size());
  fmt::print(
      "{} layers of {} x {}, depth {}, {} features: {:.1f} M numbers in the profile\n"
      "{:.3f} bits per value; inverse maps once {:.2f} s\n"
      "encode {:.3f} GB/s of f16, decode {:.3f} GB/s of f16, {:.2f} times faster\n",
      n_layers, shape.n_kv_heads, shape.head_dim, depth, n_features,
      static_cast<double>(n_numbers) / 1e6, 8 * static_cast<double>(n_bytes) / n_values, prepared,
      2 * n_values / encoded / 1e9, 2 * n_values / decoded / 1e9, encoded / decoded);
}

}  // namespace
}  // namespace tqcache

int main(int argc, char** argv) {
  const auto number = [&](int i, double otherwise) {
    return i < argc ? std::atof(argv[i]) : otherwise;
  };
  const auto count = [&](int i, int otherwise) {
    return static_cast<std::int64_t>(number(i, otherwise));
  };
  tqcache::run({count(1, 8), count(2, 128)}, count(3, 4), count(4, 1), count(5, 0), number(6, 1.2));
  return 0;
}
