#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "tqcache/eval/advise.h"
#include "tqcache/eval/predictions_report.h"
#include "tqcache/eval/window_size.h"
#include "tqcache/model/loading/model.h"

namespace tqcache::eval {
namespace {

Table size_table(const Advice& advice, std::span<const std::vector<CacheBytes>> sizes) {
  Table table{"Expected bytes of keys and values", {"configuration", "bits a value"}, {}};
  table.caption = "A file adds a few KB, and its compression takes some percent off.";
  for (const CacheBytes& each : sizes.front()) {
    table.columns.push_back(std::to_string(each.n_tokens) + " tokens");
  }
  const auto add_row = [&](std::string name, double bits, const std::vector<CacheBytes>& row,
                           std::uint64_t CacheBytes::*bytes) {
    std::vector<Cell>& cells = table.rows.emplace_back();
    cells = {std::move(name), Number{bits, 3}};
    for (const CacheBytes& each : row) {
      cells.emplace_back(Number{static_cast<double>(each.*bytes), 0});
    }
  };
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const PredictionCost& way = advice.costs.ways[i];
    add_row(way.configuration.name, way.size.bits_per_packed_value, sizes[i], &CacheBytes::bytes);
  }
  add_row("dense, f16", 16, sizes.front(), &CacheBytes::dense_bytes);
  return table;
}

}  // namespace

Result<CacheBytes> cache_bytes(const model::ModelConfig& config, const cache::Identity& identity,
                               const cache::Configuration& configuration, std::int64_t n_tokens) {
  TQC_TRY_ASSIGN(const cache::Cache empty, model::make_cache(config, identity, Dtype::kF16));
  TQC_TRY_ASSIGN(const WindowSize size, window_size(empty, configuration, n_tokens));
  // Layers whose keys and values grow with the text; the others take the same in every
  // configuration.
  const std::int64_t n_growing = std::ranges::count_if(empty.layers, [](const cache::Layer& layer) {
    return std::holds_alternative<cache::AttentionLayer>(layer);
  });
  const auto dense_values =
      static_cast<std::uint64_t>(2 * n_tokens * n_growing * config.n_kv_heads * config.head_dim);
  return CacheBytes{n_tokens, size.k_bytes + size.v_bytes, 2 * dense_values};
}

Report advice_report(const Advice& advice, std::span<const std::vector<CacheBytes>> sizes) {
  PredictionCosts costs = advice.costs;
  for (PredictionCost& way : costs.ways) way.errors = {};  // by layer and head: `eval kld` has them
  Report report = predictions_report(costs, PredictionFocus::kDivergence);
  report.title = "Advice";
  const std::string choice =
      advice.choice ? costs.ways[*advice.choice].configuration.name : "none of those measured";
  report.facts.emplace_back("advice", choice);
  report.figures.insert(report.figures.begin() + 1, size_table(advice, sizes));
  return report;
}

}  // namespace tqcache::eval
