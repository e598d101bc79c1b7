#pragma once
// tokenizer/unigram.h: cuts a piece into the tokens whose scores have the highest sum.
//
// A score is the logarithm of a token's probability. A character that is no token of its own counts
// as the unknown token there, at a score below all others.
//
// Source: Kudo, arXiv 1804.10959, section 3.2; huggingface/tokenizers models/unigram/model.rs,
// encode_optimized, whose result this equals, ties included.

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
  // Errors: kCorrupt when the scores are not as many as tokens, or not finite, there is no
  //         unknown token, or bytes are asked for that have no token.
  static Result<Unigram> make(const Vocabulary& vocabulary, std::vector<double> scores,
                              const UnknownRule& unknown);

  // Memory that encode() uses again from piece to piece: the best way to each byte.
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
    std::vector<Part> path;  // backwards
  };

  // Appends the token ids of one piece to `ids`.
  // Requires: piece is UTF-8.
  // Errors:   those of `budget`.
  Result<void> encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids,
                      WorkBudget& budget) const;

 private:
  Unigram(PrefixIndex pieces, std::vector<double> scores, const UnknownRule& unknown);

  Result<void> find_best(std::string_view piece, Scratch& scratch, WorkBudget& budget) const;
  void trace_back(Scratch& scratch) const;
  void add_unknown(std::string_view text, std::vector<std::int32_t>& ids) const;

  PrefixIndex pieces_;
  std::vector<double> scores_;
  UnknownRule unknown_;
  double unknown_score_ = 0;
  std::vector<std::int32_t> byte_ids_;  // 256, when unknown characters become bytes
};

}  // namespace tqcache::tokenizer
