#include "tqcache/research/questions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "tqcache/quantize.h"
#include "tqcache/sampler.h"

namespace tqcache::research {
Ids Dialogue::user(const Ids& text) const { return join({open_user, text, close_user}); }

Ids Dialogue::assistant(const Ids& text) const {
  return join({open_assistant, text, close_assistant});
}

Result<Ids> encode_text(const tokenizer::Tokenizer& tokenizer, std::string_view text,
                        const KeepGoing& keep_going) {
  tokenizer::Tokenizer::EncodeOptions options;
  options.special = tokenizer::Tokenizer::Special::kAsText;
  options.keep_going = keep_going;
  return tokenizer.encode(text, options);
}

Result<Dialogue> template_dialogue(const tokenizer::Tokenizer& tokenizer,
                                   const tokenizer::ChatTemplate& chat_template) {
  using tokenizer::ChatRole;
  const tokenizer::ChatMessage messages[] = {
      {ChatRole::kUser, "x"}, {ChatRole::kAssistant, "x"}, {ChatRole::kUser, "x"}};
  // What stands between the texts.
  std::vector<Ids> between;
  std::size_t end = 0;
  std::string text;
  const auto add = [&](std::size_t to) -> Result<void> {
    tokenizer::Tokenizer::EncodeOptions options;
    options.at_beginning = end == 0;
    TQC_TRY_ASSIGN(Ids ids,
                   tokenizer.encode(std::string_view(text).substr(end, to - end), options));
    between.push_back(std::move(ids));
    return {};
  };
  for (std::size_t i = 0; i < std::size(messages); ++i) {
    TQC_TRY_ASSIGN(
        tokenizer::ChatText whole,
        chat_template.render(
            messages, {.named_tokens = tokenizer.named_tokens(), .now = kTemplateDay, .seek = i}));
    if (!whole.sought || whole.sought->begin < end) {
      return unsupported("the chat template does not write all texts of a conversation");
    }
    text = std::move(whole.text);
    TQC_TRY(add(whole.sought->begin));
    end = whole.sought->end;
  }
  TQC_TRY(add(text.size()));

  // A user's turn begins as the second one does, as far as the first one does, too.
  Dialogue dialogue;
  Ids& first = between[0];
  Ids& second = between[2];
  const auto [at_first, at_second] =
      std::mismatch(first.rbegin(), first.rend(), second.rbegin(), second.rend());
  dialogue.begin.assign(first.begin(), at_first.base());
  dialogue.open_user.assign(at_first.base(), first.end());
  dialogue.close_assistant.assign(second.begin(), at_second.base());
  if (dialogue.open_user.empty()) {
    return unsupported("the chat template writes a user's first turn otherwise than others");
  }
  dialogue.open_assistant = std::move(between[1]);
  dialogue.ask = std::move(between[3]);
  return dialogue;
}

Result<Dialogue> plain_dialogue(const tokenizer::Tokenizer& tokenizer) {
  Dialogue dialogue;
  TQC_TRY_ASSIGN(dialogue.close_user, encode_text(tokenizer, "\n"));
  TQC_TRY_ASSIGN(dialogue.open_assistant, encode_text(tokenizer, "Answer:"));
  TQC_TRY_ASSIGN(dialogue.close_assistant, encode_text(tokenizer, "\n\n"));
  dialogue.one_line = true;
  dialogue.answer_start = " ";
  return dialogue;
}

Ids join(std::initializer_list<Ids> parts) {
  Ids all;
  for (const Ids& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

EndsAnswer answer_end(const Dialogue& dialogue, const tokenizer::Tokenizer& tokenizer) {
  return [&dialogue, &tokenizer, end_tokens = tokenizer.end_tokens()](std::int32_t id) {
    if (std::ranges::binary_search(end_tokens, id)) return true;
    return dialogue.one_line && tokenizer.token_bytes(id).find('\n') != std::string::npos;
  };
}

namespace {

Result<void> check(const KeepGoing& keep_going) {
  if (!keep_going || keep_going()) return {};
  return interrupted_error();
}

// Wraps `keep_going` as a Progress, so that a long prompt can be interrupted, too.
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

Result<void> check_configurations(const model::Model& model,
                                  std::span<const cache::Configuration> configurations) {
  if (configurations.empty()) return invalid("no configuration given");
  TQC_TRY_ASSIGN(const cache::Cache empty, model::make_cache(model, Dtype::kF32));
  for (const cache::Configuration& each : configurations) {
    if (auto planned = cache::plan_layers(cache::describe(empty), each.options); !planned) {
      return in_context(each.name, std::move(planned).error());
    }
  }
  return {};
}

Result<void> check_context(const model::ModelConfig& config, std::int64_t n_tokens,
                           std::int64_t n_answer) {
  if (n_tokens + n_answer <= config.context_length) return {};
  return invalid(fmt::format(
      "the prompt has {} tokens and the answer up to {}; the model's context has only {}", n_tokens,
      n_answer, config.context_length));
}

Result<cache::Cache> convert_copy(const cache::Cache& dense,
                                  const cache::Configuration& configuration, unsigned n_threads) {
  cache::ConvertOptions options = configuration.options;
  options.n_threads = n_threads;
  auto converted = cache::convert(dense, options);
  if (!converted) return in_context(configuration.name, std::move(converted).error());
  return converted;
}

}  // namespace tqcache::research
