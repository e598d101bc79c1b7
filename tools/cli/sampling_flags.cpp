#include "cli/sampling_flags.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <system_error>

#include "cli/cli.h"
#include "cli/stop_strings.h"

namespace tqcache::cli {
namespace {

constexpr const char* kGroup = "Sampling";

template <class T>
CLI::Option* add(CLI::App& app, const char* name, T& value, const char* type, const char* text) {
  return app.add_option(name, value, text)->type_name(type)->group(kGroup)->capture_default_str();
}

template <class T>
bool read_number(std::string_view word, T& value) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size();
}

// "15=-2.5"
std::optional<model::LogitBias> read_bias(std::string_view word) {
  const std::size_t border = word.find('=');
  model::LogitBias bias;
  if (border == std::string_view::npos || !read_number(word.substr(0, border), bias.id) ||
      !read_number(word.substr(border + 1), bias.bias)) {
    return std::nullopt;
  }
  return bias;
}

void add_bias_flag(CLI::App& app, std::vector<model::LogitBias>& biases) {
  const auto check = [](std::string& word) {
    return read_bias(word) ? std::string() : fmt::format("{} is not ID=NUMBER", word);
  };
  const auto take = [&biases](const std::vector<std::string>& words) {
    biases.clear();
    for (const std::string& word : words) biases.push_back(*read_bias(word));
  };
  app.add_option_function<std::vector<std::string>>(
         "--logit-bias", take,
         "Add this to the logit of token ID, -inf never to take it; may be given several times")
      ->type_name("ID=B")
      ->group(kGroup)
      ->allow_extra_args(false)
      ->check(CLI::Validator(check, ""));
}

}  // namespace

void add_sampling_flags(CLI::App& app, SamplingFlags& flags) {
  model::SamplerOptions& options = flags.options;
  add(app, "--temperature", options.temperature, "T", "0: always the most probable token");
  add(app, "--top-k", options.top_k, "K", "Draw from this many tokens; 0: all");
  add(app, "--top-p", options.top_p, "P", "Draw from the fewest that reach this probability");
  add(app, "--min-p", options.min_p, "P", "Leave out those below this share of the most probable");
  add(app, "--repeat-penalty", options.repeat_penalty, "R",
      "Divide the logits of tokens that the text has already by this");
  add(app, "--repeat-last-n", options.repeat_last_n, "N",
      "Of the text's last N tokens; 0: none, -1: all");
  add_bias_flag(app, options.logit_bias);
  add(app, "--seed", options.seed, "N", "The same seed gives the same text");
  add_stop_flag(app, flags.stops)->group(kGroup);
}

Result<void> check_sampling(const SamplingFlags& flags) {
  if (Result<void> valid = model::validate(flags.options); !valid) {
    return usage_error("--" + valid.error().message);
  }
  return {};
}

}  // namespace tqcache::cli
