#include "tqcache/model/piece_merges.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tqcache/model/utf8.h"

namespace tqcache::model {
namespace {

struct Cut {
  Merge merge;
  double score;
};

std::string place(std::int64_t id) { return "token " + std::to_string(id); }

// All ways to cut the token into two, the shortest left part first.
Result<void> add_cuts(const Vocabulary& vocabulary, std::int32_t id, double score,
                      std::vector<Cut>& cuts) {
  const std::string_view bytes = vocabulary.token(id).bytes;
  if (bytes.size() > kMaxPieceBytes) {
    return Error{ErrorCode::kTooLarge, place(id) + ": " + std::to_string(bytes.size()) + " bytes"};
  }
  for (std::size_t i = first_character(bytes).n_bytes; i < bytes.size();
       i += first_character(bytes.substr(i)).n_bytes) {
    const std::optional<std::int32_t> left = vocabulary.find_ordinary(bytes.substr(0, i));
    const std::optional<std::int32_t> right = vocabulary.find_ordinary(bytes.substr(i));
    if (left && right) cuts.push_back({{*left, *right, id}, score});
  }
  if (cuts.size() <= kMaxMerges) return {};
  return Error{ErrorCode::kTooLarge, "more than " + std::to_string(kMaxMerges) + " merges"};
}

}  // namespace

Result<std::vector<Merge>> merges_from_scores(const Vocabulary& vocabulary,
                                              const std::vector<double>& scores) {
  if (scores.size() != static_cast<std::size_t>(vocabulary.size())) {
    return Error{ErrorCode::kCorrupt, "scores: " + std::to_string(scores.size()) + " for " +
                                          std::to_string(vocabulary.size()) + " tokens"};
  }
  std::vector<Cut> cuts;
  for (std::int64_t id = 0; id < vocabulary.size(); ++id) {
    const auto id32 = static_cast<std::int32_t>(id);
    const double score = scores[static_cast<std::size_t>(id)];
    if (!std::isfinite(score)) {
      return Error{ErrorCode::kCorrupt, "scores: " + place(id) + ": not a finite number"};
    }
    if (vocabulary.find_ordinary(vocabulary.token(id).bytes) != id32) continue;
    TQC_TRY(add_cuts(vocabulary, id32, score, cuts));
  }
  std::stable_sort(cuts.begin(), cuts.end(),
                   [](const Cut& a, const Cut& b) { return a.score > b.score; });
  std::vector<Merge> merges;
  merges.reserve(cuts.size());
  for (const Cut& cut : cuts) merges.push_back(cut.merge);
  return merges;
}

}  // namespace tqcache::model
