// tools/verbs/eval_ppl.cpp: perplexity and divergence of predictions: one measurement, two tables.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>

#include "cli/common_flags.h"
#include "cli/model_facts.h"
#include "cli/prompt.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "tqcache/eval.h"
#include "tqcache/model.h"
#include "verbs/eval_common.h"

namespace tqcache::cli {
namespace {

using eval::PredictionFocus;

constexpr const char* kPplNotes =
    R"(The text is cut into windows; an incomplete last window is dropped. The model reads each window with
an empty cache: once dense, and once per configuration with every key and value replaced by its
quantized value, including those of recent tokens. --as-served fills a real cache instead, as
generate does: the last, incomplete token block stays dense. docs/reference/eval.md explains the
measurement.

A configuration is a preset (turbo4, k8v4, ...; f32 is dense), a list of settings, or both:
k=mse:4,v=mse:3,boundary=2:8 or turbo4,center=none. In a list of configurations, a preset
starts the next one; use semicolons before one that starts with a setting. With --profile (version
2), predicted:0.03 is a predicted archive with that step.

)";

constexpr const char* kPplExamples =
    R"(Examples:
  tqcache eval ppl -m model.gguf --file book.txt
  tqcache eval ppl -m model.gguf --file book.txt --configs f32,turbo4,turbo3,kfv4
  tqcache eval ppl -m hf-folder --file book.txt --window 512 --max-windows 8 --json
)";

constexpr const char* kKldExamples =
    R"(Examples:
  tqcache eval kld -m model.gguf --file book.txt
  tqcache eval kld -m model.gguf --file book.txt --configs turbo4,center=none,turbo4
  tqcache eval kld -m model.gguf --file book.txt --configs 'turbo4;k=mse:4,v=mse:3'
  tqcache eval kld -m model.gguf --file book.txt --as-served --html report.html
)";

struct Flags {
  std::string model;
  std::optional<std::string> file;
  std::optional<std::string> ids;
  std::string configurations = "f32,turbo4";
  std::string profile;  // a file of version 2, or empty
  eval::PredictionOptions options;
  EvalOutput output;

  // Special tokens that a text spells out are plain text.
  PromptFlags text() const { return {{}, file, ids, true}; }
};

struct Measured {
  eval::PredictionCosts costs;
  std::unique_ptr<model::Model> model;
  double seconds = 0;
};

Json divergence_json(const eval::PredictionCost& way) {
  Json json;
  json["mean"] = way.kld_mean;
  json["mean_error"] = way.kld_error;
  json["median"] = way.kld_median;
  json["p99"] = way.kld_p99;
  json["max"] = way.kld_max;
  return json;
}

// Null if the tensor is not quantized, or as served.
Json error_json(const eval::CodingError& error) {
  return error.energy == 0 ? Json(nullptr) : Json(error.relative());
}

Json errors_json(const eval::CodingErrors& errors) {
  Json json;
  json["k"] = error_json(errors.total(0));
  json["v"] = error_json(errors.total(1));
  json["layers"] = Json::array();
  for (std::size_t layer = 0; layer < errors.n_layers(); ++layer) {
    Json row;
    for (std::size_t kv_head = 0; kv_head < errors.n_kv_heads(); ++kv_head) {
      row["k"].push_back(error_json(errors.at(layer, 0, kv_head)));
      row["v"].push_back(error_json(errors.at(layer, 1, kv_head)));
    }
    json["layers"].push_back(std::move(row));
  }
  return json;
}

Json way_json(const eval::PredictionCost& way) {
  Json json;
  json["name"] = way.configuration.name;
  json["configuration"] = way.configuration.predicted_step > 0
                              ? way.configuration.name
                              : cache::configuration_text(way.configuration.options);
  json["bits_per_value"] = way.size.bits_per_value;
  json["bits_per_packed_value"] =
      way.configuration.is_dense() ? Json(nullptr) : Json(way.size.bits_per_packed_value);
  json["window_bytes"] = way.size.k_bytes + way.size.v_bytes;
  json["perplexity"] = way.perplexity;
  json["perplexity_error"] = way.perplexity_error;
  json["kld"] = divergence_json(way);
  json["top1"] = way.top1;
  json["top1_error"] = way.top1_error;
  json["relative_mse"] = errors_json(way.errors);
  return json;
}

Json costs_json(const Flags& flags, const Measured& measured) {
  const eval::PredictionCosts& costs = measured.costs;
  Json json;
  json["schema"] = 1;
  json["model"] = flags.model;
  json["file"] = flags.file ? Json(*flags.file) : Json(nullptr);
  json["n_tokens"] = costs.n_tokens;
  json["window"] = costs.window;
  json["windows"] = costs.n_windows;
  json["predictions"] = costs.n_predictions();
  json["as_served"] = costs.as_served;
  json["activations"] = !costs.activations
                            ? Json(nullptr)
                            : Json(*costs.activations == model::ActivationBits::k8 ? 8 : 16);
  json["begin_token"] = costs.begin_token ? Json(*costs.begin_token) : Json(nullptr);
  json["dense_perplexity"] = costs.dense_perplexity;
  json["configurations"] = Json::array();
  for (const eval::PredictionCost& way : costs.ways) {
    json["configurations"].push_back(way_json(way));
  }
  json["seconds"] = measured.seconds;
  return json;
}

Result<void> check_text_flags(const Flags& flags) {
  if (flags.file && flags.ids) return usage_error("--file and --ids exclude each other");
  if (!flags.file && !flags.ids) return usage_error("no text: --file or --ids is required");
  return {};
}

