#include "tqcache/eval/advise.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

namespace tqcache::eval {
namespace {

using cache::Configuration;

constexpr std::size_t kRungsAtOnce = 3;

// What has been measured of a ladder.
class Search {
 public:
  Search(std::span<const Rung> ladder, const MeasureConfigurations& measure)
      : ladder_(ladder), measure_(measure) {}

  // All of these rungs over one dense run.
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

  // By size, the best of one first.
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
  PredictionCosts costs_;  // of the text; its ways are in found_
  std::vector<Found> found_;
};

// Up to kRungsAtOnce of [first, last), which cut it into parts of about one length.
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
  std::size_t first = 0;             // the rungs before it are not good enough
  std::size_t last = ladder.size();  // it is good enough, and so are those behind it
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
  std::size_t n_ways = 0;  // that fit
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

}  // namespace tqcache::eval
