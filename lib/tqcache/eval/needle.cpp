#include "tqcache/eval/needle.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "tqcache/base/result.h"
#include "tqcache/eval/answers.h"
#include "tqcache/eval/answers_draw.h"

namespace tqcache::eval {
namespace {

constexpr std::string_view kIntroduction = "Here is a long document.\n\n";
constexpr std::string_view kRead = "I have read it.";
constexpr std::string_view kParagraphEnd = "\n\n";
constexpr std::int64_t kLeastText = 16;   // tokens of the haystack in a prompt
constexpr std::int64_t kReachShare = 20;  // the needle goes at most 1/20 of the text astray

// What has just ended, from the bytes read so far.
class BreakFinder {
 public:
  void read(std::string_view bytes) {
    for (const char c : bytes) read(c);
  }
  Haystack::Break ended(bool space_follows) const {
    if (line_ends_ >= 2) return Haystack::Break::kParagraph;
    const bool sentence = full_stop_ && (space_follows || in_space_);
    return sentence ? Haystack::Break::kSentence : Haystack::Break::kNone;
  }

 private:
  void read(char c) {
    const bool space = c == ' ' || c == '\t' || c == '\r' || c == '\n';
    if (c == '\n') ++line_ends_;
    if (!space) line_ends_ = 0;
    in_space_ = space;
    if (c == '.' || c == '!' || c == '?') full_stop_ = true;
    // A quotation mark or bracket may close after the full stop.
    const bool closes = c == '"' || c == '\'' || c == ')' || (c & 0x80) != 0;
    if (!space && !closes && c != '.' && c != '!' && c != '?') full_stop_ = false;
  }

  int line_ends_ = 0;
  bool full_stop_ = false;
  bool in_space_ = false;
};

bool begins_with_space(std::string_view bytes) {
  return !bytes.empty() && (bytes[0] == ' ' || bytes[0] == '\n');
}

std::vector<Haystack::Break> find_breaks(const Ids& ids, const tokenizer::Tokenizer& tokenizer) {
  std::vector<Haystack::Break> breaks = {Haystack::Break::kParagraph};
  BreakFinder finder;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    finder.read(tokenizer.token_bytes(ids[i]));
    const bool space_follows =
        i + 1 < ids.size() && begins_with_space(tokenizer.token_bytes(ids[i + 1]));
    breaks.push_back(finder.ended(space_follows));
  }
  breaks.back() = Haystack::Break::kParagraph;
  return breaks;
}

// All of the prompt but the haystack.
struct Frame {
  Ids before;  // the introduction, in its turn
  Ids needle;
  Ids after;  // the end of the turn, and the assistant's word
  Ids asked;

  std::int64_t size() const {
    return std::ssize(before) + std::ssize(needle) + std::ssize(after) + std::ssize(asked);
  }
};

Result<Frame> make_frame(const tokenizer::Tokenizer& tokenizer, const Dialogue& dialogue,
                         const Needle& needle) {
  const auto encode = [&](std::string_view text) { return encode_text(tokenizer, text); };
  TQC_TRY_ASSIGN(const Ids introduction, encode(kIntroduction));
  TQC_TRY_ASSIGN(const Ids statement, encode(needle.statement + std::string(kParagraphEnd)));
  TQC_TRY_ASSIGN(const Ids read, encode(kRead));
  TQC_TRY_ASSIGN(const Ids question, encode(needle.question));
  return Frame{join({dialogue.open_user, introduction}), statement,
               join({dialogue.close_user, dialogue.assistant(read)}),
               join({dialogue.user(question), dialogue.open_assistant})};
}

Result<void> check_room(const Haystack& haystack, const Frame& frame, std::int64_t n,
                        std::int64_t length) {
  if (n < kLeastText) {
    return invalid("a prompt of " + std::to_string(length) + " tokens has no room for a text: " +
                   "needle, question and what stands around them take " +
                   std::to_string(frame.size()));
  }
  if (n <= haystack.n_tokens()) return {};
  return invalid("the haystack has " + std::to_string(haystack.n_tokens()) +
                 " tokens; a prompt of " + std::to_string(length) + " takes " + std::to_string(n) +
                 " of it");
}

// How many of the `n` tokens from `start` on stand before the needle.
std::int64_t tokens_before(const Haystack& haystack, std::int64_t start, std::int64_t n,
                           double depth) {
  if (depth <= 0) return 0;
  if (depth >= 100) return n;
  const auto wanted = std::llround(depth / 100 * static_cast<double>(n));
  return haystack.nearest_break(start + wanted, start, start + n, n / kReachShare) - start;
}

}  // namespace

