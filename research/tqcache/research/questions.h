#pragma once
// research/questions.h: questions to a model with a cache: the dialogue around them, the model's
// own answer, and the likelihood of the expected one.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "tqcache/cache.h"
#include "tqcache/decoder.h"
#include "tqcache/error.h"
#include "tqcache/model.h"
#include "tqcache/quantize.h"
#include "tqcache/tokenizer.h"

namespace tqcache::research {

using Ids = std::vector<std::int32_t>;

// The ids before and after the text of a turn. Stored as ids and not text, because a chat's markup
// consists of special tokens that no text can spell.
struct Dialogue {
  Ids begin = {};  // before the first turn
  Ids open_user, close_user;
  Ids open_assistant, close_assistant;
  Ids ask = {};           // opens the answer that is asked for; empty: as open_assistant
  bool one_line = false;  // an answer also ends with its line, not only at an end token
  std::string_view answer_start = {};  // expected answers begin with it: " ", or empty

  const Ids& open_answer() const { return ask.empty() ? open_assistant : ask; }
  Ids user(const Ids& text) const;
  Ids assistant(const Ids& text) const;
};

// Called before every decode step, and now and then while a text is encoded; false stops the work
// with kInterrupted. May be empty.
using KeepGoing = std::function<bool()>;

// The ids of a text; special tokens in it count as plain text.
Result<Ids> encode_text(const tokenizer::Tokenizer& tokenizer, std::string_view text,
                        const KeepGoing& keep_going = {});

// The day that a template learns if it writes one: results can be repeated on other days.
inline constexpr tokenizer::CivilTime kTemplateDay = {2026, 1, 1};

// The turns that a chat template writes: what stands around the texts of a conversation.
// Errors: those of Tokenizer::encode and ChatTemplate::render; kUnsupported (the template does not
//         write all texts of a conversation, or writes a user's first turn otherwise than others).
Result<Dialogue> template_dialogue(const tokenizer::Tokenizer& tokenizer,
                                   const tokenizer::ChatTemplate& chat_template);

// For a model without chat turns: the question, then "Answer:".
// Errors: those of Tokenizer::encode.
Result<Dialogue> plain_dialogue(const tokenizer::Tokenizer& tokenizer);

Ids join(std::initializer_list<Ids> parts);

// Whether a token ends an answer. Requires: both arguments outlive the function.
using EndsAnswer = std::function<bool(std::int32_t id)>;
EndsAnswer answer_end(const Dialogue& dialogue, const tokenizer::Tokenizer& tokenizer);

// The most likely tokens after `prompt`: up to `max_tokens`, or up to the token that ends the
// answer, which is not returned. The cache is taken by value and grows as in real use: full token
// blocks are quantized, the tail stays dense.
//
// Requires: the prompt is not empty.
// Errors:   those of Decoder::prefill; kInterrupted.
Result<Ids> greedy_answer(model::Decoder& decoder, cache::Cache cache,
                          std::span<const std::int32_t> prompt, std::int64_t max_tokens,
                          const EndsAnswer& ends, const KeepGoing& keep_going);

struct Forced {
  bool all_likeliest = false;  // every expected token is the most likely one after its predecessors
  double log_probability = 0;  // mean over the expected tokens, natural logarithm
};

// Feeds the expected tokens after `prompt`, whatever the model would predict (teacher forcing).
// Requires: both are not empty. Errors: as greedy_answer().
Result<Forced> forced_answer(model::Decoder& decoder, cache::Cache cache,
                             std::span<const std::int32_t> prompt,
                             std::span<const std::int32_t> expected, const KeepGoing& keep_going);

// The logarithm of the probability that `logits` give to a token.
// Requires: 0 <= id < logits.size().
double log_probability(std::span<const float> logits, std::int32_t id);

// ---- Checks for all evaluations of answers ----

// Errors: kInvalidArgument without configurations; those of cache::plan_layers for this model,
//         with the configuration's name.
Result<void> check_configurations(const model::Model& model,
                                  std::span<const cache::Configuration> configurations);

// Errors: kInvalidArgument if `n_tokens` and an answer of `n_answer` tokens exceed the model's
//         context.
Result<void> check_context(const model::ModelConfig& config, std::int64_t n_tokens,
                           std::int64_t n_answer);

// A copy of the cache with this configuration. Errors: those of cache::convert, with the
// configuration's name.
Result<cache::Cache> convert_copy(const cache::Cache& dense,
                                  const cache::Configuration& configuration, unsigned n_threads);

}  // namespace tqcache::research
