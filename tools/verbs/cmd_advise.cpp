// tools/verbs/cmd_advise.cpp: the smallest configuration that is good enough, or the best one that
// fits.

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <variant>

#include "cli/common_flags.h"
#include "cli/model_facts.h"
#include "cli/prompt.h"
#include "cli/store_flags.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "tqcache/eval.h"
#include "tqcache/model.h"
#include "verbs/eval_common.h"

namespace tqcache::cli {
namespace {

constexpr const char* kAdviseExamples =
    R"(The sample should resemble the text that the caches will hold. The model reads some windows of it
with a dense cache, and again with each configuration that is tried, from 2 to 8 bits for keys and
values. --max-kld asks for the smallest configuration whose predictions stay that close to the dense
ones (mean KL divergence, in nats). --max-bytes asks for the best configuration whose keys and
values fit for a cache of --cache-tokens tokens. If none qualifies, the exit code is 1.
docs/explain/quality.md tells what to expect, docs/reference/eval.md how it is measured.

Examples:
  tqcache advise -m model.gguf --file sample.txt
  tqcache advise -m model.gguf --file sample.txt --max-kld 0.01
  tqcache advise -m model.gguf --file sample.txt --max-bytes 2GB --cache-tokens 32768
  tqcache advise -m model.gguf --file sample.txt --max-windows 8 --html advice.html
)";

struct AdviseFlags {
  std::string model;
  std::string file;
  double max_kld = 0.05;
  std::optional<std::uint64_t> max_bytes;
  std::optional<std::int64_t> n_tokens;
  eval::PredictionOptions options{.max_windows = 2};
  EvalOutput output;
};

// A model, a sample, and the wanted quality or size.
struct Question {
  const AdviseFlags& flags;
  std::unique_ptr<model::Model> model;
  std::vector<std::int32_t> ids;
  std::int64_t n_tokens = 0;  // that a cache should hold

