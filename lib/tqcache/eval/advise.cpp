#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "tqcache/eval.h"
#include "tqcache/model.h"

namespace tqcache::eval {
namespace {

using cache::Configuration;

constexpr std::size_t kRungsAtOnce = 3;

// The measurements on a ladder so far.
class Search {
 public:
  Search(std::span<const Rung> ladder, const MeasureConfigurations& measure)
      : ladder_(ladder), measure_(measure) {}

  // Measures these rungs; they share one dense run.
  Result<void> measure(std::span<const std::size_t> rungs) {
    std::vector<Configuration> asked;
    for (const std::size_t rung : rungs) {
      asked.insert(asked.end(), ladder_[rung].begin(), ladder_[rung].end());
    }
    TQC_TRY_ASSIGN(PredictionCosts costs, measure_(asked));
    std::size_t next = 0;
    for (const std::size_t rung : rungs) {
      for (std::size_t i = 0; i < ladder_[rung].size(); ++i) {
        found_.push_back({rung, std::move(costs.ways[next++])});
      }
    }
    costs.ways.clear();
    costs_ = std::move(costs);
    return {};
  }

  // Requires: the rung has been measured.
  double best_of(std::size_t rung) const {
    double best = 0;
    bool is_first = true;
    for (const Found& each : found_) {
      if (each.rung != rung) continue;
      best = is_first ? each.cost.kld_mean : std::min(best, each.cost.kld_mean);
      is_first = false;
    }
    return best;
  }

  // By size, the best of each size first.
  PredictionCosts costs() && {
    std::ranges::sort(found_, [](const Found& a, const Found& b) {
      return std::pair(a.rung, a.cost.kld_mean) < std::pair(b.rung, b.cost.kld_mean);
    });
    for (Found& each : found_) costs_.ways.push_back(std::move(each.cost));
    return std::move(costs_);
  }

 private:
  struct Found {
    std::size_t rung;
    PredictionCost cost;
  };

  std::span<const Rung> ladder_;
  const MeasureConfigurations& measure_;
  PredictionCosts costs_;  // without its ways, which are in found_
  std::vector<Found> found_;
};

// Up to kRungsAtOnce rungs that divide [first, last) into nearly equal parts.
std::vector<std::size_t> spread(std::size_t first, std::size_t last) {
  const std::size_t n = last - first;
  std::set<std::size_t> rungs;
  for (std::size_t i = 1; i <= kRungsAtOnce; ++i) {
    rungs.insert(first + std::min(n - 1, i * n / (kRungsAtOnce + 1)));
  }
  return {rungs.begin(), rungs.end()};
}

}  // namespace

std::vector<Rung> advice_ladder() {
  const auto way = [](int key_bits, int value_bits) {
    const std::string text =
        "k=mse:" + std::to_string(key_bits) + ",v=mse:" + std::to_string(value_bits);
    return cache::parse_configuration(text).value();
  };
  return {{way(2, 2)},
          {way(3, 2), way(2, 3)},
          {way(3, 3), way(4, 2)},
          {way(4, 3), way(3, 4)},
          {way(4, 4), way(5, 3)},
          {way(5, 4), way(4, 5)},
          {way(5, 5), way(6, 4)},
          {way(6, 5), way(5, 6)},
          {way(6, 6), way(8, 4)},
          {way(7, 6), way(6, 7)},
          {way(7, 7), way(8, 6)},
          {way(8, 7), way(7, 8)},
          {way(8, 8)}};
}

Result<Advice> advise_by_divergence(std::span<const Rung> ladder, double max_kld,
                                    const MeasureConfigurations& measure) {
  Search search(ladder, measure);
  std::size_t first = 0;             // all rungs before it are not good enough
  std::size_t last = ladder.size();  // it and all later rungs are good enough
  while (first < last) {
    const std::vector<std::size_t> rungs = spread(first, last);
    TQC_TRY(search.measure(rungs));
    const auto is_enough = [&](std::size_t rung) { return search.best_of(rung) <= max_kld; };
    const auto enough = std::ranges::find_if(rungs, is_enough);
    if (enough != rungs.begin()) first = *std::prev(enough) + 1;
    if (enough != rungs.end()) last = *enough;
  }
  Advice advice{std::move(search).costs(), {}};
  const auto& ways = advice.costs.ways;
  const auto found = std::ranges::find_if(
      ways, [&](const PredictionCost& way) { return way.kld_mean <= max_kld; });
  if (found != ways.end()) advice.choice = static_cast<std::size_t>(found - ways.begin());
  return advice;
}

Result<Advice> advise_by_size(std::span<const Rung> ladder, std::size_t n_fitting,
                              const MeasureConfigurations& measure) {
  Search search(ladder, measure);
  std::vector<std::size_t> rungs;
  std::size_t n_ways = 0;  // in the rungs that fit
  for (std::size_t rung = n_fitting < 2 ? 0 : n_fitting - 2; rung <= n_fitting; ++rung) {
    if (rung < ladder.size()) rungs.push_back(rung);
    if (rung < n_fitting) n_ways += ladder[rung].size();
  }
  TQC_TRY(search.measure(rungs));
  Advice advice{std::move(search).costs(), {}};
  const auto fitting = std::span(advice.costs.ways).first(n_ways);
  const auto best = std::ranges::min_element(fitting, {}, &PredictionCost::kld_mean);
  advice.choice = static_cast<std::size_t>(best - fitting.begin());
  return advice;
}

namespace {

Table size_table(const Advice& advice, std::span<const std::vector<CacheBytes>> sizes) {
  Table table{"Expected bytes of keys and values", {"configuration", "bits per value"}, {}};
  table.caption = "A file adds a few KB; its compression saves a few percent.";
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
  // The same layers as in window_size(): a sliding window counts with the tokens that it holds.
  std::uint64_t dense_values = 0;
  const std::vector<cache::LayerDesc> layers = cache::describe(empty).layers;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const cache::HeadShape heads = config.layer(static_cast<std::int64_t>(i)).heads;
    dense_values += static_cast<std::uint64_t>(2 * cache::tokens_held(layers[i], n_tokens) *
                                               heads.n_kv_heads * heads.head_dim);
  }
  return CacheBytes{n_tokens, size.k_bytes + size.v_bytes, 2 * dense_values};
}

Report advice_report(const Advice& advice, std::span<const std::vector<CacheBytes>> sizes) {
  PredictionCosts costs = advice.costs;
  for (PredictionCost& way : costs.ways)
    way.errors = {};  // `eval kld` shows them by layer and head
  Report report = predictions_report(costs, PredictionFocus::kDivergence);
  report.title = "Advice";
  const std::string choice =
      advice.choice ? costs.ways[*advice.choice].configuration.name : "none of those measured";
  report.facts.emplace_back("advice", choice);
  report.figures.insert(report.figures.begin() + 1, size_table(advice, sizes));
  return report;
}

}  // namespace tqcache::eval
