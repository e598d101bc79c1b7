// bench/synthetic_quality.cpp: quality of configurations on keys and values that are harder to
// quantize than those of the bundled model: with outlier channels, with a bias as in the keys of
// Qwen2.5, with sink tokens. There is no model: head vectors are random, the same on every CPU, and
// attention over them is measured. docs/explain/quality.md has the results.
//
// usage: synthetic_quality [CONFIGURATIONS]      as in `tqcache eval --configs`

#include <array>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench_model.h"
#include "tqcache/cache.h"
#include "tqcache/codec/random.h"
#include "tqcache/eval.h"
#include "tqcache/eval/attention_error.h"
#include "tqcache/quantize.h"

namespace tqcache::bench {
namespace {

constexpr const char* kConfigurations =
    "turbo4,center=none;turbo4,center=post-rope;turbo4;turbo4,rounds=2;turbo4,sink=0;"
    "turbo4,scale=norm;k=mse:5,v=mse:3;k=mse:3,v=mse:5;k8v4,center=none;turbo3.5;"
    "turbo3;turbo3,scale=unbiased;turbo3,rounds=2;"
    "turbo2;turbo2,scale=unbiased;turbo2,rounds=2;turbo2.5;affine4";

constexpr std::int64_t kTokens = 2048;
constexpr std::int64_t kQueries = 64;  // of the last tokens
constexpr std::int64_t kQueryHeads = 4;
constexpr cache::HeadShape kShape{2, 128};
constexpr std::size_t kHeadDim = 128;
constexpr std::size_t kPairs = kHeadDim / 2;
constexpr double kLogitDeviation = 2;  // of the scores of one query, without the bias

using HeadVector = std::array<float, kHeadDim>;

// Properties of the keys of a cache, or its values.
struct Kind {
  const char* name;
  double channel_spread;   // standard deviation of the logarithm of a channel's scale
  double loud;             // factor of the four outlier channels; 1: no outliers
  double bias;             // length of the keys' bias relative to their varying part; 0: no bias
  bool has_sinks = false;  // the first four tokens attract all queries
};

constexpr Kind kKinds[] = {{"even channels", 0, 1, 0},
                           {"uneven channels", 0.6, 1, 0},
                           {"outlier channels", 0.6, 12, 0},
                           {"key bias, 3 times the rest", 0.3, 1, 3},
                           {"key bias, 10 times the rest", 0.3, 1, 10},
                           {"outlier channels and key bias 10", 0.6, 12, 10},
                           {"sink tokens", 0.6, 1, 0, true}};

// The scale of every channel; the mean square is 1.
HeadVector loudness(const Kind& kind, codec::NormalSource& random) {
  HeadVector scale;
  for (float& each : scale) {
    each = static_cast<float>(std::exp(kind.channel_spread * random.next()));
  }
  for (const std::size_t channel : {7u, 40u, 77u, 109u}) {
    scale[channel] *= static_cast<float>(kind.loud);
  }
  double energy = 0;
  for (const float each : scale) energy += double{each} * each;
  const double by = std::sqrt(static_cast<double>(kHeadDim) / energy);
  for (float& each : scale) each = static_cast<float>(each * by);
  return scale;
}

// A bias is largest in the channel pairs with slow rotation.
HeadVector bias_of(const Kind& kind, codec::NormalSource& random) {
  HeadVector bias;
  double energy = 0;
  for (std::size_t i = 0; i < kHeadDim; ++i) {
    const double place = static_cast<double>(i % kPairs) / static_cast<double>(kPairs - 1);
    bias[i] = static_cast<float>(std::exp(4 * place - 4) * random.next());
    energy += double{bias[i]} * bias[i];
  }
  const double by = kind.bias * std::sqrt(static_cast<double>(kHeadDim) / energy);
  for (float& each : bias) each = static_cast<float>(each * by);
  return bias;
}

HeadVector drawn(const HeadVector& scale, codec::NormalSource& random) {
  HeadVector vector;
  for (std::size_t i = 0; i < kHeadDim; ++i) {
    vector[i] = static_cast<float>(scale[i] * random.next());
  }
  return vector;
}

// The cache of one layer, and the queries to it.
struct Sample {
  cache::Cache cache;
  std::vector<float> queries;  // [kQueries, kQueryHeads, kHeadDim]
};

class SampleMaker {
 public:
  SampleMaker(const Kind& kind, std::uint64_t seed) : kind_(kind), random_(seed) {
    for (std::int64_t head = 0; head < kShape.n_kv_heads; ++head) {
      key_scales_.push_back(loudness(kind, random_));
      biases_.push_back(bias_of(kind, random_));
      value_scales_.push_back(loudness({"", kind.channel_spread, 1, 0}, random_));
      sinks_.push_back(drawn(key_scales_.back(), random_));
    }
  }

