#include "tqcache/eval/prediction_rows.h"

#include <algorithm>
#include <functional>

#include "tqcache/base/threads.h"

namespace tqcache::eval {
namespace {

constexpr std::size_t kRowsPerPiece = 8;  // so that scratch memory is made for some rows at a time

// Calls body(row, scratch) for every row.
void for_rows(std::size_t n, unsigned n_threads,
              const std::function<void(std::size_t, std::vector<float>&)>& body) {
  const std::size_t n_pieces = (n + kRowsPerPiece - 1) / kRowsPerPiece;
  parallel_for(n_pieces, n_threads, [&](std::size_t piece) {
    std::vector<float> scratch;
    const std::size_t first = piece * kRowsPerPiece;
    for (std::size_t row = first; row < std::min(first + kRowsPerPiece, n); ++row) {
      body(row, scratch);
    }
  });
}

}  // namespace

void PredictionRows::begin_window(std::size_t n_kept) {
  softmaxes_.clear();
  tops_.clear();
  logits_.clear();
  logits_.reserve(n_kept * vocab_size_);
}

std::vector<double> PredictionRows::add(std::span<const float> rows,
                                        std::span<const std::int32_t> next, bool keep) {
  const std::size_t first = softmaxes_.size();
  softmaxes_.resize(first + next.size());
  tops_.resize(first + next.size());
  std::vector<double> surprises(next.size());
  for_rows(next.size(), n_threads_, [&](std::size_t i, std::vector<float>& scratch) {
    const auto row = rows.subspan(i * vocab_size_, vocab_size_);
    softmaxes_[first + i] = softmax_of(row, scratch);
    tops_[first + i] = most_probable(row, softmaxes_[first + i]);
    surprises[i] = surprise(row, softmaxes_[first + i], next[i]);
  });
  if (keep) logits_.insert(logits_.end(), rows.begin(), rows.end());
  return surprises;
}

std::vector<RowCost> PredictionRows::compare(std::size_t first, std::span<const float> rows,
                                             std::span<const std::int32_t> next) const {
  std::vector<RowCost> costs(next.size());
  for_rows(next.size(), n_threads_, [&](std::size_t i, std::vector<float>& scratch) {
    const std::size_t token = first + i;
    const auto dense = std::span(logits_).subspan(token * vocab_size_, vocab_size_);
    const auto row = rows.subspan(i * vocab_size_, vocab_size_);
    const Softmax softmax = softmax_of(row, scratch);
    costs[i].surprise = surprise(row, softmax, next[i]);
    costs[i].kld = divergence(dense, softmaxes_[token], row, softmax, scratch);
    costs[i].same_top = most_probable(row, softmax) == tops_[token];
  });
  return costs;
}

}  // namespace tqcache::eval
