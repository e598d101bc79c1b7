// tools/verbs/cmd_profile.cpp: the profile of a model, for archives.

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/cache_io.h"
#include "cli/common_flags.h"
#include "cli/model_facts.h"
#include "cli/prompt.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "report/text_table.h"
#include "tqcache/eval.h"
#include "tqcache/eval/calibration.h"
#include "tqcache/file.h"
#include "tqcache/model.h"
#include "tqcache/predict.h"
#include "tqcache/predict/rate.h"

namespace tqcache::cli {
namespace {

constexpr const char* kProfileExamples =
    R"(The sample should resemble the text that the caches will hold. The model reads some windows of it
with a dense cache, and again with only the keys or only the values of one layer quantized, so that
the result shows how much error each layer tolerates. Archives made with the profile distribute
their bits among the layers accordingly, and can target a mean KL divergence instead of a size.

With --depth the profile is of version 2: the keys and values of a layer are predicted from those of
earlier layers, and archives made with it hold only what the prediction leaves. They take about a
third of the bits, and cannot be read without the profile. Interrupted with Ctrl-C, the same command
goes on where it stopped: what was measured is in a file beside the output, PROFILE.partial.
docs/reference/profile.md describes the file.

Examples:
  tqcache profile -m model.gguf --file sample.txt -o model.tqprofile
  tqcache profile -m hf-folder --file sample.txt -o model.tqprofile --max-windows 8
  tqcache profile -m model.gguf --file prose.txt --file code.txt -o model.tqprofile --depth 2
  tqcache convert book.kv book.tqkv --tier archive --profile model.tqprofile --bits 3
  tqcache convert book.kv book.tqkv --tier archive --profile model.tqprofile --target-kld 0.05
)";

struct ProfileFlags {
  std::string model;
  std::vector<std::string> files;
  std::string output;
  eval::ProfileOptions options;
  std::optional<std::int64_t> depth;  // of a profile of version 2
  eval::CalibrationOptions calibration;
  bool force = false;
};

Result<eval::Profile> measure(const Console& console, const ProfileFlags& flags) {
  TQC_TRY_ASSIGN(const std::unique_ptr<model::Model> model, load_model(flags.model));
  // Special tokens that a text spells out are plain text.
  TQC_TRY_ASSIGN(const std::vector<std::int32_t> ids,
                 read_prompt({{}, flags.files.front(), {}, true}, model->tokenizer));
  ProgressBar bar(console, "profile", Unit::kTokens);
  TQC_TRY_ASSIGN(eval::Profile profile,
                 eval::measure_profile(*model, ids, flags.options, bar.callback()));
  return profile;
}

eval::Table layer_table(const eval::Profile& profile) {
  eval::Table table{
      "Quantization step per layer, as a multiple", {"layer", "k", "v", "k alone", "v alone"}, {}};
  table.caption = "Alone: mean KL divergence with only these keys or values quantized.";
  for (std::size_t i = 0; i < profile.weights.keys.size(); ++i) {
    table.rows.push_back({eval::Number{static_cast<double>(i), 0},
                          eval::Number{double{profile.weights.keys[i]}, 3},
                          eval::Number{double{profile.weights.values[i]}, 3},
                          eval::Number{profile.key_sensitivity[i], 5},
                          eval::Number{profile.value_sensitivity[i], 5}});
  }
  return table;
}

eval::Table curve_table(const eval::Profile& profile) {
  eval::Table table{"Expected divergence", {"step", "mean KLD"}, {}};
  for (const eval::CurvePoint& point : profile.curve) {
    table.rows.push_back({eval::Number{point.step, 4}, eval::Number{point.kld, 5}});
  }
  return table;
}

Json profile_json(const ProfileFlags& flags, const eval::Profile& profile) {
  Json json;
  json["schema"] = 1;
  json["file"] = flags.output;
  json["window"] = profile.window;
  json["windows"] = profile.n_windows;
  json["step"] = profile.step;
  json["layers"] = Json::array();
  for (std::size_t i = 0; i < profile.weights.keys.size(); ++i) {
    json["layers"].push_back({{"key_weight", profile.weights.keys[i]},
                              {"value_weight", profile.weights.values[i]},
                              {"key_sensitivity", profile.key_sensitivity[i]},
                              {"value_sensitivity", profile.value_sensitivity[i]}});
  }
  json["curve"] = Json::array();
  for (const eval::CurvePoint& point : profile.curve) {
    json["curve"].push_back({{"step", point.step}, {"kld_mean", point.kld}});
  }
  return json;
}

// --- version 2

eval::Table prediction_table(const predict::Profile& profile) {
  eval::Table table{"Prediction per layer", {"layer", "k explained", "v explained"}, {}};
  table.caption =
      fmt::format("Explained: fraction of the variance, from {} and {}.",
                  counted(profile.depth, "earlier layer"), counted(profile.n_features, "feature"));
  for (std::size_t i = 0; i < profile.sides.size(); i += 2) {
    table.rows.push_back({eval::Number{static_cast<double>(i / 2), 0},
                          eval::Number{double{profile.sides[i].explained}, 3},
                          eval::Number{double{profile.sides[i + 1].explained}, 3}});
  }
  return table;
}

eval::Table divergence_table(const predict::Profile& profile) {
  eval::Table table{"Expected divergence", {"step", "bits", "mean KLD"}, {}};
  table.caption = "Bits per value of residuals, and mean KL divergence, on text like the sample.";
  for (const predict::CurvePoint& point : profile.curve) {
    table.rows.push_back({eval::Number{double{point.step}, 4},
                          eval::Number{predict::rate_of_step(profile, double{point.step}), 2},
                          eval::Number{double{point.kld}, 5}});
  }
  return table;
}

Json prediction_json(const ProfileFlags& flags, const predict::Profile& profile, ByteView file) {
  Json json;
  json["schema"] = 1;
  json["version"] = 2;
  json["file"] = flags.output;
  json["digest"] = to_hex(predict::profile_digest(file));
  json["bytes"] = file.size();
  json["n_tokens"] = profile.n_tokens;
  json["depth"] = profile.depth;
  json["features"] = profile.n_features;
  json["layers"] = Json::array();
  for (std::size_t i = 0; i < profile.sides.size(); i += 2) {
    json["layers"].push_back({{"key_explained", profile.sides[i].explained},
                              {"value_explained", profile.sides[i + 1].explained},
                              {"key_sensitivity", profile.sides[i].sensitivity},
                              {"value_sensitivity", profile.sides[i + 1].sensitivity}});
  }
  json["curve"] = Json::array();
  for (const predict::CurvePoint& point : profile.curve) {
    json["curve"].push_back({{"step", point.step}, {"kld_mean", point.kld}});
  }
  return json;
}

Result<predict::Profile> calibrate(const Console& console, const model::Model& model,
                                   const std::vector<std::vector<std::int32_t>>& texts,
                                   const eval::CalibrationOptions& options) {
  ProgressBar bar(console, "profile", Unit::kTokens);
  return eval::calibrate(model, texts, options, bar.callback());
}

Result<ExitCode> make_predictors(const Console& console, const ProfileFlags& flags) {
  TQC_TRY_ASSIGN(const std::unique_ptr<model::Model> model, load_model(flags.model));
  std::vector<std::vector<std::int32_t>> texts;
  for (const std::string& file : flags.files) {
    TQC_TRY_ASSIGN(texts.emplace_back(), read_prompt({{}, file, {}, true}, model->tokenizer));
  }
  eval::CalibrationOptions options = flags.calibration;
  options.depth = *flags.depth;
  options.window = flags.options.window;
  options.n_threads = flags.options.n_threads;
  options.checkpoint = flags.output + ".partial";
  std::error_code error;
  if (std::filesystem::exists(options.checkpoint, error)) {
    note(console, fmt::format("{}: what was measured so far is used", options.checkpoint.string()));
  }
  auto calibrated = calibrate(console, *model, texts, options);
  if (!calibrated && calibrated.error().code == ErrorCode::kInterrupted) {
    note(console, fmt::format("{}: holds what was measured so far; the same command goes on from "
                              "there",
                              options.checkpoint.string()));
  }
  TQC_TRY_ASSIGN(const predict::Profile profile, std::move(calibrated));
  const Bytes file = predict::profile_bytes(profile);
  const Overwrite overwrite = flags.force ? Overwrite::kAllow : Overwrite::kRefuse;
  TQC_TRY(in_file(flags.output, write_file_atomically(flags.output, file, overwrite)));
  std::filesystem::remove(options.checkpoint, error);
  note(console, fmt::format("{}: written, {} bytes, from {}", flags.output, grouped(file.size()),
                            counted(static_cast<std::int64_t>(profile.n_tokens), "token")));
  if (options.n_features > 0 && profile.n_features == 0) {
    note(console, "no features of tokens: the model is wider than 8,192");
  }
  if (console.json) {
    TQC_TRY(print_json(prediction_json(flags, profile, file)));
  } else {
    TQC_TRY(print(report::text_table(prediction_table(profile)) + "\n" +
                  report::text_table(divergence_table(profile))));
  }
  return ExitCode::kDone;
}

Result<ExitCode> run(const Console& console, const ProfileFlags& flags) {
  if (flags.output == "-") return usage_error("a profile cannot be written to standard output");
  TQC_TRY(check_output(flags.output, flags.force));
  if (flags.depth) return make_predictors(console, flags);
  if (flags.files.size() > 1) return usage_error("several --file need --depth");
  TQC_TRY_ASSIGN(const eval::Profile profile, measure(console, flags));
  const Overwrite overwrite = flags.force ? Overwrite::kAllow : Overwrite::kRefuse;
  TQC_TRY(in_file(flags.output,
                  write_file_atomically(flags.output, eval::profile_bytes(profile), overwrite)));
  note(console, fmt::format("{}: written", flags.output));
  if (console.json) {
    TQC_TRY(print_json(profile_json(flags, profile)));
  } else {
    TQC_TRY(print(report::text_table(layer_table(profile)) + "\n" +
                  report::text_table(curve_table(profile))));
  }
  return ExitCode::kDone;
}

}  // namespace

