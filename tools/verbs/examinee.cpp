#include "verbs/examinee.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "cli/cache_io.h"
#include "cli/common_flags.h"
#include "cli/model_facts.h"
#include "cli/terminal.h"
#include "tqcache/bytes.h"

namespace tqcache::cli {
namespace {

constexpr std::uint64_t kMaxTextBytes = std::uint64_t{256} << 20;
constexpr std::size_t kMaxNumbers = 100;
constexpr int kDefaultSteps = 4;  // of a range without a number of steps

Result<research::Dialogue> chatml_dialogue(const tokenizer::Tokenizer& tokenizer) {
  constexpr auto kParse = tokenizer::Tokenizer::Special::kParse;
  research::Dialogue dialogue;
  TQC_TRY_ASSIGN(dialogue.open_user, tokenizer.encode("<|im_start|>user\n", kParse));
  TQC_TRY_ASSIGN(dialogue.open_assistant, tokenizer.encode("<|im_start|>assistant\n", kParse));
  TQC_TRY_ASSIGN(dialogue.close_user, tokenizer.encode("<|im_end|>\n", kParse));
  dialogue.close_assistant = dialogue.close_user;
  return dialogue;
}

// Whether both have the same tokens for the same conversations.
bool is_same(const research::Dialogue& a, const research::Dialogue& b) {
  return a.begin == b.begin && a.open_user == b.open_user &&
         a.close_assistant == b.close_assistant &&
         research::join({a.close_user, a.open_assistant}) ==
             research::join({b.close_user, b.open_assistant}) &&
         research::join({a.close_user, a.open_answer()}) ==
             research::join({b.close_user, b.open_answer()});
}

Result<void> choose_dialogue(bool raw, Examinee& examinee) {
  if (raw) {
    examinee.turns = "raw";
    return {};
  }
  const tokenizer::Tokenizer& tokenizer = examinee.model->tokenizer;
  const bool has_chatml =
      tokenizer.find_token("<|im_start|>") && tokenizer.find_token("<|im_end|>");
  examinee.turns = has_chatml ? "ChatML" : "plain";
  auto dialogue = has_chatml ? chatml_dialogue(tokenizer) : research::plain_dialogue(tokenizer);
  TQC_TRY_ASSIGN(examinee.dialogue, std::move(dialogue));
  if (tokenizer.chat_template().empty()) return {};
  const auto of_template = [&]() -> Result<research::Dialogue> {
    TQC_TRY_ASSIGN(const auto program, tokenizer::ChatTemplate::parse(tokenizer.chat_template()));
    return research::template_dialogue(tokenizer, program);
  }();
  if (!of_template) {
    Error error = of_template.error();
    error.message += " (--raw puts questions without chat turns)";
    return error;
  }
  if (has_chatml && is_same(*of_template, examinee.dialogue)) return {};
  examinee.turns = "template";
  examinee.dialogue = *of_template;
  return {};
}

std::string no_number(std::string_view flag, std::string_view word) {
  return fmt::format("{}: \"{}\" is not a number", flag, word);
}

Result<double> parse_number(std::string_view flag, std::string_view word, NumberRange range) {
  double value = 0;
  const char* const end = word.data() + word.size();
  const std::from_chars_result parsed = std::from_chars(word.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || !std::isfinite(value)) {
    return usage_error(no_number(flag, word));
  }
  if (value < range.least || value > range.most) {
    return usage_error(
        fmt::format("{}: {} is not between {} and {}", flag, word, range.least, range.most));
  }
  return value;
}

// "0..100:25"
Result<std::vector<double>> parse_steps(std::string_view flag, std::string_view text,
                                        NumberRange range) {
  const std::size_t dots = text.find("..");
  const std::size_t colon = text.find(':', dots);
  const std::string_view last = text.substr(dots + 2, colon - std::min(colon, dots + 2));
  TQC_TRY_ASSIGN(const double from, parse_number(flag, text.substr(0, dots), range));
  TQC_TRY_ASSIGN(const double to, parse_number(flag, last, range));
  double step = (to - from) / kDefaultSteps;
  if (colon != std::string_view::npos) {
    TQC_TRY_ASSIGN(step, parse_number(flag, text.substr(colon + 1), {0, range.most}));
    if (step == 0) return usage_error(fmt::format("{}: the step is 0", flag));
  }
  if (to < from) return usage_error(fmt::format("{}: {} goes backwards", flag, text));
  const double n = step > 0 ? std::floor((to - from) / step * (1 + 1e-12)) : 0;
  if (n >= static_cast<double>(kMaxNumbers)) {
    return usage_error(fmt::format("{}: more than {} numbers", flag, kMaxNumbers));
  }
  std::vector<double> numbers;
  for (int i = 0; i <= static_cast<int>(n); ++i) numbers.push_back(from + i * step);
  return numbers;
}

}  // namespace

void add_answer_flags(FlagSet& app, AnswerFlags& flags) {
  add_model_flag(app, flags.model, true);
  app.add("--configs", flags.configurations,
          "Configurations to compare: presets, f32 (dense), or settings such as k=mse:4,v=mse:3. "
          "Separate them by semicolons if one contains commas")
      ->type_name("LIST")
      ->show_default();
  app.add("--max-new-tokens,--max-tokens", flags.max_tokens, "Maximum number of tokens per answer")
      ->formerly("--max-tokens")
      ->type_name("N")
      ->range(1, 1 << 20)
      ->show_default();
  app.add("--raw", flags.raw, "Use texts as they are, without chat turns");
  add_resource_flags(app, flags.n_threads);
  add_eval_output_flags(app, flags.output);
}

Result<Examinee> open_examinee(const Console& console, const AnswerFlags& flags) {
  TQC_TRY(check_eval_output(flags.output));
  Examinee examinee;
  auto configurations = cache::parse_configurations(flags.configurations);
  if (!configurations) return in_context("--configs", std::move(configurations).error());
  examinee.configurations = std::move(configurations).value();
  TQC_TRY_ASSIGN(examinee.model, load_model(console, flags.model));
  TQC_TRY(in_file(flags.model, choose_dialogue(flags.raw, examinee)));
  return examinee;
}

Result<std::vector<double>> parse_numbers(std::string_view flag, std::string_view text,
                                          NumberRange range) {
  if (text.find("..") != std::string_view::npos) return parse_steps(flag, text, range);
  std::vector<double> numbers;
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    more = comma != std::string_view::npos;
    TQC_TRY_ASSIGN(const double number, parse_number(flag, text.substr(0, comma), range));
    numbers.push_back(number);
    if (numbers.size() > kMaxNumbers) {
      return usage_error(fmt::format("{}: more than {} numbers", flag, kMaxNumbers));
    }
    if (more) text.remove_prefix(comma + 1);
  }
  return numbers;
}