  Result<eval::CacheBytes> bytes_of(const cache::Configuration& way, std::int64_t n) const {
    return eval::cache_bytes(model->config, model->identity, way, n);
  }
};

// The result, and the sizes of the caches of its configurations.
struct Answer {
  eval::Advice advice;
  std::vector<std::vector<eval::CacheBytes>> sizes;  // [ways][lengths]
};

Result<Question> ask(const Console& console, const AdviseFlags& flags) {
  Question question{flags, nullptr, {}, 0};
  TQC_TRY_ASSIGN(question.model, load_model(console, flags.model));
  // Special tokens that a text spells out are plain text.
  TQC_TRY_ASSIGN(question.ids, read_prompt({{}, flags.file, {}, true}, question.model->tokenizer));
  question.n_tokens = flags.n_tokens.value_or(question.model->config.context_length);
  return question;
}

// The number of rungs, from the first, whose caches are small enough.
Result<std::size_t> count_fitting(const Question& question, std::span<const eval::Rung> ladder,
                                  std::uint64_t max_bytes) {
  for (std::size_t rung = 0; rung < ladder.size(); ++rung) {
    TQC_TRY_ASSIGN(const auto size, question.bytes_of(ladder[rung].front(), question.n_tokens));
    if (size.bytes > max_bytes) return rung;
  }
  return ladder.size();
}

// Absent if no configuration is small enough; then no measurement was made.
Result<std::optional<eval::Advice>> search(const Console& console, const Question& question) {
  const AdviseFlags& flags = question.flags;
  const std::vector<eval::Rung> ladder = eval::advice_ladder();
  ProgressBar bar(console, "advise", Unit::kTokens);
  const auto measure = [&](std::span<const cache::Configuration> configurations) {
    return eval::measure_predictions(*question.model, question.ids, configurations, flags.options,
                                     bar.callback());
  };
  if (!flags.max_bytes) {
    TQC_TRY_ASSIGN(eval::Advice found, eval::advise_by_divergence(ladder, flags.max_kld, measure));
    return std::optional(std::move(found));
  }
  TQC_TRY_ASSIGN(const std::size_t n_fitting, count_fitting(question, ladder, *flags.max_bytes));
  if (n_fitting == 0) return std::optional<eval::Advice>();
  TQC_TRY_ASSIGN(eval::Advice found, eval::advise_by_size(ladder, n_fitting, measure));
  return std::optional(std::move(found));
}

Result<std::vector<std::vector<eval::CacheBytes>>> sizes_of(const Question& question,
                                                            const eval::Advice& advice) {
  std::vector<std::int64_t> lengths = {4096, 32768};
  if (std::ranges::find(lengths, question.n_tokens) == lengths.end()) {
    lengths.push_back(question.n_tokens);
  }
  std::ranges::sort(lengths);
  std::vector<std::vector<eval::CacheBytes>> sizes;
  for (const eval::PredictionCost& way : advice.costs.ways) {
    std::vector<eval::CacheBytes>& row = sizes.emplace_back();
    for (const std::int64_t n : lengths) {
      TQC_TRY_ASSIGN(row.emplace_back(), question.bytes_of(way.configuration, n));
    }
  }
  return sizes;
}

std::string convert_command(const eval::Advice& advice) {
  return fmt::format("tqcache convert IN OUT --config {}",
                     advice.costs.ways[*advice.choice].configuration.name);
}

std::string goal_text(const Question& question) {
  const AdviseFlags& flags = question.flags;
  if (!flags.max_bytes) return fmt::format("mean KL divergence of at most {} nats", flags.max_kld);
  return fmt::format("keys and values of {} tokens in {} bytes",
                     grouped(static_cast<std::uint64_t>(question.n_tokens)),
                     grouped(*flags.max_bytes));
}

Json way_json(const eval::PredictionCost& way, std::span<const eval::CacheBytes> sizes) {
  Json json;
  json["configuration"] = way.configuration.name;
  json["bits_per_packed_value"] = way.size.bits_per_packed_value;
  json["kld_mean"] = way.kld_mean;
  json["kld_p99"] = way.kld_p99;
  json["top1"] = way.top1;
  json["perplexity"] = way.perplexity;
  json["sizes"] = Json::array();
  for (const eval::CacheBytes& size : sizes) {
    json["sizes"].push_back(
        {{"n_tokens", size.n_tokens}, {"bytes", size.bytes}, {"dense_bytes", size.dense_bytes}});
  }
  return json;
}

Json answer_json(const Question& question, const Answer& answer) {
  const AdviseFlags& flags = question.flags;
  const eval::Advice& advice = answer.advice;
  Json json;
  json["schema"] = 1;
  json["model"] = flags.model;
  json["file"] = flags.file;
  json["max_kld"] = flags.max_bytes ? Json(nullptr) : Json(flags.max_kld);
  json["max_bytes"] = flags.max_bytes ? Json(*flags.max_bytes) : Json(nullptr);
  json["tokens"] = question.n_tokens;
  json["window"] = advice.costs.window;
  json["windows"] = advice.costs.n_windows;
  json["dense_perplexity"] =
      advice.costs.n_windows == 0 ? Json(nullptr) : Json(advice.costs.dense_perplexity);
  json["configurations"] = Json::array();
  for (std::size_t i = 0; i < answer.sizes.size(); ++i) {
    json["configurations"].push_back(way_json(advice.costs.ways[i], answer.sizes[i]));
  }
  json["choice"] = nullptr;
  json["command"] = nullptr;
  if (advice.choice) {
    json["choice"] = advice.costs.ways[*advice.choice].configuration.name;
    json["command"] = convert_command(advice);
  }
  return json;
}

// Marks the advised configuration in the first table, and the limit in the drawing.
void mark(const AdviseFlags& flags, const eval::Advice& advice, eval::Report& report) {
  const std::string choice =
      advice.choice ? advice.costs.ways[*advice.choice].configuration.name : std::string();
  auto* const table = std::get_if<eval::Table>(&report.figures.front());
  if (table != nullptr && !choice.empty()) {
    for (std::vector<eval::Cell>& row : table->rows) {
      auto* const name = std::get_if<std::string>(&row.front());
      if (name != nullptr && *name == choice) *name += " (advised)";
    }
  }
  for (eval::Figure& figure : report.figures) {
    auto* const plot = std::get_if<eval::Plot>(&figure);
    if (plot == nullptr || plot->series.empty() || plot->series.front().points.empty()) continue;
    const auto [first, last] =
        std::ranges::minmax_element(plot->series.front().points, {}, &eval::Point::x);
    const double left = first->x;
    const double right = last->x;
    for (eval::Point& point : plot->series.front().points) {
      if (point.label == choice) point.label += " (advised)";
    }
    if (flags.max_bytes) continue;
    plot->series.push_back(
        {"--max-kld", {{left, flags.max_kld, ""}, {right, flags.max_kld, ""}}, true, true});
  }
}

Result<void> give(const Console& console, const Question& question, const Answer& answer) {
  const AdviseFlags& flags = question.flags;
  eval::Report report = eval::advice_report(answer.advice, answer.sizes);
  mark(flags, answer.advice, report);
  report.facts.insert(
      report.facts.begin(),
      {{"model", flags.model}, {"text", flags.file}, {"asked for", goal_text(question)}});
  if (answer.advice.choice) report.facts.emplace_back("command", convert_command(answer.advice));
  add_run_facts(flags.options.n_threads, question.model.get(), report);
  return give_report(console, flags.output, report, answer_json(question, answer));
}

// Reports that even the smallest rung is too large, which is known before any measurement.
Result<ExitCode> report_too_large(const Console& console, const Question& question) {
  const cache::Configuration smallest = eval::advice_ladder().front().front();
  TQC_TRY_ASSIGN(const auto size, question.bytes_of(smallest, question.n_tokens));
  if (console.json) TQC_TRY(print_json(answer_json(question, {})));
  complain({}, fmt::format("no configuration fits: {} tokens take {} bytes in the smallest one, {}",
                           grouped(static_cast<std::uint64_t>(question.n_tokens)),
                           grouped(size.bytes), smallest.name));
  return ExitCode::kFailed;
}

// A model that loses much even at 4 bits and more has keys or values that quantize badly.
void warn_of_bad_model(const AdviseFlags& flags, const eval::Advice& advice) {
  constexpr double kMuch = 0.1;
  for (const eval::PredictionCost& way : advice.costs.ways) {
    if (way.size.bits_per_packed_value < 4 || way.kld_mean <= kMuch) continue;
    warn(flags.model,
         fmt::format("quantizes badly: {} has a mean KL divergence of {:.2g}, where .01 to .03 is "
                     "usual at 4 bits; tqcache profile -m MODEL --file SAMPLE says which layers",
                     way.configuration.name, way.kld_mean));
    return;
  }
}

Result<ExitCode> run(const Console& console, const AdviseFlags& flags) {
  if (flags.max_bytes == 0u) return usage_error("--max-bytes: nothing fits in 0 bytes");
  TQC_TRY(check_eval_output(flags.output));
  TQC_TRY_ASSIGN(const Question question, ask(console, flags));
  TQC_TRY_ASSIGN(std::optional<eval::Advice> found, search(console, question));
  if (!found) return report_too_large(console, question);
  Answer answer{std::move(*found), {}};
  TQC_TRY_ASSIGN(answer.sizes, sizes_of(question, answer.advice));
  TQC_TRY(give(console, question, answer));
  warn_of_bad_model(flags, answer.advice);
  if (answer.advice.choice) return ExitCode::kDone;
  const eval::PredictionCost& largest = answer.advice.costs.ways.back();
  complain(
      {},
      fmt::format(
          "no configuration is good enough: {} has a mean KL divergence of {:.3g}, the limit is {}",
          largest.configuration.name, largest.kld_mean, flags.max_kld));
  return ExitCode::kFailed;
}

}  // namespace

