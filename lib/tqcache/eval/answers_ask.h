#pragma once
// eval/answers_ask.h: a question put to a cache: what the model answers, and how likely it finds
// the answer that was expected.
//
// The cache is taken by value and grows with question and answer, as it would in use: what is full
// is packed, the tail is dense.

#include <cstdint>
#include <functional>
#include <span>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/eval/answers_dialogue.h"
#include "tqcache/model/decoder.h"

namespace tqcache::eval {

// Asked before every step; false ends the work with kInterrupted.
using KeepGoing = std::function<bool()>;

// The most likely tokens after `prompt`, up to `max_tokens` of them or one that ends the answer,
// which is not given.
//
// Requires: the prompt is not empty.
// Errors:   those of Decoder::prefill; kInterrupted.
Result<Ids> greedy_answer(model::Decoder& decoder, cache::Cache cache,
                          std::span<const std::int32_t> prompt, std::int64_t max_tokens,
                          const EndsAnswer& ends, const KeepGoing& keep_going);

struct Forced {
  bool all_likeliest = false;  // every expected token is the most likely one after those before
  double log_probability = 0;  // mean over the expected tokens, natural logarithm
};

// The expected tokens after `prompt`, whatever the model would say itself.
// Requires: neither is empty. Errors: as greedy_answer().
Result<Forced> forced_answer(model::Decoder& decoder, cache::Cache cache,
                             std::span<const std::int32_t> prompt,
                             std::span<const std::int32_t> expected, const KeepGoing& keep_going);

// The logarithm of the probability that `logits` give to a token.
// Requires: the token is one of them.
double log_probability(std::span<const float> logits, std::int32_t id);

}  // namespace tqcache::eval
