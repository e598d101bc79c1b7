#pragma once
// research/needle.h: the needle-in-a-haystack test: a sentence hidden in a long text, a question
// about it, and the share of right answers for each configuration of the cache.
//
// The prompt has exactly the wanted number of tokens:
//
//   user: Here is a long document. TEXT NEEDLE TEXT   assistant: I have read it.    (cached)
//   user: QUESTION                                    assistant:                    (asked)
//
// The text is a run of the haystack's tokens that begins with a paragraph. The needle is placed
// between two paragraphs near the wanted depth, or between two sentences. No other part of the
// prompt, including the question, contains its statement.
//
// As in real use, the document is read into a dense cache, the cache is converted, and the
// converted cache answers the question. The document is read once for all configurations, so that
// all of them answer the same questions about the same texts.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/model.h"
#include "tqcache/progress.h"
#include "tqcache/quantize.h"
#include "tqcache/report.h"
#include "tqcache/research/answers.h"
#include "tqcache/research/questions.h"

namespace tqcache::research {

struct Needle {
  std::string statement;  // the hidden sentence
  std::string question;
  std::string answer;  // the expected answer
  std::string value;   // part of any right answer, and not in the question
};

// A secret code of five digits that belongs to a city. The same seed gives the same needle.
Needle code_needle(std::uint64_t seed);

// A needle chosen by the user. An empty answer means the statement itself.
// Errors: kInvalidArgument if a text is empty or the question contains the answer.
Result<Needle> custom_needle(std::string statement, std::string question, std::string answer);

// A text as tokens, and the places between them where something can be inserted.
class Haystack {
 public:
  // Errors: those of Tokenizer::encode.
  static Result<Haystack> make(std::string_view text, const tokenizer::Tokenizer& tokenizer,
                               const KeepGoing& keep_going = {});

  const Ids& ids() const { return ids_; }
  std::int64_t n_tokens() const { return static_cast<std::int64_t>(ids_.size()); }
  const std::string& plain_text() const { return plain_text_; }  // plain_answer() of the text

  enum class Break : std::uint8_t { kNone, kSentence, kParagraph };
  // The break before token i, 0 <= i <= n_tokens(). Both ends of the text are paragraph breaks.
  Break break_before(std::int64_t i) const { return breaks_[static_cast<std::size_t>(i)]; }

  // The start of a run of `n` tokens, drawn by `seed` among the beginnings of paragraphs.
  // Requires: n <= n_tokens().
  std::int64_t draw_start(std::int64_t n, std::uint64_t seed) const;

  // The break nearest to `wanted` in [first, last]: a paragraph break if one is at most `reach`
  // tokens away, otherwise a sentence break, otherwise `wanted` itself.
  std::int64_t nearest_break(std::int64_t wanted, std::int64_t first, std::int64_t last,
                             std::int64_t reach) const;

 private:
  Ids ids_;
  std::vector<Break> breaks_;  // [n_tokens + 1]
  std::string plain_text_;
};

struct NeedlePrompt {
  Ids cached;
  Ids asked;
  std::int64_t needle_at = 0;   // position of the statement's first token in `cached`
  std::int64_t n_before = 0;    // tokens of the haystack before it
  std::int64_t n_haystack = 0;  // tokens of the haystack in all
};

struct NeedlePlace {
  std::int64_t length = 0;  // tokens of the whole prompt
  double depth = 0;         // percent of the text before the needle; 0: first, 100: last
  std::uint64_t seed = 0;   // of the run of the haystack
};

// Requires: 0 <= depth <= 100.
// Errors:   kInvalidArgument if the length leaves no space for text, or the haystack is too short
//           or already contains the needle; those of Tokenizer::encode.
Result<NeedlePrompt> place_needle(const Haystack& haystack, const tokenizer::Tokenizer& tokenizer,
                                  const Dialogue& dialogue, const Needle& needle,
                                  const NeedlePlace& place);

struct NeedleOptions {
  std::vector<std::int64_t> lengths;  // tokens of the prompt
  std::vector<double> depths;         // percent
  std::int64_t trials = 1;            // for each length and depth
  std::vector<cache::Configuration> configurations;
  std::uint64_t seed = 0;
  std::int64_t max_tokens = 32;  // of an answer
  std::optional<Needle> needle;  // absent: a new random code in each trial
  unsigned n_threads = 0;
};

// The scores of one configuration: [lengths][depths].
using NeedleGrid = std::vector<std::vector<AnswerScore>>;

struct NeedleResult {
  std::vector<NeedleGrid> grids;  // [configurations]
};

AnswerScore total(const NeedleGrid& grid);

// Checks without running the model that its context holds every length and the answer, that the
// haystack is long enough, and that the configurations suit the model.
// Errors: kInvalidArgument, kUnsupported.
Result<void> check_needles(const model::Model& model, const Haystack& haystack,
                           const Dialogue& dialogue, const NeedleOptions& options);

// Progress: tokens of documents read, over all trials.
// Errors:   as check_needles(); those of the decoder and of cache::convert; kInterrupted.
// Bytes:    the same options give the same result for any number of threads, on one kind of CPU.
// Memory:   the dense cache of one prompt in f32, two copies of it, and the model.
Result<NeedleResult> measure_needles(const model::Model& model, const Haystack& haystack,
                                     const Dialogue& dialogue, const NeedleOptions& options,
                                     const Progress& progress = {});

// A table of all configurations, a heat map of found shares for each, and these maps as a table.
eval::Report needle_report(const NeedleOptions& options, const NeedleResult& result);

}  // namespace tqcache::research
