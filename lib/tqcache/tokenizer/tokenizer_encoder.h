#pragma once
// tokenizer/tokenizer_encoder.h: the state of a Tokenizer and of one call of Tokenizer::encode().
// Not part of the public interface.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/tokenizer.h"
#include "tqcache/tokenizer/merge_table.h"
#include "tqcache/tokenizer/normalizer.h"
#include "tqcache/tokenizer/prefix_index.h"
#include "tqcache/tokenizer/pretokenizer.h"
#include "tqcache/tokenizer/unigram.h"
#include "tqcache/tokenizer/vocabulary.h"
#include "tqcache/tokenizer/work_budget.h"

namespace tqcache::tokenizer {

// Merging of bytes or of characters.
struct PieceMerger {
  Symbols symbols;
  MergeTable merges;
  bool ignore_merges;
  bool cuts_words;  // no token crosses the end of a word, so each word is merged alone
};

struct Tokenizer::State {
  Vocabulary vocabulary;
  std::optional<PieceMerger> merger;  // this or `unigram`
  std::optional<Unigram> unigram;
  std::vector<Pretokenizer> pretokenizers;  // each splits what the one before leaves; or `words`
  WordRules words;
  Normalizers normalizer;
  SpecialSplitter before_normalizer;
  SpecialSplitter after_normalizer;
  std::optional<std::int32_t> begin_token;
  bool adds_begin;
  std::optional<std::int32_t> added_end;
  bool drops_first_space;
  bool guesses_words;
  std::vector<std::int32_t> end_tokens;
  std::string chat_template;
  std::string tool_template;
  std::vector<std::pair<std::string, std::string>> named_tokens;
  Sha256 fingerprint;
  std::string no_bytes;  // for ids outside the vocabulary
};

// One call of Tokenizer::encode(). Each step splits the text into smaller pieces for the next one;
// the last step appends ids.
class Tokenizer::Encoder {
 public:
  // Requires: `tokenizer` and everything that `options` refers to outlive this.
  Encoder(const State& tokenizer, const EncodeOptions& options, std::size_t n_bytes);

  // Requires: text is UTF-8.
  Result<std::vector<std::int32_t>> run(std::string_view text);

 private:
  // A part of the text, normalized or not.
  struct Segment {
    std::string_view text;
    bool begins;     // it is the beginning of the whole text
    bool has_plain;  // part of it must not be parsed for tokens
  };
  using Step = Result<void> (Encoder::*)(const Segment& segment);

  // The range of a special token, including the white space that it strips.
  struct Cut {
    std::size_t begin;
    std::size_t end;
  };

  Result<void> split(const SpecialSplitter& splitter, const Segment& segment, Step next);
  Cut cut_of(const SpecialSplitter::Match& match, std::string_view text, std::size_t done) const;
  Segment part(const Segment& segment, std::size_t begin, std::size_t end) const;
  bool stays_text(const SpecialSplitter::Match& match, const Segment& segment) const;
  bool overlaps_plain(std::string_view text) const;

  Result<void> encode_raw(const Segment& segment);
  Result<void> encode_normalized(const Segment& segment);
  Result<void> encode_words(const Segment& segment);
  Result<void> cut_by_pattern(std::string_view text, std::size_t pattern);
  Result<void> encode_words_apart(std::string_view text);
  Result<void> encode_word(std::string_view word);
  Result<void> encode_piece(std::string_view piece);

  const State& tokenizer_;
  const EncodeOptions& options_;
  WorkBudget budget_;
  std::vector<Pretokenizer::Matcher> matchers_;
  MergeTable::Scratch merge_scratch_;
  Unigram::Scratch unigram_scratch_;
  std::unordered_map<std::string, std::vector<std::int32_t>, TextHash> known_words_;
  std::string_view whole_;
  std::vector<std::int32_t> ids_;
};

}  // namespace tqcache::tokenizer
