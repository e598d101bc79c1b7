#include <cmath>
#include <string>
#include <utility>

#include "tqcache/eval/answers_report.h"
#include "tqcache/eval/needle_run.h"

namespace tqcache::eval {
namespace {

std::string depth_name(double depth) {
  std::string text = std::to_string(depth);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text + "%";
}

Cell number(double value, int decimals) { return Number{value, decimals}; }

Table summary(const NeedleOptions& options, const NeedleResult& result) {
  Table table = {"Needle", score_columns({"configuration"}), {}};
  for (std::size_t c = 0; c < result.grids.size(); ++c) {
    table.rows.push_back(score_row({options.configurations[c].name}, total(result.grids[c])));
  }
  return table;
}

HeatMap heat_map(const NeedleOptions& options, const std::string& name, const NeedleGrid& grid) {
  HeatMap map = found_map("Found, " + name, "tokens", "depth");
  for (const double depth : options.depths) map.columns.push_back(depth_name(depth));
  for (std::size_t l = 0; l < grid.size(); ++l) {
    add_found_row(map, std::to_string(options.lengths[l]), grid[l]);
  }
  return map;
}

Table by_length(const NeedleOptions& options, const NeedleResult& result) {
  Table table = {"By length", score_columns({"configuration", "tokens"}), {}};
  for (std::size_t c = 0; c < result.grids.size(); ++c) {
    for (std::size_t l = 0; l < options.lengths.size(); ++l) {
      table.rows.push_back(score_row(
          {options.configurations[c].name, number(static_cast<double>(options.lengths[l]), 0)},
          total({result.grids[c][l]})));
    }
  }
  return table;
}

// The heat maps in one table, for who cannot see them.
Table by_depth(const NeedleOptions& options, const NeedleResult& result) {
  Table table = {"Found by depth", {"configuration", "tokens"}, {}};
  for (const double depth : options.depths) table.columns.push_back(depth_name(depth));
  for (std::size_t c = 0; c < result.grids.size(); ++c) {
    for (std::size_t l = 0; l < options.lengths.size(); ++l) {
      std::vector<Cell> row = {options.configurations[c].name,
                               number(static_cast<double>(options.lengths[l]), 0)};
      for (const AnswerScore& cell : result.grids[c][l]) {
        row.push_back(number(cell.mean(cell.found), 2));
      }
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

}  // namespace

Report needle_report(const NeedleOptions& options, const NeedleResult& result) {
  Report report;
  report.title = "Needle in a haystack";
  report.facts = {{"trials of each length and depth", std::to_string(options.trials)},
                  {"seed", std::to_string(options.seed)}};
  report.figures.emplace_back(summary(options, result));
  if (options.lengths.size() > 1) report.figures.emplace_back(by_length(options, result));
  report.figures.emplace_back(by_depth(options, result));
  for (std::size_t c = 0; c < result.grids.size(); ++c) {
    report.figures.emplace_back(heat_map(options, options.configurations[c].name, result.grids[c]));
  }
  report.notes = {
      std::string(kScoreNote),
      "The last tokens of a document, up to 255, are in no full token block and stay dense: a "
      "needle "
      "that stands there, as one at the greatest depth does, costs nothing to keep."};
  return report;
}

}  // namespace tqcache::eval
