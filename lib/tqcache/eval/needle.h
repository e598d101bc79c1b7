#pragma once
// eval/needle.h: a sentence hidden in a long text, and the prompt that asks for it.
//
// The prompt has exactly as many tokens as wanted:
//
//   user: Here is a long document. TEXT NEEDLE TEXT   assistant: I have read it.    what is cached
//   user: QUESTION                                    assistant:                    what is asked
//
// The text is a run of the haystack's tokens that begins with a paragraph. The needle stands
// between two paragraphs near the wanted depth, or between two sentences, and nowhere else: neither
// the question nor anything else says what it says.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/eval/answers_dialogue.h"

namespace tqcache::eval {

struct Needle {
  std::string statement;  // what is hidden
  std::string question;
  std::string answer;  // what the model should say
  std::string value;   // what must stand in any right answer, and does not in the question
};

// A secret code of five digits, of a city. The same seed gives the same needle.
Needle code_needle(std::uint64_t seed);

// A needle of the user's own. An empty answer is the statement itself.
// Errors: kInvalidArgument when a text is empty, or the question holds the answer.
Result<Needle> custom_needle(std::string statement, std::string question, std::string answer);

// A text as tokens, and where one may put something between them.
class Haystack {
 public:
  // Errors: those of Tokenizer::encode.
  static Result<Haystack> make(std::string_view text, const tokenizer::Tokenizer& tokenizer);

  const Ids& ids() const { return ids_; }
  std::int64_t n_tokens() const { return static_cast<std::int64_t>(ids_.size()); }
  const std::string& plain_text() const { return plain_text_; }  // plain_answer() of the text

  enum class Break : std::uint8_t { kNone, kSentence, kParagraph };
  // What ends before token i, 0 <= i <= n_tokens(). The text begins and ends with a paragraph.
  Break break_before(std::int64_t i) const { return breaks_[static_cast<std::size_t>(i)]; }

  // Where a run of `n` tokens begins: with a paragraph, if there is such a one, drawn by `seed`.
  // Requires: n <= n_tokens().
  std::int64_t draw_start(std::int64_t n, std::uint64_t seed) const;

  // The break nearest to `wanted` in [first, last], a paragraph's if one is at most `reach` tokens
  // away, otherwise a sentence's, otherwise `wanted` itself.
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
  std::int64_t needle_at = 0;   // of the statement's first token in `cached`
  std::int64_t n_before = 0;    // tokens of the haystack before it
  std::int64_t n_haystack = 0;  // in all
};

struct NeedlePlace {
  std::int64_t length = 0;  // tokens of the whole prompt
  double depth = 0;         // percent of the text before the needle; 0: first, 100: last
  std::uint64_t seed = 0;   // of the run of the haystack
};

// Requires: 0 <= depth <= 100.
// Errors:   kInvalidArgument when the length leaves no room for any text, the haystack is too short
//           for it, or holds the needle already; those of Tokenizer::encode.
Result<NeedlePrompt> place_needle(const Haystack& haystack, const tokenizer::Tokenizer& tokenizer,
                                  const Dialogue& dialogue, const Needle& needle,
                                  const NeedlePlace& place);

}  // namespace tqcache::eval