Result<Measured> measure(const Console& console, const Flags& flags,
                         std::span<const cache::Configuration> configurations) {
  Measured measured;
  TQC_TRY_ASSIGN(measured.model, load_model(console, flags.model));
  const model::Model& model = *measured.model;
  TQC_TRY_ASSIGN(const std::vector<std::int32_t> ids, read_prompt(flags.text(), model.tokenizer));
  ProgressBar bar(console, "eval", Unit::kTokens);
  const auto start = std::chrono::steady_clock::now();
  eval::PredictionOptions options = flags.options;
  if (!flags.profile.empty()) {
    TQC_TRY_ASSIGN(
        options.predictor,
        in_file(flags.profile, predict::read_profile(flags.profile, console.access.memory)));
  }
  TQC_TRY_ASSIGN(measured.costs,
                 eval::measure_predictions(model, ids, configurations, options, bar.callback()));
  measured.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return measured;
}

// Configurations of predicted archives, which only these verbs know, and all others.
Result<std::vector<cache::Configuration>> read_configurations(const Flags& flags) {
  constexpr std::string_view kPredicted = "predicted:";
  if (flags.configurations.find(kPredicted) == std::string::npos) {
    return cache::parse_configurations(flags.configurations);
  }
  if (flags.profile.empty()) return invalid("predicted: needs --profile");
  const char separator = flags.configurations.find(';') == std::string::npos ? ',' : ';';
  std::vector<cache::Configuration> all;
  std::string others;  // since the last one that is predicted
  const auto flush = [&]() -> Result<void> {
    if (others.empty()) return {};
    TQC_TRY_ASSIGN(auto configurations, cache::parse_configurations(others));
    std::ranges::move(configurations, std::back_inserter(all));
    others.clear();
    return {};
  };
  std::istringstream list(flags.configurations);
  for (std::string part; std::getline(list, part, separator);) {
    if (!part.starts_with(kPredicted)) {
      if (!others.empty()) others.push_back(separator);
      others += part;
      continue;
    }
    TQC_TRY(flush());
    float step = 0;
    const char* const end = part.data() + part.size();
    const auto read = std::from_chars(part.data() + kPredicted.size(), end, step);
    if (read.ec != std::errc() || read.ptr != end || !(step >= 0x1p-20f && step <= 0x1p20f)) {
      return invalid(fmt::format("\"{}\": not a step above 0", part));
    }
    all.push_back({.name = part, .predicted_step = step});
  }
  TQC_TRY(flush());
  return all;
}

Result<ExitCode> run(const Console& console, const Flags& flags, PredictionFocus focus) {
  TQC_TRY(check_text_flags(flags));
  auto configurations = read_configurations(flags);
  if (!configurations) return in_context("--configs", std::move(configurations).error());
  TQC_TRY(check_eval_output(flags.output));
  TQC_TRY_ASSIGN(const Measured measured, measure(console, flags, *configurations));
  eval::Report report = eval::predictions_report(measured.costs, focus);
  report.facts.insert(report.facts.begin(),
                      {{"model", flags.model}, {"text", flags.file.value_or("token ids")}});
  add_run_facts(flags.options.n_threads, measured.model.get(), report);
  TQC_TRY(give_report(console, flags.output, report, costs_json(flags, measured)));
  return ExitCode::kDone;
}

void add_text_flags(FlagSet& app, Flags& flags) {
  app.add("--file", flags.file, "Text to predict, UTF-8; - is standard input")
      ->type_name("FILE")
      ->file();
  app.add("--ids", flags.ids, "Token ids to predict, separated by commas")->type_name("LIST");
}

void add_window_flags(FlagSet& app, eval::PredictionOptions& options) {
  app.add("--window", options.window, "Tokens per window; each window starts with an empty cache")
      ->type_name("N")
      ->at_least(1)
      ->show_default();
  app.add("--max-windows,--windows", options.max_windows, "Use only the first N windows")
      ->formerly("--windows")
      ->type_name("N")
      ->at_least(1);
  app.add("--as-served", options.as_served,
          "Fill a real cache, as generate does, instead of quantizing every key and value");
  const auto take = [&options](const std::string& word) {
    options.activations = word == "8" ? model::ActivationBits::k8 : model::ActivationBits::k16;
  };
  app.add_text(
         "--activations", take,
         "Read with every configuration token by token, as generate does, with activations of "
         "8 or 16 bits, and compare also f32 with the dense run, which reads in chunks")
      ->type_name("BITS")
      ->one_of({"8", "16"});
}

Action define(FlagSet& app, PredictionFocus focus, const char* examples) {
  const auto flags = std::make_shared<Flags>();
  add_model_flag(app, flags->model, true);
  add_text_flags(app, *flags);
  app.add("--configs", flags->configurations, "Configurations to compare")
      ->type_name("LIST")
      ->show_default();
  app.add("--profile", flags->profile,
          "Profile of version 2, for configurations predicted:STEP (tqcache profile --depth)")
      ->type_name("FILE")
      ->file();
  add_window_flags(app, flags->options);
  add_resource_flags(app, flags->options.n_threads);
  add_eval_output_flags(app, flags->output);
  app.footer(std::string(kPplNotes) + examples);
  return [flags, focus](const Console& console) { return run(console, *flags, focus); };
}

}  // namespace

Action define_eval_ppl(FlagSet& app) {
  return define(app, PredictionFocus::kPerplexity, kPplExamples);
}

Action define_eval_kld(FlagSet& app) {
  return define(app, PredictionFocus::kDivergence, kKldExamples);
}

}  // namespace tqcache::cli
