#include "tqcache/eval/answers_ask.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "tqcache/model/sampler.h"

namespace tqcache::eval {
namespace {

Result<void> check(const KeepGoing& keep_going) {
  if (!keep_going || keep_going()) return {};
  return Error{ErrorCode::kInterrupted, "stopped"};
}

// As a Progress, so that a long prompt can be stopped too.
Progress asking(const KeepGoing& keep_going) {
  return [&keep_going](std::uint64_t, std::uint64_t) { return !keep_going || keep_going(); };
}

}  // namespace

Result<Ids> greedy_answer(model::Decoder& decoder, cache::Cache cache,
                          std::span<const std::int32_t> prompt, std::int64_t max_tokens,
                          const EndsAnswer& ends, const KeepGoing& keep_going) {
  assert(!prompt.empty());
  model::Sampler sampler{model::SamplerOptions{}};
  TQC_TRY_ASSIGN(std::span<const float> logits, decoder.prefill(cache, prompt, asking(keep_going)));
  Ids answer;
  while (std::ssize(answer) < max_tokens) {
    const std::int32_t id = sampler.next(logits);
    if (ends(id)) break;
    answer.push_back(id);
    if (std::ssize(answer) == max_tokens) break;
    TQC_TRY(check(keep_going));
    TQC_TRY_ASSIGN(logits, decoder.decode_step(cache, id));
  }
  return answer;
}

Result<Forced> forced_answer(model::Decoder& decoder, cache::Cache cache,
                             std::span<const std::int32_t> prompt,
                             std::span<const std::int32_t> expected, const KeepGoing& keep_going) {
  assert(!prompt.empty() && !expected.empty());
  model::Sampler sampler{model::SamplerOptions{}};
  TQC_TRY_ASSIGN(std::span<const float> logits, decoder.prefill(cache, prompt, asking(keep_going)));
  Forced forced = {.all_likeliest = true};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    forced.all_likeliest &= sampler.next(logits) == expected[i];
    forced.log_probability += log_probability(logits, expected[i]);
    if (i + 1 == expected.size()) break;
    TQC_TRY(check(keep_going));
    TQC_TRY_ASSIGN(logits, decoder.decode_step(cache, expected[i]));
  }
  forced.log_probability /= static_cast<double>(expected.size());
  return forced;
}

double log_probability(std::span<const float> logits, std::int32_t id) {
  const double max = static_cast<double>(*std::ranges::max_element(logits));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  return static_cast<double>(logits[static_cast<std::size_t>(id)]) - max - std::log(sum);
}

}  // namespace tqcache::eval
