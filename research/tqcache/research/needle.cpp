#include "tqcache/research/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

#include "tqcache/decoder.h"
#include "tqcache/error.h"
#include "tqcache/eval/random_choice.h"
#include "tqcache/eval/total_progress.h"
#include "tqcache/quantize.h"
#include "tqcache/research/answers.h"
#include "tqcache/research/questions.h"

namespace tqcache::research {
namespace {

constexpr std::string_view kIntroduction = "Here is a long document.\n\n";
constexpr std::string_view kRead = "I have read it.";
constexpr std::string_view kParagraphEnd = "\n\n";
constexpr std::int64_t kLeastText = 16;   // tokens of the haystack in a prompt
constexpr std::int64_t kReachShare = 20;  // the needle moves by at most 1/20 of the text

// Finds the ends of sentences and paragraphs in the bytes read so far.
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
    // A quotation mark or bracket may follow the full stop.
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

// The prompt without the haystack.
struct Frame {
  Ids before;  // the beginning of the turn and the introduction
  Ids needle;
  Ids after;  // the end of the turn, and the assistant's reply
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
  return Frame{join({dialogue.begin, dialogue.open_user, introduction}), statement,
               join({dialogue.close_user, dialogue.assistant(read)}),
               join({dialogue.user(question), dialogue.open_answer()})};
}

Result<void> check_room(const Haystack& haystack, const Frame& frame, std::int64_t n,
                        std::int64_t length) {
  if (n < kLeastText) {
    return invalid(
        fmt::format("a prompt of {} tokens has no room for a text: needle, question and the turns "
                    "around them take {}",
                    length, frame.size()));
  }
  if (n <= haystack.n_tokens()) return {};
  return invalid(fmt::format("the haystack has {} tokens; a prompt of {} tokens needs {} of them",
                             haystack.n_tokens(), length, n));
}

// The number of tokens before the needle, out of the `n` tokens from `start` on.
std::int64_t tokens_before(const Haystack& haystack, std::int64_t start, std::int64_t n,
                           double depth) {
  if (depth <= 0) return 0;
  if (depth >= 100) return n;
  const auto wanted = std::llround(depth / 100 * static_cast<double>(n));
  return haystack.nearest_break(start + wanted, start, start + n, n / kReachShare) - start;
}

}  // namespace

Needle code_needle(std::uint64_t seed) {
  eval::Draw draw(seed);
  const std::string city(draw.one_of<std::string_view>(eval::kCities));
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
  if (match_answer(question, {&answer, 1}).found)
    return invalid("the question contains the answer");
  return Needle{std::move(statement), std::move(question), answer, answer};
}

Result<Haystack> Haystack::make(std::string_view text, const tokenizer::Tokenizer& tokenizer,
                                const KeepGoing& keep_going) {
  Haystack haystack;
  TQC_TRY_ASSIGN(haystack.ids_, encode_text(tokenizer, text, keep_going));
  haystack.breaks_ = find_breaks(haystack.ids_, tokenizer);
  haystack.plain_text_ = plain_answer(text);
  return haystack;
}

std::int64_t Haystack::draw_start(std::int64_t n, std::uint64_t seed) const {
  const std::int64_t last = n_tokens() - n;
  const auto is_start = [&](std::int64_t i) { return break_before(i) == Break::kParagraph; };
  std::int64_t n_starts = 0;
  for (std::int64_t i = 0; i <= last; ++i) n_starts += is_start(i) ? 1 : 0;
  // At least one exists: the text begins with a paragraph.
  auto left =
      static_cast<std::int64_t>(eval::Draw(seed).below(static_cast<std::uint64_t>(n_starts)));
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
    return invalid("the haystack already contains the needle");
  }
  TQC_TRY_ASSIGN(const Frame frame, make_frame(tokenizer, dialogue, needle));
  std::int64_t n = place.length - frame.size();
  TQC_TRY(check_room(haystack, frame, n, place.length));
  const std::int64_t start = haystack.draw_start(n, place.seed);
  std::int64_t n_before = tokens_before(haystack, start, n, place.depth);
  Ids separator;
  if (haystack.break_before(start + n_before) != Haystack::Break::kParagraph) {
    // A blank line separates truncated text from the needle and replaces the end of the text.
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

namespace {

struct Trial {
  Needle needle;
  NeedlePrompt prompt;
  Ids expected;
};

// The seed of a trial depends only on its own length, depth and number, not on the other trials.
Result<Trial> make_trial(const model::Model& model, const Haystack& haystack,
                         const Dialogue& dialogue, const NeedleOptions& options,
                         std::int64_t length, double depth, std::int64_t number) {
  const auto seed = eval::seed_of({options.seed, static_cast<std::uint64_t>(length),
                                   static_cast<std::uint64_t>(std::llround(depth * 1000)),
                                   static_cast<std::uint64_t>(number)});
  Trial trial;
  trial.needle = options.needle ? *options.needle : code_needle(seed);
  TQC_TRY_ASSIGN(trial.prompt, place_needle(haystack, model.tokenizer, dialogue, trial.needle,
                                            {length, depth, eval::seed_of({seed, 1})}));
  const std::string answer = std::string(dialogue.answer_start) + trial.needle.answer;
  TQC_TRY_ASSIGN(trial.expected, encode_text(model.tokenizer, answer));
  return trial;
}

class Measurement {
 public:
  Measurement(const model::Model& model, const Dialogue& dialogue, const NeedleOptions& options)
      : model_(model),
        options_(options),
        ends_(answer_end(dialogue, model.tokenizer)),
        decoder_(model, options.n_threads) {}

  Result<cache::Cache> read(const Trial& trial, const Progress& progress) {
    TQC_TRY_ASSIGN(cache::Cache cache, model::make_cache(model_, Dtype::kF32));
    TQC_TRY(decoder_.prefill(cache, trial.prompt.cached, progress));
    return cache;
  }

  Result<AnswerScore> ask(const Trial& trial, const cache::Cache& dense,
                          const cache::Configuration& configuration, const KeepGoing& keep_going) {
    TQC_TRY_ASSIGN(cache::Cache cache, convert_copy(dense, configuration, options_.n_threads));
    TQC_TRY_ASSIGN(const Ids ids, greedy_answer(decoder_, cache, trial.prompt.asked,
                                                options_.max_tokens, ends_, keep_going));
    TQC_TRY_ASSIGN(
        const Forced forced,
        forced_answer(decoder_, std::move(cache), trial.prompt.asked, trial.expected, keep_going));
    const std::string answer = model_.tokenizer.decode(ids);
    AnswerScore score = {.trials = 1};
    score.exact = match_answer(answer, {&trial.needle.answer, 1}).exact;
    score.found = match_answer(answer, {&trial.needle.value, 1}).found;
    score.forced = forced.all_likeliest;
    score.log_probability = forced.log_probability;
    return score;
  }

 private:
  const model::Model& model_;
  const NeedleOptions& options_;
  EndsAnswer ends_;
  model::Decoder decoder_;
};

std::uint64_t tokens_to_read(const NeedleOptions& options) {
  std::uint64_t sum = 0;
  for (const std::int64_t length : options.lengths) sum += static_cast<std::uint64_t>(length);
  return sum * options.depths.size() * static_cast<std::uint64_t>(options.trials);
}

}  // namespace

AnswerScore total(const NeedleGrid& grid) {
  AnswerScore sum;
  for (const auto& row : grid) {
    for (const AnswerScore& cell : row) sum.add(cell);
  }
  return sum;
}

Result<void> check_needles(const model::Model& model, const Haystack& haystack,
                           const Dialogue& dialogue, const NeedleOptions& options) {
  TQC_TRY(check_configurations(model, options.configurations));
  for (const std::int64_t length : options.lengths) {
    for (const double depth : options.depths) {
      TQC_TRY_ASSIGN(const Trial trial,
                     make_trial(model, haystack, dialogue, options, length, depth, 0));
      const std::int64_t answer =
          std::max<std::int64_t>(options.max_tokens, std::ssize(trial.expected));
      TQC_TRY(check_context(model.config, length, answer));
    }
  }
  return {};
}

Result<NeedleResult> measure_needles(const model::Model& model, const Haystack& haystack,
                                     const Dialogue& dialogue, const NeedleOptions& options,
                                     const Progress& progress) {
  TQC_TRY(check_needles(model, haystack, dialogue, options));
  const NeedleGrid empty(options.lengths.size(), std::vector<AnswerScore>(options.depths.size()));
  NeedleResult result = {.grids = {options.configurations.size(), empty}};
  Measurement measurement(model, dialogue, options);
  eval::TotalProgress runs(progress, tokens_to_read(options));
  for (std::size_t l = 0; l < options.lengths.size(); ++l) {
    for (std::size_t d = 0; d < options.depths.size(); ++d) {
      for (std::int64_t number = 0; number < options.trials; ++number) {
        TQC_TRY_ASSIGN(const Trial trial,
                       make_trial(model, haystack, dialogue, options, options.lengths[l],
                                  options.depths[d], number));
        TQC_TRY_ASSIGN(const cache::Cache dense, measurement.read(trial, runs.next_run()));
        runs.finish_run(static_cast<std::uint64_t>(options.lengths[l]));
        for (std::size_t c = 0; c < options.configurations.size(); ++c) {
          TQC_TRY_ASSIGN(
              const AnswerScore score,
              measurement.ask(trial, dense, options.configurations[c], runs.keep_going()));
          result.grids[c][l][d].add(score);
        }
      }
    }
  }
  return result;
}

namespace {

std::string depth_name(double depth) {
  std::string text = std::to_string(depth);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text + "%";
}

eval::Table summary(const NeedleOptions& options, const NeedleResult& result) {
  eval::Table table = {"Needle", score_columns({"configuration"}), {}};
  for (std::size_t c = 0; c < result.grids.size(); ++c) {
    table.rows.push_back(score_row({options.configurations[c].name}, total(result.grids[c])));
  }
  return table;
}

eval::HeatMap heat_map(const NeedleOptions& options, const std::string& name,
                       const NeedleGrid& grid) {
  eval::HeatMap map = found_map("Found, " + name, "tokens", "depth");
  for (const double depth : options.depths) map.columns.push_back(depth_name(depth));
  for (std::size_t l = 0; l < grid.size(); ++l) {
    add_found_row(map, std::to_string(options.lengths[l]), grid[l]);
  }
  return map;
}

eval::Table by_length(const NeedleOptions& options, const NeedleResult& result) {
  eval::Table table = {"By length", score_columns({"configuration", "tokens"}), {}};
  for (std::size_t c = 0; c < result.grids.size(); ++c) {
    for (std::size_t l = 0; l < options.lengths.size(); ++l) {
      table.rows.push_back(score_row({options.configurations[c].name,
                                      eval::Number{static_cast<double>(options.lengths[l]), 0}},
                                     total({result.grids[c][l]})));
    }
  }
  return table;
}

// The heat maps as one table, for text output.
eval::Table by_depth(const NeedleOptions& options, const NeedleResult& result) {
  eval::Table table = {"Found by depth", {"configuration", "tokens"}, {}};
  for (const double depth : options.depths) table.columns.push_back(depth_name(depth));
  for (std::size_t c = 0; c < result.grids.size(); ++c) {
    for (std::size_t l = 0; l < options.lengths.size(); ++l) {
      std::vector<eval::Cell> row = {options.configurations[c].name,
                                     eval::Number{static_cast<double>(options.lengths[l]), 0}};
      for (const AnswerScore& cell : result.grids[c][l]) {
        row.push_back(eval::Number{cell.mean(cell.found), 2});
      }
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

}  // namespace

eval::Report needle_report(const NeedleOptions& options, const NeedleResult& result) {
  eval::Report report;
  report.title = "Needle in a haystack";
  report.facts = {{"trials per length and depth", std::to_string(options.trials)},
                  {"seed", std::to_string(options.seed)}};
  report.figures.emplace_back(summary(options, result));
  if (options.lengths.size() > 1) report.figures.emplace_back(by_length(options, result));
  report.figures.emplace_back(by_depth(options, result));
  for (std::size_t c = 0; c < result.grids.size(); ++c) {
    report.figures.emplace_back(heat_map(options, options.configurations[c].name, result.grids[c]));
  }
  report.notes = {std::string(kScoreNote),
                  "The last tokens of a document, up to 255, fill no token block and stay dense. A "
                  "needle among "
                  "them, as at the greatest depth, is therefore not affected by quantization."};
  return report;
}

}  // namespace tqcache::research
