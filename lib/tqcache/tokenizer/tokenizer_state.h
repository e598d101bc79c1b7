#pragma once
// tokenizer/tokenizer_state.h: what a Tokenizer holds. Not part of the public interface.

#include <optional>
#include <string>
#include <vector>

#include "tqcache/tokenizer/merge_table.h"
#include "tqcache/tokenizer/normalizer.h"
#include "tqcache/tokenizer/pretokenizer.h"
#include "tqcache/tokenizer/special_splitter.h"
#include "tqcache/tokenizer/symbols.h"
#include "tqcache/tokenizer/tokenizer.h"
#include "tqcache/tokenizer/unigram.h"
#include "tqcache/tokenizer/vocabulary.h"
#include "tqcache/tokenizer/word_rules.h"

namespace tqcache::tokenizer {

// Merging: of bytes or of characters.
struct PieceMerger {
  Symbols symbols;
  MergeTable merges;
  bool ignore_merges;
  bool cuts_words;  // no token goes on behind the end of a word: each is merged by itself
};

struct Tokenizer::State {
  Vocabulary vocabulary;
  std::optional<PieceMerger> merger;  // this or `unigram`
  std::optional<Unigram> unigram;
  std::vector<Pretokenizer> pretokenizers;  // each cuts what the one before leaves; none: `words`
  WordRules words;
  Normalizers normalizer;
  SpecialSplitter before_normalizer;
  SpecialSplitter after_normalizer;
  std::optional<std::int32_t> begin_token;
  bool adds_begin;
  std::optional<std::int32_t> added_end;
  bool drops_first_space;
  std::vector<std::int32_t> end_tokens;
  std::string chat_template;
  Sha256 fingerprint;
  std::string no_bytes;  // of ids outside the vocabulary
};

}  // namespace tqcache::tokenizer
