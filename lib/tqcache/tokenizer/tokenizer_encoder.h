#pragma once
// tokenizer/tokenizer_encoder.h: one call of Tokenizer::encode(). Not part of the public interface.
//
// The text goes down the steps in pieces that get smaller, and each step appends to the ids.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/tokenizer/tokenizer_state.h"

namespace tqcache::tokenizer {

class Tokenizer::Encoder {
 public:
  // Requires: `tokenizer` and what `options` points to outlive this.
  Encoder(const State& tokenizer, const EncodeOptions& options);

  // Requires: text is UTF-8.
  Result<std::vector<std::int32_t>> run(std::string_view text);

 private:
  // A part of the text, perhaps normalized.
  struct Segment {
    std::string_view text;
    bool begins;     // the whole text begins with it
    bool has_plain;  // some of it is to stay text
  };
  using Step = Result<void> (Encoder::*)(const Segment& segment);

  // Where a special token was found, with the white space that it takes away.
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
  void encode_words_apart(std::string_view text);
  void encode_word(std::string_view word);
  void encode_piece(std::string_view piece);

  const State& tokenizer_;
  const EncodeOptions& options_;
  std::vector<Pretokenizer::Matcher> matchers_;
  MergeTable::Scratch merge_scratch_;
  Unigram::Scratch unigram_scratch_;
  std::unordered_map<std::string, std::vector<std::int32_t>> known_words_;
  std::string_view whole_;
  std::vector<std::int32_t> ids_;
};

}  // namespace tqcache::tokenizer