  Sample make() {
    cache::Identity identity;
    identity.rope = rope_;
    const cache::LayerPlan plan{kShape, Dtype::kF32};
    Sample sample{must(cache::make_cache(std::move(identity), std::span(&plan, 1))), {}};
    auto& layer = std::get<cache::AttentionLayer>(sample.cache.layers[0]);
    for (std::int64_t token = 0; token < kTokens; ++token) append(layer, token);
    sample.cache.tokens.assign(static_cast<std::size_t>(kTokens), 1);
    for (std::int64_t i = 0; i < kQueries; ++i) add_queries(kTokens - kQueries + i, sample.queries);
    return sample;
  }

 private:
  bool is_sink(std::int64_t token) const { return kind_.has_sinks && token < 4; }

  void append(cache::AttentionLayer& layer, std::int64_t token) {
    std::vector<float> keys, values;
    for (std::size_t head = 0; head < key_scales_.size(); ++head) {
      HeadVector key = drawn(key_scales_[head], random_);
      HeadVector value = drawn(value_scales_[head], random_);
      for (std::size_t i = 0; i < kHeadDim; ++i) {
        if (is_sink(token)) key[i] = 3 * sinks_[head][i] + 0.3f * key[i];
        if (is_sink(token)) value[i] *= 0.1f;
        key[i] += biases_[head][i];
      }
      if (!is_sink(token)) cache::rotate(rope_, token, key);
      keys.insert(keys.end(), key.begin(), key.end());
      values.insert(values.end(), value.begin(), value.end());
    }
    cache::append(layer.k, kShape, token, keys);
    cache::append(layer.v, kShape, token, values);
  }

  // Queries have the same scale in every channel, and are biased toward sinks, if any.
  void add_queries(std::int64_t token, std::vector<float>& queries) {
    for (std::int64_t head = 0; head < kQueryHeads; ++head) {
      HeadVector query;
      for (float& each : query) each = static_cast<float>(kLogitDeviation * random_.next());
      cache::rotate(rope_, token, query);
      const auto kv_head = static_cast<std::size_t>(head * kShape.n_kv_heads / kQueryHeads);
      for (std::size_t i = 0; i < kHeadDim && kind_.has_sinks; ++i) {
        query[i] += 0.25f * sinks_[kv_head][i];
      }
      queries.insert(queries.end(), query.begin(), query.end());
    }
  }

  const Kind& kind_;
  codec::NormalSource random_;
  cache::Rope rope_{cache::RopeStyle::kHalfSplit, kHeadDim, 1e6};
  std::vector<HeadVector> key_scales_, biases_, value_scales_, sinks_;  // [n_kv_heads]
};

struct Row {
  double bits = 0;
  double k_error = 0, v_error = 0;  // relative
  double weights_kl = 0;            // nats, mean over queries and heads
  double output_error = 0;          // relative, mean over heads
};

Row measure(const Sample& sample, const cache::Configuration& configuration) {
  const cache::Cache coded = must(cache::convert(sample.cache, configuration.options));
  const auto& a = std::get<cache::AttentionLayer>(sample.cache.layers[0]);
  const auto& b = std::get<cache::AttentionLayer>(coded.layers[0]);
  const eval::LayerQueries queries{kTokens - kQueries, kQueries, sample.queries};
  const auto heads = eval::attention_errors({a, kTokens, b, kTokens}, queries, 0);
  const cache::CacheDifference difference = must(cache::diff(sample.cache, coded, 0));
  const cache::LayerPlan plan{kShape, Dtype::kF16};
  const cache::Cache empty = must(cache::make_cache({}, std::span(&plan, 1)));
  Row row{must(eval::window_size(empty, configuration, kTokens)).bits_per_value,
          difference.k.relative_mse, difference.v.relative_mse, 0, 0};
  for (const eval::AttentionError& head : heads) {
    row.weights_kl += head.weights_kl / static_cast<double>(heads.size());
    row.output_error += head.output_error / static_cast<double>(heads.size());
  }
  return row;
}

void print_table(const Kind& kind, std::span<const cache::Configuration> configurations) {
  SampleMaker maker(kind, 20261122);
  const Sample sample = maker.make();
  std::printf("%s\n%-22s  bits    k error    v error  weights KL  output error\n", kind.name,
              "configuration");
  for (const cache::Configuration& each : configurations) {
    const Row row = measure(sample, each);
    std::printf("%-22s %5.3f  %9.6f  %9.6f  %10.5f  %12.6f\n", each.name.c_str(), row.bits,
                row.k_error, row.v_error, row.weights_kl, row.output_error);
  }
  std::printf("\n");
}

int run(std::string_view text) {
  const auto configurations = cache::parse_configurations(text);
  if (!configurations) {
    std::fprintf(stderr, "synthetic_quality: %s\n", configurations.error().message.c_str());
    return 2;
  }
  for (const Kind& kind : kKinds) print_table(kind, *configurations);
  return 0;
}

}  // namespace
}  // namespace tqcache::bench

int main(int argc, char** argv) {
  return tqcache::bench::run(argc > 1 ? argv[1] : tqcache::bench::kConfigurations);
}