Action define_profile(FlagSet& app) {
  const auto flags = std::make_shared<ProfileFlags>();
  add_model_flag(app, flags->model, true);
  app.add("--file", flags->files,
          "Sample of text, UTF-8; - is standard input. With --depth also several times")
      ->type_name("FILE")
      ->file()
      ->required();
  app.add("-o,--output", flags->output, "Profile to write")->type_name("FILE")->file()->required();
  app.add("--window", flags->options.window,
          "Tokens per window; each window starts with an empty cache")
      ->type_name("N")
      ->at_least(1)
      ->show_default();
  app.add("--max-windows,--windows", flags->options.max_windows,
          "Number of windows, spread over the sample")
      ->formerly("--windows")
      ->type_name("N")
      ->at_least(1)
      ->show_default();
  app.add("--depth", flags->depth,
          "Make a profile of version 2: each layer is predicted from N earlier ones, 0 to 8")
      ->type_name("N")
      ->at_least(0);
  app.add("--tokens", flags->calibration.n_tokens, "With --depth: number of tokens to read")
      ->type_name("N")
      ->at_least(1)
      ->show_default();
  app.add("--features", flags->calibration.n_features,
          "With --depth: number of features of a token's embedding; 0: none")
      ->type_name("N")
      ->at_least(0)
      ->show_default();
  add_resource_flags(app, flags->options.n_threads);
  add_force_flag(app, flags->force);
  app.footer(kProfileExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
