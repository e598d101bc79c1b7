#include "tqcache/eval/needle_run.h"

#include <cmath>
#include <string>
#include <utility>

#include "tqcache/cache/convert.h"
#include "tqcache/eval/answers.h"
#include "tqcache/eval/answers_ask.h"
#include "tqcache/eval/answers_configurations.h"
#include "tqcache/eval/answers_draw.h"
#include "tqcache/eval/answers_progress.h"
#include "tqcache/model/decoder.h"

namespace tqcache::eval {
namespace {

struct Trial {
  Needle needle;
  NeedlePrompt prompt;
  Ids expected;
};

// A trial is drawn from what it is, so it stays the same whatever others are asked for.
Result<Trial> make_trial(const model::Model& model, const Haystack& haystack,
                         const Dialogue& dialogue, const NeedleOptions& options,
                         std::int64_t length, double depth, std::int64_t number) {
  const auto seed = seed_of({options.seed, static_cast<std::uint64_t>(length),
                             static_cast<std::uint64_t>(std::llround(depth * 1000)),
                             static_cast<std::uint64_t>(number)});
  Trial trial;
  trial.needle = options.needle ? *options.needle : code_needle(seed);
  TQC_TRY_ASSIGN(trial.prompt, place_needle(haystack, model.tokenizer, dialogue, trial.needle,
                                            {length, depth, seed_of({seed, 1})}));
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
      const std::int64_t answer = std::max(options.max_tokens, std::ssize(trial.expected));
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
  Pieces pieces(progress, tokens_to_read(options));
  for (std::size_t l = 0; l < options.lengths.size(); ++l) {
    for (std::size_t d = 0; d < options.depths.size(); ++d) {
      for (std::int64_t number = 0; number < options.trials; ++number) {
        TQC_TRY_ASSIGN(const Trial trial,
                       make_trial(model, haystack, dialogue, options, options.lengths[l],
                                  options.depths[d], number));
        TQC_TRY_ASSIGN(const cache::Cache dense, measurement.read(trial, pieces.piece()));
        pieces.finish(static_cast<std::uint64_t>(options.lengths[l]));
        for (std::size_t c = 0; c < options.configurations.size(); ++c) {
          TQC_TRY_ASSIGN(
              const AnswerScore score,
              measurement.ask(trial, dense, options.configurations[c], pieces.keep_going()));
          result.grids[c][l][d].add(score);
        }
      }
    }
  }
  return result;
}

}  // namespace tqcache::eval
