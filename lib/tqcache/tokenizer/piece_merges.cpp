#include "tqcache/tokenizer/piece_merges.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "tqcache/tokenizer/utf8.h"

namespace tqcache::tokenizer {
namespace {

struct Cut {
  Merge merge;
  double score;
  std::size_t left;  // characters
  std::size_t right;
};

bool comes_before(const Cut& a, const Cut& b) {
  return std::tie(a.score, a.left, a.right) > std::tie(b.score, b.left, b.right);
}

std::size_t count_characters(std::string_view text) {
  std::size_t n = 0;
  for (; !text.empty(); ++n) text.remove_prefix(first_character(text).n_bytes);
  return n;
}

std::string place(std::int64_t id) { return "token " + std::to_string(id); }

// All ways to cut the token into two.
Result<void> add_cuts(const Vocabulary& vocabulary, std::int32_t id, double score,
                      std::vector<Cut>& cuts) {
  const std::string_view bytes = vocabulary.token(id).bytes;
  if (bytes.size() > kMaxPieceBytes) {
    return Error{ErrorCode::kTooLarge, place(id) + ": " + std::to_string(bytes.size()) + " bytes"};
  }
  const std::size_t n_characters = count_characters(bytes);
  std::size_t i = 0;
  for (std::size_t n = 1; n < n_characters; ++n) {
    i += first_character(bytes.substr(i)).n_bytes;
    const std::optional<std::int32_t> left = vocabulary.find_ordinary(bytes.substr(0, i));
    const std::optional<std::int32_t> right = vocabulary.find_ordinary(bytes.substr(i));
    if (left && right) cuts.push_back({{*left, *right, id}, score, n, n_characters - n});
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
  std::stable_sort(cuts.begin(), cuts.end(), comes_before);
  std::vector<Merge> merges;
  merges.reserve(cuts.size());
  for (const Cut& cut : cuts) merges.push_back(cut.merge);
  return merges;
}

}  // namespace tqcache::tokenizer
