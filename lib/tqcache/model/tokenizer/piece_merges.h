#pragma once
// model/tokenizer/piece_merges.h: the merge list that the scores of a SentencePiece vocabulary
// stand for.
//
// SentencePiece merges two neighbors when what they make together is in the vocabulary, the
// highest score first. Written as a list, that is every way to cut a token into two others.
//
// Source: google/sentencepiece src/bpe_model.cc; huggingface/transformers
// convert_slow_tokenizer.py, generate_merges, whose order among equal scores this has.

#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/model/tokenizer/merge_table.h"
#include "tqcache/model/tokenizer/vocabulary.h"

namespace tqcache::model {

inline constexpr std::size_t kMaxPieceBytes = 512;  // the longest in use have about 100

// Shapes: scores [vocabulary.size()].
// Errors: kCorrupt when the scores are not as many as tokens, or not finite; kTooLarge when a token
//         or the list is too long.
Result<std::vector<Merge>> merges_from_scores(const Vocabulary& vocabulary,
                                              const std::vector<double>& scores);

}  // namespace tqcache::model
