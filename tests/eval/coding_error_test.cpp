#include <gtest/gtest.h>

#include <vector>

#include "support/cache_builder.h"
#include "support/gaussian.h"
#include "tqcache/eval.h"
#include "tqcache/eval/measuring_filter.h"
#include "tqcache/quantize.h"

namespace tqcache::eval {
namespace coding_error_test {

using test::must;

constexpr cache::HeadShape kShape = {2, 64};
constexpr std::size_t kRow = 128;  // n_kv_heads * head_dim

cache::Cache packed(std::string_view configuration) {
  return must(cache::convert(test::CacheBuilder(600).dense(kShape, Dtype::kF32).build(),
                             must(cache::parse_configuration(configuration)).options));
}

// |x|^2 of one kv head's rows, from row `first` on.
double energy_of(const std::vector<float>& rows, std::size_t kv_head, std::size_t first = 0) {
  double sum = 0;
  for (std::size_t i = first * kRow; i < rows.size(); ++i) {
    if (i % kRow / 64 == kv_head)
      sum += static_cast<double>(rows[i]) * static_cast<double>(rows[i]);
  }
  return sum;
}

std::vector<float> difference(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> lost(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) lost[i] = a[i] - b[i];
  return lost;
}

class CodingErrorOf : public testing::Test {
 protected:
  // Sends the tokens from `first` on through the filter of a configuration.
  void code(std::string_view configuration, std::int64_t first) {
    const cache::Cache cache = packed(configuration);
    const auto filter = measuring_filter(cache, errors_);
    k_ = k_before_;
    v_ = v_before_;
    must(filter(0, first, k_, v_));
  }

  test::GaussianSource random_{4};
  const std::vector<float> k_before_ = random_.vector(20 * kRow, 1.0f);
  const std::vector<float> v_before_ = random_.vector(20 * kRow, 2.0f);
  std::vector<float> k_;
  std::vector<float> v_;
  CodingErrors errors_{1, 2};
};

TEST_F(CodingErrorOf, AHeadIsWhatItsRowsLose) {
  code("turbo3,center=none", 256 + 7);
  for (std::size_t head = 0; head < 2; ++head) {
    const CodingError& k = errors_.at(0, 0, head);
    EXPECT_NEAR(k.energy, energy_of(k_before_, head), 1e-5 * k.energy);
    EXPECT_NEAR(k.error, energy_of(difference(k_, k_before_), head), 1e-5 * k.error);
    EXPECT_EQ(k.variance, k.energy);
    EXPECT_NEAR(k.relative(), 0.033, 0.01);
    const CodingError& v = errors_.at(0, 1, head);
    EXPECT_NEAR(v.energy, energy_of(v_before_, head), 1e-5 * v.energy);
    EXPECT_NEAR(v.error, energy_of(difference(v_, v_before_), head), 1e-5 * v.error);
  }
}

TEST_F(CodingErrorOf, ATensorAddsUpOverCallsAndHeads) {
  code("turbo4", 300);
  const CodingError once = errors_.total(0);
  EXPECT_NEAR(once.energy, errors_.at(0, 0, 0).energy + errors_.at(0, 0, 1).energy,
              1e-12 * once.energy);
  code("turbo4", 300);
  EXPECT_NEAR(errors_.total(0).error, 2 * once.error, 1e-12 * once.error);
}

TEST_F(CodingErrorOf, CenteredKeysIsAlsoRelativeToWhatIsLeftWithoutTheMean) {
  const cache::Cache cache = packed("turbo4,center=post-rope");
  const auto& tensor =
      std::get<cache::TurboTensor>(std::get<cache::AttentionLayer>(cache.layers[0]).k);
  std::vector<float> centered = k_before_;
  for (std::size_t i = 0; i < centered.size(); ++i)
    centered[i] -= tensor.codec.state().mean.values[i % kRow];
  code("turbo4,center=post-rope", 300);
  const CodingError& k = errors_.at(0, 0, 1);
  EXPECT_NEAR(k.variance, energy_of(centered, 1), 1e-5 * k.variance);
  EXPECT_NE(k.variance, k.energy);
  EXPECT_EQ(k.relative_to_variance(), k.error / k.variance);
}

TEST_F(CodingErrorOf, LeavesOutSinkTokens) {
  code("turbo4,sink=9", 4);  // tokens 4 to 23, of which 4 to 8 are sinks
  const CodingError& v = errors_.at(0, 1, 0);
  EXPECT_NEAR(v.energy, energy_of(v_before_, 0, 5), 1e-5 * v.energy);
  code("turbo4,sink=256", 4);
  EXPECT_EQ(errors_.at(0, 1, 0).energy, v.energy);
}

TEST_F(CodingErrorOf, ADenseTensorIsNothing) {
  code("kfv4", 0);
  EXPECT_EQ(errors_.total(0).energy, 0);
  EXPECT_EQ(errors_.total(0).relative(), 0);
  EXPECT_GT(errors_.total(1).relative(), 0);
}

// As for model::coding_filter(): without quantized blocks the mean is unknown.
TEST_F(CodingErrorOf, NothingPackedIsAnError) {
  const cache::Cache cache =
      must(cache::convert(test::CacheBuilder(100).dense(kShape, Dtype::kF32).build(), {}));
  std::vector<float> k = k_before_, v = v_before_;
  EXPECT_EQ(measuring_filter(cache, errors_)(0, 0, k, v).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace coding_error_test
}  // namespace tqcache::eval
