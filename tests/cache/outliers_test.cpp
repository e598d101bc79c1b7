#include "tqcache/cache/outliers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/random_cache.h"
#include "support/gaussian.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {
namespace outliers_test {

using test::attention;
using test::full_blocks;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr HeadShape kShape{2, 64};
constexpr Rope kRope{RopeStyle::kHalfSplit, 64, 1e4};

// Where and when a channel is louder than the others.
struct Loud {
  std::int64_t first_token, end_token;
  std::size_t kv_head, channel;
  float factor;
};

// A tensor of noise in which some channels are loud; `bias` is added to all of channel 9.
Tensor noisy_tensor(std::int64_t n_tokens, std::span<const Loud> loud, float bias = 0) {
  test::GaussianSource random(23);
  Tensor tensor = DenseTensor{Dtype::kF32, {}};
  for (std::int64_t token = 0; token < n_tokens; ++token) {
    std::vector<float> row = random.vector(128);
    for (const Loud& each : loud) {
      if (token < each.first_token || token >= each.end_token) continue;
      row[each.kv_head * 64 + each.channel] *= each.factor;
    }
    row[9] += bias;
    row[64 + 9] += bias;
    append(tensor, kShape, token, row);
  }
  return tensor;
}

Outliers choose(const Tensor& tensor, std::size_t n, std::int64_t n_sinks = 0,
                const Mean& mean = {}) {
  return choose_outliers(full_blocks(tensor, kShape, 1).front(), n_sinks, mean, n, 2);
}

TEST(Outliers, AreTheLoudestChannelsOfEachHeadAscending) {
  const Loud loud[] = {
      {0, 256, 0, 40, 9}, {0, 256, 0, 3, 5}, {0, 256, 1, 63, 5}, {0, 256, 1, 0, 4}};
  const Outliers outliers = choose(noisy_tensor(256, loud), 2);
  EXPECT_THAT(outliers.channels(), ElementsAre(3, 40, 0, 63));
  EXPECT_TRUE(outliers.is_fixed());
  EXPECT_EQ(outliers.order(0)[0], 3);
  EXPECT_EQ(outliers.order(0)[2], 0);
  EXPECT_EQ(outliers.order(1)[1], 63);
  EXPECT_EQ(outliers.order(1).size(), 64u);
}

TEST(Outliers, AreNotMadeOfAMeanThatIsTakenOut) {
  const Loud loud[] = {{0, 256, 0, 20, 3}, {0, 256, 1, 20, 3}};
  const Tensor tensor = noisy_tensor(256, loud, 100);
  EXPECT_THAT(choose(tensor, 1).channels(), ElementsAre(9, 9));
  Mean mean{Centering::kPostRope, compute_mean(full_blocks(tensor, kShape, 1), 0, nullptr, 1), {}};
  EXPECT_THAT(choose(tensor, 1, 0, mean).channels(), ElementsAre(20, 20));
}

TEST(Outliers, AreNotMadeOfSinkTokens) {
  const Loud loud[] = {
      {0, 3, 0, 30, 1000}, {0, 3, 1, 31, 1000}, {3, 256, 0, 11, 2}, {3, 256, 1, 12, 2}};
  const Tensor tensor = noisy_tensor(256, loud);
  EXPECT_THAT(choose(tensor, 1, 0).channels(), ElementsAre(30, 31));
  EXPECT_THAT(choose(tensor, 1, 3).channels(), ElementsAre(11, 12));
}

TEST(Outliers, OfEqualVarianceAreTheLowerChannels) {
  Tensor tensor = DenseTensor{Dtype::kF16, {}};
  append(tensor, kShape, 0, std::vector<float>(256 * 128, 1.0f));
  EXPECT_THAT(choose(tensor, 3).channels(), ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST(Outliers, AreTheSameOnAnyNumberOfThreads) {
  const Tensor tensor = noisy_tensor(256, {});
  const auto blocks = full_blocks(tensor, kShape, 1);
  EXPECT_EQ(choose_outliers(blocks[0], 0, {}, 16, 1), choose_outliers(blocks[0], 0, {}, 16, 3));
}

TEST(Outliers, ComeBackFromTheirOutlierChannels) {
  const Outliers outliers = choose(noisy_tensor(256, {}), 16);
  EXPECT_EQ(make_outliers(kShape, 16, outliers.channels()).value(), outliers);
  EXPECT_EQ(make_outliers(kShape, 0, {}).value(), (Outliers{0, 64, {}}));
}

TEST(Outliers, RefusesListsThatAreNotChannels) {
  const auto refusal = [](std::vector<std::uint16_t> loud) {
    const auto made = make_outliers(kShape, 2, loud);
    EXPECT_FALSE(made);
    return made ? Error{ErrorCode::kIo, "none"} : made.error();
  };
  EXPECT_THAT(refusal({1, 2, 3}).message, HasSubstr("3 outlier channels where 4 belong"));
  for (const std::vector<std::uint16_t>& loud :
       {std::vector<std::uint16_t>{1, 2, 3, 3}, {1, 2, 4, 3}, {1, 2, 3, 64}}) {
    EXPECT_EQ(refusal(loud).code, ErrorCode::kCorrupt);
    EXPECT_THAT(refusal(loud).message, HasSubstr("head 1"));
  }
}

// The cache whose keys and values are `tensor`.
Cache cache_of(const Tensor& tensor, std::int64_t n_tokens) {
  Cache cache;
  cache.identity.rope = kRope;
  cache.tokens.resize(static_cast<std::size_t>(n_tokens));
  cache.layers.emplace_back(AttentionLayer{kShape, tensor, tensor});
  return cache;
}

std::vector<std::uint16_t> loud_values(const Cache& dense, Fit fit) {
  ConvertOptions options = preset("turbo2.5").value();
  options.values.codec.outlier_channels = 8;
  options.fit = fit;
  const Cache turbo = convert(dense, options).value();
  return std::get<TurboTensor>(attention(turbo, 0).v).codec.describe().quant->outliers;
}

TEST(Outliers, AreThoseOfTheFirstBlock) {
  std::vector<Loud> loud;
  for (std::size_t head = 0; head < 2; ++head) {
    for (std::size_t i = 0; i < 8; ++i) {
      loud.push_back({0, 256, head, 2 * i, 3});
      loud.push_back({256, 1024, head, 40 + i, 3});
    }
  }
  const Cache dense = cache_of(noisy_tensor(1030, loud), 1030);
  const std::vector<std::uint16_t> early = {0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14};
  EXPECT_EQ(loud_values(dense, Fit::kFirstBlock), early);
  EXPECT_EQ(loud_values(dense, Fit::kPrompt), early);
}

// What the mode is for: with a quarter of the channels loud, bits where they count. They are loud
// in pairs, so that they stay so when RoPE rotates them.
TEST(Outliers, GetTheBitsThatTheyNeed) {
  std::vector<Loud> loud;
  for (std::size_t head = 0; head < 2; ++head) {
    for (std::size_t i = 0; i < 8; ++i) {
      loud.push_back({0, 512, head, 3 * i, 10});
      loud.push_back({0, 512, head, 3 * i + 32, 10});
    }
  }
  const Cache dense = cache_of(noisy_tensor(512, loud), 512);
  const auto error = [&](std::string_view name) {
    const Cache turbo = convert(dense, preset(name).value()).value();
    const auto a = test::values_of(attention(dense, 0).k, kShape, 512);
    const auto b = test::values_of(attention(turbo, 0).k, kShape, 512);
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
  };
  EXPECT_LT(error("turbo2.5"), 0.4 * error("turbo2"));
}

}  // namespace outliers_test
}  // namespace tqcache::cache