Needle code_needle(std::uint64_t seed) {
  Draw draw(seed);
  const std::string city(draw.one_of<std::string_view>(kCities));
  std::string code;
  for (int i = 0; i < 5; ++i) code += static_cast<char>('0' + draw.below(10));
  const std::string sentence = "The secret code of " + city + " is " + code + ".";
  return {sentence, "What is the secret code of " + city + "?", sentence, code};
}

Result<Needle> custom_needle(std::string statement, std::string question, std::string answer) {
  if (answer.empty()) answer = statement;
  for (const auto& [name, text] :
       {std::pair{"needle", &statement}, std::pair{"question", &question},
        std::pair{"answer", &answer}}) {
    if (plain_answer(*text).empty()) {
      return invalid(std::string("the ") + name + " has neither a letter nor a digit");
    }
  }
  if (match_answer(question, {&answer, 1}).found) return invalid("the question holds the answer");
  return Needle{std::move(statement), std::move(question), answer, answer};
}

Result<Haystack> Haystack::make(std::string_view text, const tokenizer::Tokenizer& tokenizer) {
  Haystack haystack;
  TQC_TRY_ASSIGN(haystack.ids_, encode_text(tokenizer, text));
  haystack.breaks_ = find_breaks(haystack.ids_, tokenizer);
  haystack.plain_text_ = plain_answer(text);
  return haystack;
}

std::int64_t Haystack::draw_start(std::int64_t n, std::uint64_t seed) const {
  const std::int64_t last = n_tokens() - n;
  const auto is_start = [&](std::int64_t i) { return break_before(i) == Break::kParagraph; };
  std::int64_t n_starts = 0;
  for (std::int64_t i = 0; i <= last; ++i) n_starts += is_start(i) ? 1 : 0;
  // There is one: a text begins with a paragraph.
  auto left = static_cast<std::int64_t>(Draw(seed).below(static_cast<std::uint64_t>(n_starts)));
  std::int64_t start = 0;
  while (!is_start(start) || left-- > 0) ++start;
  return start;
}

std::int64_t Haystack::nearest_break(std::int64_t wanted, std::int64_t first, std::int64_t last,
                                     std::int64_t reach) const {
  for (const Break kind : {Break::kParagraph, Break::kSentence}) {
    for (std::int64_t away = 0; away <= reach; ++away) {
      for (const std::int64_t i : {wanted - away, wanted + away}) {
        if (i >= first && i <= last && break_before(i) >= kind) return i;
      }
    }
  }
  return wanted;
}

Result<NeedlePrompt> place_needle(const Haystack& haystack, const tokenizer::Tokenizer& tokenizer,
                                  const Dialogue& dialogue, const Needle& needle,
                                  const NeedlePlace& place) {
  if (haystack.plain_text().find(plain_answer(needle.statement)) != std::string::npos) {
    return invalid("the haystack holds the needle already");
  }
  TQC_TRY_ASSIGN(const Frame frame, make_frame(tokenizer, dialogue, needle));
  std::int64_t n = place.length - frame.size();
  TQC_TRY(check_room(haystack, frame, n, place.length));
  const std::int64_t start = haystack.draw_start(n, place.seed);
  std::int64_t n_before = tokens_before(haystack, start, n, place.depth);
  Ids separator;
  if (haystack.break_before(start + n_before) != Haystack::Break::kParagraph) {
    // Text that is cut must not run into the needle: a blank line takes the place of its end.
    TQC_TRY_ASSIGN(separator, encode_text(tokenizer, kParagraphEnd));
    n -= std::ssize(separator);
    n_before = std::min(n_before, n);
  }
  const auto text = haystack.ids().begin() + start;
  const Ids before(text, text + n_before);
  const Ids after(text + n_before, text + n);
  NeedlePrompt prompt;
  prompt.cached = join({frame.before, before, separator, frame.needle, after, frame.after});
  prompt.asked = frame.asked;
  prompt.needle_at = std::ssize(frame.before) + n_before + std::ssize(separator);
  prompt.n_before = n_before;
  prompt.n_haystack = n;
  return prompt;
}

}  // namespace tqcache::eval
