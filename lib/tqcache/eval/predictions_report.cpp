#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "tqcache/eval.h"

namespace tqcache::eval {
namespace {

constexpr std::array<const char*, 2> kTensors = {"keys", "values"};
constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

// An empty text for a missing value.
Cell known_number(double value, int decimals) {
  if (std::isnan(value)) return std::string();
  return Number{value, decimals};
}

// Empty for a configuration without quantization.
Cell if_quantized(const PredictionCost& way, double value, int decimals) {
  return known_number(way.configuration.is_dense() ? kMissing : value, decimals);
}

// Empty for the dense run itself.
Cell if_compared(const PredictionCosts& costs, const PredictionCost& way, double value,
                 int decimals) {
  return known_number(costs.is_reference(way.configuration) ? kMissing : value, decimals);
}

Table divergence_table(const PredictionCosts& costs) {
  Table table{"Divergence from the dense run, in nats",
              {"configuration", "bits per value", "quantized", "mean", "+-", "median", "p99", "max",
               "top-1 %", "+-", "perplexity"},
              {}};
  for (const PredictionCost& way : costs.ways) {
    table.rows.push_back({way.configuration.name, known_number(way.size.bits_per_value, 3),
                          if_quantized(way, way.size.bits_per_packed_value, 3),
                          known_number(way.kld_mean, 5), if_compared(costs, way, way.kld_error, 5),
                          known_number(way.kld_median, 5), known_number(way.kld_p99, 4),
                          known_number(way.kld_max, 3), known_number(100 * way.top1, 2),
                          if_compared(costs, way, 100 * way.top1_error, 2),
                          known_number(way.perplexity, 4)});
  }
  return table;
}

Table perplexity_table(const PredictionCosts& costs) {
  Table table{"Perplexity",
              {"configuration", "bits per value", "quantized", "perplexity", "+-", "above dense, %",
               "bytes per window"},
              {}};
  for (const PredictionCost& way : costs.ways) {
    const double change = 100 * (way.perplexity / costs.dense_perplexity - 1);
    table.rows.push_back(
        {way.configuration.name, known_number(way.size.bits_per_value, 3),
         if_quantized(way, way.size.bits_per_packed_value, 3), known_number(way.perplexity, 4),
         known_number(way.perplexity_error, 4), known_number(change, 2),
         known_number(static_cast<double>(way.size.k_bytes + way.size.v_bytes), 0)});
  }
  return table;
}

// Mean squared error relative to the energy or the variance. Empty for tensors that stay dense.
Cell error_cell(const CodingError& error, bool of_variance) {
  if (error.energy == 0) return known_number(kMissing, 6);
  return known_number(of_variance ? error.relative_to_variance() : error.relative(), 6);
}

bool has_errors(const PredictionCost& way) { return way.errors.n_layers() > 0; }

Table error_table(const PredictionCosts& costs) {
  Table table{
      "Squared error of keys and values, relative to their energy with and without the mean",
      {"configuration", "k bits", "k", "k, no mean", "v bits", "v", "v, no mean"},
      {}};
  for (const PredictionCost& way : costs.ways) {
    if (!has_errors(way)) continue;
    const CodingError k = way.errors.total(0);
    const CodingError v = way.errors.total(1);
    table.rows.push_back({way.configuration.name,
                          known_number(way.size.k_bits > 0 ? way.size.k_bits : kMissing, 3),
                          error_cell(k, false), error_cell(k, true),
                          known_number(way.size.v_bits > 0 ? way.size.v_bits : kMissing, 3),
                          error_cell(v, false), error_cell(v, true)});
  }
  return table;
}

Plot quality_plot(const PredictionCosts& costs, PredictionFocus focus) {
  const bool by_divergence = focus == PredictionFocus::kDivergence;
  Plot plot{by_divergence ? "Divergence against size" : "Perplexity against size",
            {"bits per value, all keys and values", false},
            {by_divergence ? "mean KL divergence, nats" : "perplexity", by_divergence},
            {{"configurations", {}, false, false}}};
  for (const PredictionCost& way : costs.ways) {
    if (by_divergence && way.kld_mean <= 0) continue;  // dense: not shown on a logarithmic axis
    plot.series[0].points.push_back({way.size.bits_per_value,
                                     by_divergence ? way.kld_mean : way.perplexity,
                                     way.configuration.name});
  }
  return plot;
}

// The least error that any code with this many bits per value can have on independent Gaussian
// values.
Series gaussian_bound(double max_bits) {
  Series bound{"bound of a Gaussian source, 4^-bits", {}, true, true};
  const int last = std::max(2, static_cast<int>(std::ceil(max_bits)));
  for (int bits = 1; bits <= last; ++bits) {
    bound.points.push_back({static_cast<double>(bits), std::pow(4.0, -bits), ""});
  }
  return bound;
}

Plot error_plot(const PredictionCosts& costs) {
  Plot plot{"Squared error against bits",
            {"bits per quantized value", false},
            {"squared error, relative to the energy without the mean", true},
            {}};
  double max_bits = 0;
  for (std::size_t k_or_v = 0; k_or_v < kTensors.size(); ++k_or_v) {
    Series series{kTensors[k_or_v], {}, false, false};
    for (const PredictionCost& way : costs.ways) {
      const CodingError error = way.errors.total(k_or_v);
      const double bits = k_or_v == 0 ? way.size.k_bits : way.size.v_bits;
      if (error.error <= 0 || error.variance <= 0) continue;
      series.points.push_back({bits, error.relative_to_variance(), way.configuration.name});
      max_bits = std::max(max_bits, bits);
    }
    if (!series.points.empty()) plot.series.push_back(std::move(series));
  }
  if (!plot.series.empty()) plot.series.push_back(gaussian_bound(max_bits));
  return plot;
}

HeatMap error_map(const PredictionCost& way, std::size_t k_or_v) {
  HeatMap map{way.configuration.name + ": squared error of " + kTensors[k_or_v],
              "layer",
              "kv head",
              {},
              {},
              {},
              "relative to their energy",
              false,
              6};
  for (std::size_t layer = 0; layer < way.errors.n_layers(); ++layer) {
    map.rows.push_back(std::to_string(layer));
    map.values.emplace_back();
    for (std::size_t kv_head = 0; kv_head < way.errors.n_kv_heads(); ++kv_head) {
      const CodingError& error = way.errors.at(layer, k_or_v, kv_head);
      map.values.back().push_back(error.energy == 0 ? kMissing : error.relative());
    }
  }
  for (std::size_t kv_head = 0; kv_head < way.errors.n_kv_heads(); ++kv_head) {
    map.columns.push_back(std::to_string(kv_head));
  }
  return map;
}

Bars size_bars(const PredictionCosts& costs) {
  Bars bars{"Keys and values of a window", "bytes", {}, 0};
  for (const PredictionCost& way : costs.ways) {
    bars.bars.push_back({way.configuration.name,
                         {{"keys", static_cast<double>(way.size.k_bytes)},
                          {"values", static_cast<double>(way.size.v_bytes)}}});
  }
  return bars;
}

void add_error_figures(const PredictionCosts& costs, Report& report) {
  Table errors = error_table(costs);
  if (errors.rows.empty()) return;
  report.figures.emplace_back(std::move(errors));
  if (Plot plot = error_plot(costs); !plot.series.empty()) {
    report.figures.emplace_back(std::move(plot));
  }
  for (const PredictionCost& way : costs.ways) {
    for (std::size_t k_or_v = 0; k_or_v < kTensors.size(); ++k_or_v) {
      if (way.errors.total(k_or_v).energy > 0) report.figures.emplace_back(error_map(way, k_or_v));
    }
  }
}

std::vector<std::pair<std::string, std::string>> facts(const PredictionCosts& costs) {
  const std::string reading =
      !costs.activations ? "in chunks, products in f32"
      : *costs.activations == model::ActivationBits::k8
          ? "token by token, activations of 8 bits; the dense run in chunks"
          : "token by token, activations of 16 bits; the dense run in chunks";
  return {{"text length", std::to_string(costs.n_tokens) + " tokens"},
          {"reading", reading},
          {"windows", fmt::format("{} of {} tokens, {} predictions", costs.n_windows, costs.window,
                                  costs.n_predictions())},
          {"keys and values", costs.as_served ? "as served: quantized one token block at a time"
                                              : "as coded: all quantized and dequantized"},
          {"dense perplexity", costs.dense_perplexity_error > 0
                                   ? fmt::format("{:.4f} +- {:.4f}", costs.dense_perplexity,
                                                 costs.dense_perplexity_error)
                                   : fmt::format("{:.4f}", costs.dense_perplexity)}};
}

}  // namespace

Report predictions_report(const PredictionCosts& costs, PredictionFocus focus) {
  Report report;
  const bool by_divergence = focus == PredictionFocus::kDivergence;
  report.title = by_divergence ? "Divergence of predictions" : "Perplexity";
  report.facts = facts(costs);
  report.figures.emplace_back(by_divergence ? divergence_table(costs) : perplexity_table(costs));
  report.figures.emplace_back(quality_plot(costs, focus));
  report.figures.emplace_back(size_bars(costs));
  add_error_figures(costs, report);
  report.notes = {
      "Bits per value: all keys and values of a window, dense ones as f16 (those of the "
      "configuration f32 as f32). Quantized: only those of quantized token blocks, scales "
      "included.",
      "+-: one standard error, as if the predictions were independent. All configurations predict "
      "the same tokens, so their differences are more certain than each figure alone."};
  return report;
}

}  // namespace tqcache::eval
