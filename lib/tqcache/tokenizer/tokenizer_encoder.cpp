#include "tqcache/tokenizer/tokenizer_encoder.h"

#include <algorithm>
#include <utility>

#include "tqcache/tokenizer/utf8.h"

namespace tqcache::tokenizer {

namespace {

// Most words of a text repeat, so the tokens of this many words of this length are cached.
constexpr std::size_t kMaxKnownWords = 1 << 16;
constexpr std::size_t kMaxKnownBytes = 48;

}  // namespace

Tokenizer::Encoder::Encoder(const State& tokenizer, const EncodeOptions& options)
    : tokenizer_(tokenizer), options_(options) {
  for (const Pretokenizer& pretokenizer : tokenizer.pretokenizers) {
    matchers_.emplace_back(pretokenizer);
  }
}

Result<std::vector<std::int32_t>> Tokenizer::Encoder::run(std::string_view text) {
  whole_ = text;
  const bool adds_begin = tokenizer_.adds_begin && options_.ends != Ends::kNone;
  const bool adds_end = tokenizer_.added_end && options_.ends == Ends::kBoth;
  if (adds_begin) ids_.push_back(*tokenizer_.begin_token);
  TQC_TRY(split(tokenizer_.before_normalizer,
                {text, options_.at_beginning, !options_.plain.empty()}, &Encoder::encode_raw));
  if (adds_end) ids_.push_back(*tokenizer_.added_end);
  return std::move(ids_);
}

// Splits the segment at special tokens, and passes the text between them to the next step.
Result<void> Tokenizer::Encoder::split(const SpecialSplitter& splitter, const Segment& segment,
                                       Step next) {
  std::size_t done = 0;
  std::size_t search = 0;
  while (const auto match = splitter.find(segment.text, search)) {
    search = match->end;
    if (stays_text(*match, segment)) continue;
    const Cut cut = cut_of(*match, segment.text, done);
    if (done < cut.begin) TQC_TRY((this->*next)(part(segment, done, cut.begin)));
    ids_.push_back(match->id);
    done = cut.end;
  }
  if (done == segment.text.size()) return {};
  return (this->*next)(part(segment, done, segment.text.size()));
}

// Source: huggingface/tokenizers tokenizer/added_vocabulary.rs, find_matches.
Tokenizer::Encoder::Cut Tokenizer::Encoder::cut_of(const SpecialSplitter::Match& match,
                                                   std::string_view text, std::size_t done) const {
  const Token& token = tokenizer_.vocabulary.token(match.id);
  Cut cut{match.begin, match.end};
  if (token.strips_left) {
    cut.begin = std::max(done, cut.begin - trailing_white_space(text.substr(0, cut.begin)));
  }
  if (token.strips_right) cut.end += leading_white_space(text.substr(cut.end));
  return cut;
}

Tokenizer::Encoder::Segment Tokenizer::Encoder::part(const Segment& segment, std::size_t begin,
                                                     std::size_t end) const {
  const std::string_view text = segment.text.substr(begin, end - begin);
  const bool is_whole = begin == 0 && end == segment.text.size();
  return {text, segment.begins && begin == 0,
          segment.has_plain && (is_whole || overlaps_plain(text))};
}

bool Tokenizer::Encoder::stays_text(const SpecialSplitter::Match& match,
                                    const Segment& segment) const {
  if (tokenizer_.vocabulary.token(match.id).kind != TokenKind::kControl) return false;
  if (options_.special == Special::kAsText) return true;
  return segment.has_plain &&
         overlaps_plain(segment.text.substr(match.begin, match.end - match.begin));
}

// After the normalizer the original position of the text is unknown: all of it may be plain.
bool Tokenizer::Encoder::overlaps_plain(std::string_view text) const {
  const bool is_raw =
      text.data() >= whole_.data() && text.data() + text.size() <= whole_.data() + whole_.size();
  if (!is_raw) return true;
  const auto begin = static_cast<std::size_t>(text.data() - whole_.data());
  const auto ends_before = [begin](const TextRange& range) { return range.end <= begin; };
  const auto range =
      std::partition_point(options_.plain.begin(), options_.plain.end(), ends_before);
  return range != options_.plain.end() && range->begin < begin + text.size();
}

Result<void> Tokenizer::Encoder::encode_raw(const Segment& segment) {
  if (tokenizer_.normalizer.empty()) return encode_normalized(segment);
  TQC_TRY_ASSIGN(const std::string normalized, normalize(tokenizer_.normalizer, segment.text));
  return encode_normalized({normalized, segment.begins, segment.has_plain});
}

Result<void> Tokenizer::Encoder::encode_normalized(const Segment& segment) {
  return split(tokenizer_.after_normalizer, segment, &Encoder::encode_words);
}

Result<void> Tokenizer::Encoder::encode_words(const Segment& segment) {
  if (!matchers_.empty()) return cut_by_pattern(segment.text, 0);
  const bool apart = tokenizer_.merger && tokenizer_.merger->cuts_words;
  split_words(tokenizer_.words, segment.text, segment.begins,
              [&](std::string_view word) { apart ? encode_words_apart(word) : encode_word(word); });
  return {};
}

Result<void> Tokenizer::Encoder::cut_by_pattern(std::string_view text, std::size_t pattern) {
  if (pattern + 1 == matchers_.size()) {
    return matchers_[pattern].split(text, [this](std::string_view word) { encode_word(word); });
  }
  Result<void> inner;
  TQC_TRY(matchers_[pattern].split(text, [&](std::string_view piece) {
    if (inner.ok()) inner = cut_by_pattern(piece, pattern + 1);
  }));
  return inner;
}

void Tokenizer::Encoder::encode_words_apart(std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = find_word_end(text);
    encode_word(text.substr(0, size));
    text.remove_prefix(size);
  }
}

void Tokenizer::Encoder::encode_word(std::string_view word) {
  if (word.size() > kMaxKnownBytes) return encode_piece(word);
  std::string key(word);
  const auto known = known_words_.find(key);
  if (known != known_words_.end()) {
    ids_.insert(ids_.end(), known->second.begin(), known->second.end());
    return;
  }
  const auto n_before = static_cast<std::ptrdiff_t>(ids_.size());
  encode_piece(word);
  if (known_words_.size() == kMaxKnownWords) return;
  known_words_.emplace(std::move(key),
                       std::vector<std::int32_t>(ids_.begin() + n_before, ids_.end()));
}

void Tokenizer::Encoder::encode_piece(std::string_view piece) {
  if (tokenizer_.unigram) return tokenizer_.unigram->encode(piece, unigram_scratch_, ids_);
  const PieceMerger& merger = *tokenizer_.merger;
  if (merger.ignore_merges) {
    if (const auto id = tokenizer_.vocabulary.find_ordinary(piece)) return ids_.push_back(*id);
  }
  merger.symbols.split(piece, tokenizer_.vocabulary, merge_scratch_);
  merger.merges.merge(merge_scratch_, ids_);
}

}  // namespace tqcache::tokenizer
