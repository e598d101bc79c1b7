#pragma once
// eval/prediction_rows.h: the dense predictions of a window, kept while others are held against
// them.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/eval/divergence.h"

namespace tqcache::eval {

// One prediction of a coded run, beside the dense one. Not finite where either run's logits are
// not.
struct RowCost {
  double surprise = 0;  // at the token that does follow; nats
  double kld = 0;       // nats
  bool same_top = false;
};

// Shapes:  rows [n, vocab_size] of logits, next [n]: the tokens that follow.
// Bytes:   the same for any number of threads.
class PredictionRows {
 public:
  PredictionRows(std::size_t vocab_size, unsigned n_threads)
      : vocab_size_(vocab_size), n_threads_(n_threads) {}

  // Forgets the window before, and makes room for predictions that are kept.
  void begin_window(std::size_t n_kept);

  // Takes the dense predictions of the next tokens, and gives their surprises. Logits are kept only
  // if they are to be compared.
  std::vector<double> add(std::span<const float> rows, std::span<const std::int32_t> next,
                          bool keep);

  // Compares predictions from token `first` of the window on. Requires: those were kept.
  std::vector<RowCost> compare(std::size_t first, std::span<const float> rows,
                               std::span<const std::int32_t> next) const;

 private:
  std::size_t vocab_size_;
  unsigned n_threads_;
  std::vector<Softmax> softmaxes_;  // of each token
  std::vector<std::size_t> tops_;   // most probable tokens
  AlignedFloats logits_;            // [tokens, vocab_size], if kept
};

}  // namespace tqcache::eval