Result<std::vector<std::int64_t>> parse_counts(std::string_view flag, std::string_view text,
                                               std::int64_t least, std::int64_t most) {
  TQC_TRY_ASSIGN(
      const std::vector<double> numbers,
      parse_numbers(flag, text, {static_cast<double>(least), static_cast<double>(most)}));
  std::vector<std::int64_t> counts;
  for (const double number : numbers) {
    if (number != std::floor(number)) {
      return usage_error(fmt::format("{}: {} is not a whole number", flag, number));
    }
    counts.push_back(static_cast<std::int64_t>(number));
  }
  return counts;
}

Result<std::string> read_text_file(const std::string& path) {
  TQC_TRY_ASSIGN(const Bytes bytes,
                 in_file(display_name(path, "standard input"), read_input(path, kMaxTextBytes)));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Json score_json(const research::AnswerScore& score) {
  Json json;
  json["trials"] = score.trials;
  json["found"] = score.found;
  json["exact"] = score.exact;
  json["forced"] = score.forced;
  json["log_probability"] = score.mean(score.log_probability);
  return json;
}

void add_facts(const AnswerFlags& flags, const Examinee& examinee, eval::Report& report) {
  std::vector<std::pair<std::string, std::string>> facts = {
      {"model", flags.model},
      {"turns", examinee.turns},
      {"maximum tokens per answer", std::to_string(flags.max_tokens)}};
  report.facts.insert(report.facts.begin(), facts.begin(), facts.end());
  add_run_facts(flags.n_threads, examinee.model.get(), report);
}

Json facts_json(const AnswerFlags& flags, const Examinee& examinee) {
  Json json;
  json["schema"] = 1;
  json["model"] = flags.model;
  json["turns"] = examinee.turns;
  json["max_tokens"] = flags.max_tokens;
  return json;
}

}  // namespace tqcache::cli