Action define_advise(FlagSet& app) {
  const auto flags = std::make_shared<AdviseFlags>();
  add_model_flag(app, flags->model, true);
  app.add("--file", flags->file, "Sample of text, UTF-8; - is standard input")
      ->type_name("FILE")
      ->file()
      ->required();
  Flag* const kld = app.add("--max-kld", flags->max_kld,
                            "Find the smallest configuration with at most this mean KL divergence")
                        ->type_name("NATS")
                        ->check([](const std::string& word) -> Result<void> {
                          if (std::strtod(word.c_str(), nullptr) > 0) return {};
                          return usage_error(word + " is not above 0");
                        })
                        ->show_default();
  add_bytes_flag(app, "--max-bytes", flags->max_bytes,
                 "Find the best configuration whose keys and values fit in SIZE: 2000000000, "
                 "500MB, 20GiB")
      ->excludes(kld);
  app.add("--cache-tokens,--tokens", flags->n_tokens,
          "Tokens that a cache will hold; by default the context of the model")
      ->formerly("--tokens")
      ->type_name("N")
      ->range(std::int64_t{1}, cache::kMaxTokens);
  app.add("--window", flags->options.window,
          "Tokens per window; each window starts with an empty cache")
      ->type_name("N")
      ->at_least(1)
      ->show_default();
  app.add("--max-windows,--windows", flags->options.max_windows,
          "Number of windows, from the start of the sample")
      ->formerly("--windows")
      ->type_name("N")
      ->at_least(1)
      ->show_default();
  add_resource_flags(app, flags->options.n_threads);
  add_eval_output_flags(app, flags->output);
  app.footer(kAdviseExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
