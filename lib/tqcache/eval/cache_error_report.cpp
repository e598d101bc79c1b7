#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include "tqcache/eval/cache_error.h"

namespace tqcache::eval {
namespace {

using cache::Difference;
using cache::LayerDifference;

Cell number(double value, int decimals) { return Number{value, decimals}; }

void add_difference(const std::string& layer, const std::string& head, const Difference& k,
                    const Difference& v, Table& table) {
  std::vector<Cell> row = {layer, head};
  for (const Difference& side : {k, v}) {
    row.push_back(number(side.relative_mse, 6));
    row.push_back(number(side.mean_cosine, 6));
    row.push_back(number(side.min_cosine, 6));
    row.push_back(number(side.max_abs, 4));
  }
  table.rows.push_back(std::move(row));
}

Table empty_table(std::string title) {
  return {std::move(title),
          {"layer", "kv head", "k rel. mse", "k cosine", "k least", "k max", "v rel. mse",
           "v cosine", "v least", "v max"},
          {}};
}

Table by_layer(const cache::CacheDifference& diff) {
  Table table = empty_table("Keys and values");
  for (const LayerDifference& layer : diff.layers) {
    add_difference(std::to_string(layer.layer), "all", layer.k, layer.v, table);
  }
  add_difference("all", "all", diff.k, diff.v, table);
  return table;
}

Table by_head(const cache::CacheDifference& diff) {
  Table table = empty_table("Keys and values by head");
  for (const LayerDifference& layer : diff.layers) {
    for (std::size_t head = 0; head < layer.k_heads.size(); ++head) {
      add_difference(std::to_string(layer.layer), std::to_string(head), layer.k_heads[head],
                     layer.v_heads[head], table);
    }
  }
  return table;
}

// Layers may have different numbers of heads: what is not there is NaN.
template <class LayerOf, class ValuesOf>
HeatMap heat_map(std::string title, std::string column_label, std::string unit,
                 const std::vector<LayerOf>& layers, ValuesOf values_of) {
  HeatMap map;
  map.title = std::move(title);
  map.row_label = "layer";
  map.column_label = std::move(column_label);
  map.unit = std::move(unit);
  map.decimals = 5;
  std::size_t n_columns = 0;
  for (const LayerOf& layer : layers) {
    map.rows.push_back(std::to_string(layer.layer));
    map.values.push_back(values_of(layer));
    n_columns = std::max(n_columns, map.values.back().size());
  }
  for (std::size_t i = 0; i < n_columns; ++i) map.columns.push_back(std::to_string(i));
  for (std::vector<double>& row : map.values) row.resize(n_columns, std::nan(""));
  return map;
}

void add_side_maps(const cache::CacheDifference& diff, Report& report) {
  for (const bool keys : {true, false}) {
    report.figures.emplace_back(
        heat_map(keys ? "Error of keys" : "Error of values", "kv head", "relative squared error",
                 diff.layers, [keys](const LayerDifference& layer) {
                   std::vector<double> values;
                   for (const Difference& head : keys ? layer.k_heads : layer.v_heads) {
                     values.push_back(head.relative_mse);
                   }
                   return values;
                 }));
  }
}

AttentionError mean(const std::vector<AttentionError>& heads) {
  AttentionError sum;
  for (const AttentionError& head : heads) {
    sum.weights_kl += head.weights_kl / static_cast<double>(heads.size());
    sum.output_error += head.output_error / static_cast<double>(heads.size());
    sum.n_queries = head.n_queries;
  }
  return sum;
}

Table attention_table(const std::vector<LayerAttentionError>& layers) {
  Table table = {"Attention", {"layer", "queries", "kl of weights", "error of output"}, {}};
  std::vector<AttentionError> means;
  for (const LayerAttentionError& layer : layers) means.push_back(mean(layer.heads));
  const auto add = [&](const std::string& name, const AttentionError& error) {
    table.rows.push_back({name, number(static_cast<double>(error.n_queries), 0),
                          number(error.weights_kl, 6), number(error.output_error, 6)});
  };
  for (std::size_t i = 0; i < layers.size(); ++i) add(std::to_string(layers[i].layer), means[i]);
  if (!means.empty()) add("mean", mean(means));
  return table;
}

void add_attention(const std::vector<LayerAttentionError>& layers, Report& report) {
  report.figures.emplace_back(attention_table(layers));
  const auto add = [&](std::string title, std::string unit, double AttentionError::*field) {
    report.figures.emplace_back(heat_map(std::move(title), "query head", std::move(unit), layers,
                                         [field](const LayerAttentionError& layer) {
                                           std::vector<double> values;
                                           for (const AttentionError& head : layer.heads) {
                                             values.push_back(head.*field);
                                           }
                                           return values;
                                         }));
  };
  add("Divergence of attention weights", "nats", &AttentionError::weights_kl);
  add("Error of attention output", "relative squared error", &AttentionError::output_error);
  report.notes.emplace_back(
      "Attention is that of the model's own queries, of the last tokens that both caches hold, "
      "each over the tokens up to itself. Its errors are means over query heads.");
}

}  // namespace

Report cache_report(const cache::CacheDifference& diff,
                    const std::optional<std::vector<LayerAttentionError>>& attention) {
  Report report;
  report.title = "Error of a cache";
  report.facts = {{"tokens compared", std::to_string(diff.n_tokens)},
                  {"of these known to be the same", std::to_string(diff.n_tokens_checked)}};
  report.figures.emplace_back(by_layer(diff));
  report.figures.emplace_back(by_head(diff));
  add_side_maps(diff, report);
  report.notes = {
      "Rel. mse: squared error over squared length, of all values together. Cosine: mean over head "
      "vectors; least: the head vector that is worst off; max: the largest error of one value."};
  if (!diff.arrays_equal) {
    report.notes.emplace_back("The state of layers without full attention differs.");
  }
  if (attention) add_attention(*attention, report);
  return report;
}

}  // namespace tqcache::eval
