#include "report/sample_report.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace tqcache::report::test {
using namespace eval;  // figures and tables

namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

struct Configuration {
  const char* name;
  double bits;
  double loss;
};

constexpr Configuration kConfigurations[] = {
    {"f32", 32, 0},          {"affine8", 8.5, .0011},  {"kfv4", 10.06, .0231},
    {"turbo4", 4.13, .0533}, {"k8v4", 6.13, .0257},    {"k4v3", 3.63, .0811},
    {"affine4", 4.5, .0912}, {"prod4", 4.25, .0704},   {"turbo3", 3.13, .2106},
    {"prod3", 3.25, .2893},  {"turbo3.5", 3.5, .1187}, {"turbo2.5", 2.5, .6402},
    {"turbo2", 2.13, 1.204},
};

Table results() {
  Table table;
  table.title = "Results";
  table.caption = "Against the dense run, window by window. Lower is better, but for top-1.";
  table.columns = {"configuration", "bits per value", "perplexity", "mean KLD",
                   "median KLD",    "p99 KLD",        "top-1",      "bytes"};
  for (const Configuration& of : kConfigurations) {
    table.rows.push_back({std::string(of.name), Number{of.bits, 3},
                          Number{67.2 * std::exp(of.loss), 4}, Number{of.loss, 4},
                          Number{of.loss * .61, 4}, Number{of.loss * 7.3, 4},
                          Number{std::exp(-of.loss), 4}, Number{of.bits * 12345678, 0}});
  }
  return table;
}

Plot quality() {
  Plot plot;
  plot.title = "Quality against size";
  plot.caption =
      "Towards the lower left is better. The dashed line is the rate-distortion bound: no code of "
      "so "
      "many bits errs less.";
  plot.x = {"bits per value", false};
  plot.y = {"mean KLD, nats a token", true};
  Series turbo{"TurboQuant", {}};
  Series other{"affine and mixed", {}};
  for (const Configuration& of : kConfigurations) {
    const bool is_turbo = std::string(of.name).starts_with("turbo");
    (is_turbo ? turbo : other).points.push_back({of.bits, of.loss, of.name});
  }
  Series archive{"archive tier", {}, true};
  for (const double bits : {2.0, 2.4, 3.0, 3.4, 4.0, 5.0}) {
    archive.points.push_back({bits, 13 * std::exp2(-2 * bits)});
  }
  Series bound{"bound", {}, true, true};
  for (double bits = 1; bits <= 16; bits += .25) {
    bound.points.push_back({bits, 9 * std::exp2(-2 * bits)});
  }
  plot.series = {turbo, other, archive, bound};
  return plot;
}

Plot speed() {
  Plot plot;
  plot.title = "Speed against depth";
  plot.x = {"tokens in the cache", true};
  plot.y = {"tokens a second", false};
  for (const double rate : {1.0, 1.35, 1.6}) {
    Series series{fmt::format("series {}", rate), {}, true};
    for (double depth = 256; depth <= 65536; depth *= 2) {
      series.points.push_back({depth, 210 * rate / (1 + depth / (9000 * rate))});
    }
    plot.series.push_back(series);
  }
  return plot;
}

HeatMap errors(const std::string& title, std::size_t n_layers, std::size_t n_heads) {
  HeatMap map;
  map.title = title;
  map.caption = "Squared error of the keys relative to their energy, by layer and kv head.";
  map.row_label = "layer";
  map.column_label = "kv head";
  map.unit = "relative squared error";
  for (std::size_t head = 0; head < n_heads; ++head) map.columns.push_back(fmt::format("{}", head));
  for (std::size_t layer = 0; layer < n_layers; ++layer) {
    map.rows.push_back(fmt::format("{}", layer));
    std::vector<double>& row = map.values.emplace_back();
    for (std::size_t head = 0; head < n_heads; ++head) {
      const double sinusoid = std::sin(0.9 * static_cast<double>(layer + 3 * head));
      row.push_back(.0031 + .0052 * sinusoid * sinusoid + (layer == 0 ? .006 : 0));
    }
  }
  return map;
}

HeatMap needle() {
  HeatMap map;
  map.title = "Needle in the haystack, turbo4";
  map.caption = "The share of trials answered exactly.";
  map.row_label = "depth";
  map.column_label = "tokens";
  map.more_is_better = true;
  map.decimals = 2;
  map.low = 0;
  map.high = 1;
  map.columns = {"1,024", "2,048", "4,096", "8,192"};
  map.rows = {"0%", "25%", "50%", "75%", "100%"};
  map.values = {
      {1, 1, 1, .975}, {1, .975, .9, .6}, {1, .95, .7, kNoNumber}, {1, 1, .85, .25}, {1, 1, 1, 1}};
  return map;
}

Bars sizes() {
  Bars bars;
  bars.title = "Where the bytes are";
  bars.unit = "bytes";
  bars.bars = {
      {"dense.kv", {{"dense blocks", 51200000}, {"dense tail", 2940000}, {"manifest", 102112}}},
      {"turbo4.tqkv",
       {{"codes", 12100000}, {"scales", 802816}, {"dense tail", 2940000}, {"manifest", 145200}}},
      {"archive.tqkv",
       {{"codes", 9100000}, {"scales", 402816}, {"dense tail", 1470000}, {"manifest", 145200}}},
  };
  return bars;
}

}  // namespace

Report sample_report() {
  Report report;
  report.title = "What the cache costs: a sample";
  report.facts = {{"Model", "a model that nobody has, 24 layers, bf16"},
                  {"Text", "no text; these numbers are made up"},
                  {"Windows", "18 of 2,048 tokens"},
                  {"Command",
                   "tqcache eval kld --model model.gguf --file book.txt --configs "
                   "f32,turbo4,kfv4,k8v4,k4v3,affine4,prod4 --html report.html"},
                  {"Program", "tqcache 0.0.0"}};
  report.figures = {results(),
                    quality(),
                    errors("Error by layer and head", 20, 3),
                    errors("Error by layer and head, a large model", 80, 8),
                    needle(),
                    speed(),
                    sizes()};
  report.notes = {
      "Every key and value of a window is replaced by its coded value before attention.",
      "Bits a value count codes, scales and means, and nothing that is kept once a file."};
  return report;
}

}  // namespace tqcache::report::test
