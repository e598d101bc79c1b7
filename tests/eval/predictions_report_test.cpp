#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "report/text_table.h"
#include "support/cache_builder.h"
#include "tqcache/eval.h"

namespace tqcache::eval {
namespace predictions_report_test {

using test::must;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::Not;

PredictionCost way(std::string_view text) {
  PredictionCost cost;
  cost.configuration = must(cache::parse_configuration(text));
  cost.perplexity = 11;
  return cost;
}

// The dense configuration, one that quantizes values only, and one that quantizes both.
PredictionCosts sample() {
  PredictionCosts costs;
  costs.n_tokens = 1000;
  costs.window = 300;
  costs.n_windows = 3;
  costs.dense_perplexity = 10;
  costs.ways = {way("f32"), way("kfv4"), way("turbo4")};
  costs.ways[0].size = {1200, 1200, 32, 0, 0, 0};
  costs.ways[0].perplexity = 10;
  costs.ways[0].top1 = 1;
  costs.ways[1].size = {600, 160, 10.0625, 4.125, 0, 4.125};
  costs.ways[1].kld_mean = 0.03;
  costs.ways[1].errors = CodingErrors(2, 3);
  costs.ways[1].errors.at(1, 1, 2) = {0.25, 25, 20};
  costs.ways[2].size = {160, 160, 4.125, 4.125, 4.125, 4.125};
  costs.ways[2].kld_mean = 0.05;
  costs.ways[2].errors = CodingErrors(2, 3);
  costs.ways[2].errors.at(0, 0, 1) = {0.5, 50, 25};
  costs.ways[2].errors.at(1, 1, 0) = {0.5, 100, 50};
  return costs;
}

template <class Kind>
std::vector<Kind> figures(const Report& report) {
  std::vector<Kind> found;
  for (const Figure& figure : report.figures) {
    if (const auto* kind = std::get_if<Kind>(&figure)) found.push_back(*kind);
  }
  return found;
}

TEST(PredictionsReport, BeginsWithWhatWasAskedFor) {
  const std::string kld =
      report::report_text(predictions_report(sample(), PredictionFocus::kDivergence));
  EXPECT_THAT(kld, ContainsRegex("windows +3 of 300 tokens, 900 predictions\n"));
  EXPECT_THAT(kld, ContainsRegex("\ndense perplexity +10.0000\n"));
  EXPECT_THAT(kld, ContainsRegex("\nf32 +32.000 +0.00000 .* 100.00 +10.0000\n"));
  EXPECT_THAT(kld, ContainsRegex("\nkfv4 +10.062 +4.125 +0.03000 "));
  const std::string ppl =
      report::report_text(predictions_report(sample(), PredictionFocus::kPerplexity));
  EXPECT_THAT(ppl, ContainsRegex("\nturbo4 +4.125 +4.125 +11.0000 +0.0000 +10.00 +320\n"));
}

TEST(PredictionsReport, ShowsErrorsOfQuantizedTensorsOnly) {
  const auto tables = figures<Table>(predictions_report(sample(), PredictionFocus::kDivergence));
  ASSERT_EQ(tables.size(), 2u);
  const std::string text = report::text_table(tables[1]);
  EXPECT_THAT(text, Not(ContainsRegex("\nf32 ")));
  EXPECT_THAT(text, ContainsRegex("\nkfv4 +4.125 +0.010000 +0.012500\n"));
  EXPECT_THAT(text,
              ContainsRegex("\nturbo4 +4.125 +0.010000 +0.020000 +4.125 +0.005000 +0.010000\n"));
}

TEST(PredictionsReport, LeavesTheDenseRunOffALogarithmicAxis) {
  const auto plots = figures<Plot>(predictions_report(sample(), PredictionFocus::kDivergence));
  ASSERT_EQ(plots.size(), 2u);
  ASSERT_EQ(plots[0].series.size(), 1u);
  ASSERT_EQ(plots[0].series[0].points.size(), 2u);
  EXPECT_EQ(plots[0].series[0].points[0].label, "kfv4");
  EXPECT_EQ(plots[0].series[0].points[0].x, 10.0625);
  EXPECT_EQ(plots[0].series[0].points[0].y, 0.03);
  const auto ppl = figures<Plot>(predictions_report(sample(), PredictionFocus::kPerplexity));
  EXPECT_EQ(ppl[0].series[0].points.size(), 3u);
  EXPECT_FALSE(ppl[0].y.is_log);
}

TEST(PredictionsReport, DrawsTheBoundBesideTheErrors) {
  const Plot plot = figures<Plot>(predictions_report(sample(), PredictionFocus::kDivergence))[1];
  ASSERT_EQ(plot.series.size(), 3u);
  EXPECT_EQ(plot.series[0].name, "keys");
  ASSERT_EQ(plot.series[0].points.size(), 1u);
  EXPECT_EQ(plot.series[0].points[0].y, 0.02);
  EXPECT_EQ(plot.series[1].name, "values");
  ASSERT_EQ(plot.series[1].points.size(), 2u);
  const Series& bound = plot.series[2];
  EXPECT_TRUE(bound.is_bound);
  EXPECT_TRUE(bound.is_line);
  EXPECT_EQ(bound.points.front().y, 0.25);
  EXPECT_EQ(bound.points.back().x, 5);
  EXPECT_EQ(bound.points.back().y, std::pow(4.0, -5));
}

TEST(PredictionsReport, HasAHeatMapForEveryQuantizedTensor) {
  const auto maps = figures<HeatMap>(predictions_report(sample(), PredictionFocus::kDivergence));
  ASSERT_EQ(maps.size(), 3u);
  EXPECT_EQ(maps[0].title, "kfv4: squared error of values");
  EXPECT_THAT(maps[0].rows, ElementsAre("0", "1"));
  EXPECT_THAT(maps[0].columns, ElementsAre("0", "1", "2"));
  EXPECT_EQ(maps[0].values[1][2], 0.01);
  EXPECT_TRUE(std::isnan(maps[0].values[0][0]));
  EXPECT_EQ(maps[1].title, "turbo4: squared error of keys");
  EXPECT_EQ(maps[2].title, "turbo4: squared error of values");
}

TEST(PredictionsReport, AsServedHasNoErrors) {
  PredictionCosts costs = sample();
  costs.as_served = true;
  for (PredictionCost& each : costs.ways) each.errors = {};
  const Report report = predictions_report(costs, PredictionFocus::kDivergence);
  EXPECT_EQ(figures<Table>(report).size(), 1u);
  EXPECT_EQ(figures<Plot>(report).size(), 1u);
  EXPECT_TRUE(figures<HeatMap>(report).empty());
  EXPECT_THAT(report::report_text(report), ContainsRegex("keys and values +as served"));
}

TEST(PredictionsReport, ShowsBytesOfKeysAndValues) {
  const auto bars = figures<Bars>(predictions_report(sample(), PredictionFocus::kPerplexity));
  ASSERT_EQ(bars.size(), 1u);
  ASSERT_EQ(bars[0].bars.size(), 3u);
  EXPECT_EQ(bars[0].bars[1].name, "kfv4");
  EXPECT_EQ(bars[0].bars[1].parts[0].value, 600);
  EXPECT_EQ(bars[0].bars[1].parts[1].value, 160);
}

}  // namespace predictions_report_test
}  // namespace tqcache::eval
