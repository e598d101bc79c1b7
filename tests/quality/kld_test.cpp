// The loss of quality by quantization, for the bundled model and the beginning of a book, compared
// with an independent simulation of TurboQuant (simulate.py).
//
// TQCACHE_LONG_TESTS=1 takes the whole book; TQCACHE_QUALITY_WINDOWS=N measures N windows and
// compares nothing, for slow builds; TQCACHE_QUALITY_ALL=1 measures more ways, to look at.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/text_table.h"
#include "support/cache_builder.h"
#include "support/long_tests.h"
#include "support/temp_dir.h"
#include "tqcache/eval.h"
#include "tqcache/quantize.h"

namespace tqcache {
namespace kld_test {

using eval::PredictionCost;
using test::must;

const std::vector<std::string> kChosen = {"turbo4,sink=0", "turbo4,center=none,sink=0",
                                          "kfv4,center=none,sink=0",
                                          "turbo3,center=none,scale=unbiased,sink=0"};
const std::vector<std::string> kOthers = {"v=dense,center=none,sink=0", "k8v4,center=none,sink=0",
                                          "k4v3,center=none,scale=unbiased,sink=0",
                                          "turbo2,center=none,scale=unbiased,sink=0"};

class Kld : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::ifstream in(TQCACHE_TEST_DATA "/reference.json");
    reference_ =
        nlohmann::json::parse(in)["ppl"][test::runs_long_tests() ? "alice" : "alice_beginning"];
    const auto model = must(model::load_model(TQCACHE_DEMO_MODEL "/hf"));
    const Bytes text = test::read_all(TQCACHE_TEST_DATA "/alice.txt");
    const auto ids =
        must(model->tokenizer.encode({reinterpret_cast<const char*>(text.data()), text.size()},
                                     tokenizer::Tokenizer::Special::kAsText));
    const char* const wanted = std::getenv("TQCACHE_QUALITY_WINDOWS");
    eval::PredictionOptions options;
    options.max_windows = wanted == nullptr ? reference_["windows"].get<std::int64_t>()
                                            : std::max(1, std::atoi(wanted));
    costs_ = must(eval::measure_predictions(*model, ids, configurations(), options));
    has_reference_ = wanted == nullptr;
    std::printf("%s", report::report_text(
                          eval::predictions_report(costs_, eval::PredictionFocus::kDivergence))
                          .c_str());
  }

  static std::vector<cache::Configuration> configurations() {
    std::vector<cache::Configuration> all;
    const auto add = [&](std::string_view text) {
      all.push_back(must(cache::parse_configuration(text)));
    };
    for (const std::string& text : kChosen) add(text);
    if (std::getenv("TQCACHE_QUALITY_ALL") == nullptr) return all;
    for (const std::string& text : kOthers) add(text);
    for (const std::string_view name : cache::preset_names()) add(name);
    return all;
  }

  static const PredictionCost& cost(std::string_view name) {
    return *std::ranges::find(costs_.ways, name,
                              [](const PredictionCost& way) { return way.configuration.name; });
  }

  static void expect_reference(const std::string& name, const char* of_reference) {
    SCOPED_TRACE(name);
    const nlohmann::json& expected = reference_[of_reference];
    const auto near = [&](double measured, const char* field, double share) {
      const double value = expected[field].get<double>();
      EXPECT_NEAR(measured, value, share * value) << field;
    };
    near(cost(name).kld_mean, "kld_mean", 0.05);
    near(cost(name).kld_median, "kld_median", 0.05);
    // Sixty predictions of a beginning lie beyond it, and of a book 360.
    near(cost(name).kld_p99, "kld_p99", test::runs_long_tests() ? 0.1 : 0.12);
    near(cost(name).perplexity, "ppl", 0.015);
    EXPECT_NEAR(cost(name).top1, expected["top1"].get<double>(), 0.01);
  }

  inline static nlohmann::json reference_;
  inline static bool has_reference_ = false;
  inline static eval::PredictionCosts costs_;
};

TEST_F(Kld, DensePerplexityIsThatOfTransformers) {
  if (!has_reference_) GTEST_SKIP() << "other windows than those of the reference";
  EXPECT_EQ(costs_.n_tokens, reference_["tokens"].get<std::int64_t>());
  EXPECT_NEAR(costs_.dense_perplexity, reference_["f32"]["ppl"].get<double>(), 0.01);
}

TEST_F(Kld, PlainCodesCostWhatTheSimulationSays) {
  if (!has_reference_) GTEST_SKIP() << "other windows than those of the reference";
  expect_reference("turbo4,center=none,sink=0", "k4v4");
  expect_reference("kfv4,center=none,sink=0", "kf_v4");
  expect_reference("turbo3,center=none,scale=unbiased,sink=0", "k3v3");
}

TEST_F(Kld, CenteringTakesAThirdOfTheCostAwayAtNoMoreBits) {
  const PredictionCost& centered = cost("turbo4,sink=0");
  const PredictionCost& plain = cost("turbo4,center=none,sink=0");
  EXPECT_GT(centered.kld_mean, 0);
  EXPECT_LT(centered.kld_mean, 0.75 * plain.kld_mean);
  EXPECT_GT(centered.size.bits_per_packed_value, 4);
  EXPECT_LE(centered.size.bits_per_packed_value, 4.13);
  EXPECT_EQ(centered.size.bits_per_packed_value, plain.size.bits_per_packed_value);
  if (!has_reference_) GTEST_SKIP() << "other windows than those of the reference";
  EXPECT_LT(centered.kld_mean, 0.65 * reference_["k4v4"]["kld_mean"].get<double>());
}

}  // namespace kld_test
}  // namespace tqcache
