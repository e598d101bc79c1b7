#pragma once
// tokenizer/unigram.h: segmentation of a piece into the tokens with the highest sum of scores.
//
// A score is the logarithm of a token's probability. A character without its own token counts as
// the unknown token, with a score below all others.
//
// Source: Kudo, arXiv 1804.10959, section 3.2; huggingface/tokenizers models/unigram/model.rs,
//         encode_optimized, with the same result, ties included.

#include <cstdint>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/tokenizer/merge_table.h"
#include "tqcache/tokenizer/prefix_index.h"
#include "tqcache/tokenizer/vocabulary.h"

namespace tqcache::tokenizer {

class Unigram {
 public:
  // Shapes: scores [vocabulary.size()].
  // Errors: kCorrupt when the number of scores and tokens differs, a score is not finite, there is
  //         no unknown token, or bytes are requested that have no token.
  static Result<Unigram> make(const Vocabulary& vocabulary, std::vector<double> scores,
                              const UnknownRule& unknown);

  // Memory that encode() reuses for every piece: the best path to each byte.
  struct Scratch {
    struct Step {
      double score;
      std::size_t from;
      std::int32_t id;
    };
    struct Part {
      std::size_t begin;
      std::size_t end;
      std::int32_t id;
    };
    std::vector<Step> best;
    std::vector<Part> path;  // in reverse order
  };

  // Appends the token ids of one piece to `ids`. Requires: piece is UTF-8.
  void encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  Unigram(PrefixIndex pieces, std::vector<double> scores, const UnknownRule& unknown);

  void find_best(std::string_view piece, Scratch& scratch) const;
  void trace_back(Scratch& scratch) const;
  void add_unknown(std::string_view text, std::vector<std::int32_t>& ids) const;

  PrefixIndex pieces_;
  std::vector<double> scores_;
  UnknownRule unknown_;
  double unknown_score_ = 0;
  std::vector<std::int32_t> byte_ids_;  // 256, if unknown characters become bytes
};

}  // namespace tqcache::tokenizer
