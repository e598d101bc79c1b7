// tools/verbs/cmd_profile.cpp: the profile of a model, for archives and for codes in memory.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/any_input.h"
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

Every profile also has a factor for each pair of components of the keys, which lowers the divergence
of a turbo cache where keys are uneven, at the same size: convert --profile FILE, or the item
profile=FILE of a configuration. --quick makes these factors alone, in one pass over the windows;
--from makes them from dense caches of any program, for models that tqcache cannot run.

With --depth the profile is of version 2: the keys and values of a layer are predicted from those of
earlier layers, and archives made with it hold only what the prediction leaves. They take about a
third of the bits, and cannot be read without the profile. Interrupted with Ctrl-C, the same command
goes on where it stopped: what was measured is in a file beside the output, PROFILE.partial.
docs/reference/profile.md describes the file.

Examples:
  tqcache profile -m model.gguf --file sample.txt -o model.tqprofile
  tqcache profile -m model.gguf --file sample.txt -o model.tqprofile --quick
  tqcache profile --from a.kv --from b.safetensors -o model.tqprofile
  tqcache convert book.kv book.tqkv --profile model.tqprofile
  tqcache profile -m hf-folder --file sample.txt -o model.tqprofile --max-windows 8
  tqcache profile -m model.gguf --file prose.txt --file code.txt -o model.tqprofile --depth 2
  tqcache convert book.kv book.tqkv --config archive --profile model.tqprofile --bits 3
  tqcache convert book.kv book.tqkv --config archive --profile model.tqprofile --target-kld 0.05
)";

struct ProfileFlags {
  std::string model;
  std::vector<std::string> files;
  std::string output;
  eval::ProfileOptions options;
  std::optional<std::int64_t> depth;  // of a profile of version 2
  bool quick = false;
  std::vector<std::string> caches;  // of --from
  eval::CalibrationOptions calibration;
  bool force = false;
};

Result<eval::Profile> measure(const Console& console, const ProfileFlags& flags) {
  TQC_TRY_ASSIGN(const std::unique_ptr<model::Model> model, load_model(console, flags.model));
  // Special tokens that a text spells out are plain text.
  TQC_TRY_ASSIGN(const std::vector<std::int32_t> ids,
                 read_prompt({{}, flags.files.front(), {}, true}, model->tokenizer));
  ProgressBar bar(console, "profile", Unit::kTokens);
  if (flags.quick) return eval::quick_profile(*model, ids, flags.options, bar.callback());
  TQC_TRY_ASSIGN(eval::Profile profile,
                 eval::measure_profile(*model, ids, flags.options, bar.callback()));
  return profile;
}

// Factors of the keys of dense caches.
Result<eval::Profile> profile_of_caches(const Console& console, const ProfileFlags& flags) {
  eval::Profile profile;
  eval::KeyMoments moments;
  ForeignFlags foreign;
  foreign.model = flags.model;
  foreign.n_probe = 0;
  TQC_TRY_ASSIGN(const ModelFacts model, load_model_facts(console, flags.model));
  for (const std::string& path : flags.caches) {
    const auto add = [&](const cache::CacheReader& cache) -> Result<void> {
      const cache::Identity& identity = cache.description().identity;
      if (moments.n_tokens > 0 && identity.weights_fingerprint != profile.weights_fingerprint) {
        return Error{ErrorCode::kMismatch, "a cache of another model than " + flags.caches.front()};
      }
      profile.architecture = identity.architecture;
      profile.model_name = identity.model_name.substr(0, 128);
      profile.weights_fingerprint = identity.weights_fingerprint;
      profile.tokenizer_fingerprint = identity.tokenizer_fingerprint;
      profile.window = std::max(profile.window, cache.n_tokens());
      return eval::add_keys(cache, moments, flags.options.n_threads);
    };
    TQC_TRY_ASSIGN(const InputFile file, open_input_file(path));
    TQC_TRY_ASSIGN(const AnyInput input, open_any_input(console, file, foreign, model, std::nullopt,
                                                        flags.options.n_threads));
    TQC_TRY(in_file(path, add(*input.cache)));
  }
  profile.n_windows = static_cast<std::int64_t>(flags.caches.size());
  profile.key_factors = eval::key_factors(moments);
  profile.key_losses = eval::key_losses(moments);
  return profile;
}

// The factors of each layer: the least and the largest of any component.
eval::Table factor_table(const eval::Profile& profile) {
  eval::Table table{"Factors of keys per layer", {"layer", "least", "largest", "lost"}, {}};
  table.caption =
      "Codes have these multiples of the components of keys. Lost: what 4 bits without them take "
      "of what tells tokens apart; .01 is usual.";
  for (std::size_t i = 0; i < profile.key_factors.size(); ++i) {
    const auto& factors = profile.key_factors[i];
    if (factors.empty()) continue;
    const auto [least, most] = std::ranges::minmax(factors);
    table.rows.push_back({eval::Number{static_cast<double>(i), 0},
                          eval::Number{std::exp2(least / 8.0), 3},
                          eval::Number{std::exp2(most / 8.0), 3},
                          i < profile.key_losses.size() ? eval::Number{profile.key_losses[i], 3}
                                                        : eval::Number{0, 3}});
  }
  return table;
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

// Names the layers whose keys quantize badly without the factors that the profile has.
void warn_of_losses(const ProfileFlags& flags, std::span<const double> key_losses) {
  std::string layers;
  double most = 0;
  for (std::size_t i = 0; i < key_losses.size(); ++i) {
    if (key_losses[i] <= cache::kHeavyLoss) continue;
    layers += fmt::format("{}{}", layers.empty() ? "" : ", ", i);
    most = std::max(most, key_losses[i]);
  }
  if (layers.empty()) return;
  warn(
      flags.output,
      fmt::format("without these factors the keys of layers {} quantize badly: the error of 4 bits "
                  "has up to {:.1f} times the energy of what tells tokens apart, in half of a "
                  "head; so use this profile (convert, chat, generate --profile), or keep keys "
                  "dense (--bits 16,4)",
                  layers, most));
}

Json profile_json(const ProfileFlags& flags, const eval::Profile& profile) {
  Json json;
  json["schema"] = 1;
  json["file"] = flags.output;
  json["window"] = profile.window;
  json["windows"] = profile.n_windows;
  if (!profile.key_factors.empty()) json["key_factors"] = profile.key_factors;
  if (!profile.key_losses.empty()) json["key_losses"] = profile.key_losses;
  if (!profile.is_measured()) return json;
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
  for (std::size_t i = 0; i < profile.tensors.size(); i += 2) {
    table.rows.push_back({eval::Number{static_cast<double>(i / 2), 0},
                          eval::Number{double{profile.tensors[i].explained}, 3},
                          eval::Number{double{profile.tensors[i + 1].explained}, 3}});
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
  json["key_factors"] = profile.key_factors;
  json["key_losses"] = profile.key_losses;
  json["layers"] = Json::array();
  for (std::size_t i = 0; i < profile.tensors.size(); i += 2) {
    json["layers"].push_back({{"key_explained", profile.tensors[i].explained},
                              {"value_explained", profile.tensors[i + 1].explained},
                              {"key_sensitivity", profile.tensors[i].sensitivity},
                              {"value_sensitivity", profile.tensors[i + 1].sensitivity}});
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

Result<eval::Profile> measure_factors(const Console& console, const model::Model& model,
                                      std::span<const std::int32_t> ids,
                                      const eval::ProfileOptions& options) {
  ProgressBar bar(console, "factors of keys", Unit::kTokens);
  return eval::quick_profile(model, ids, options, bar.callback());
}

Result<ExitCode> make_predictors(const Console& console, const ProfileFlags& flags) {
  TQC_TRY_ASSIGN(const std::unique_ptr<model::Model> model, load_model(console, flags.model));
  std::vector<std::vector<std::int32_t>> texts;
  for (const std::string& file : flags.files) {
    TQC_TRY_ASSIGN(texts.emplace_back(), read_prompt({{}, file, {}, true}, model->tokenizer));
  }
  // Factors of keys from some windows of all texts, so that one profile serves archives and codes
  // in memory. The last token of a text is predicted alone.
  std::vector<std::int32_t> all;
  for (const auto& text : texts) all.insert(all.end(), text.begin(), text.end());
  eval::ProfileOptions for_factors = flags.options;
  for_factors.window = std::min<std::int64_t>(for_factors.window, std::ssize(all) - 1);
  TQC_TRY_ASSIGN(eval::Profile factors, measure_factors(console, *model, all, for_factors));

  eval::CalibrationOptions options = flags.calibration;
  options.depth = *flags.depth;
  options.window = flags.options.window;
  options.n_threads = flags.options.n_threads;
  options.memory = console.access.memory;
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
  TQC_TRY_ASSIGN(predict::Profile profile, std::move(calibrated));
  profile.key_losses.assign(factors.key_losses.begin(), factors.key_losses.end());
  profile.key_factors = std::move(factors.key_factors);
  const Bytes file = predict::profile_bytes(profile);
  const Overwrite overwrite = flags.force ? Overwrite::kAllow : Overwrite::kRefuse;
  TQC_TRY(in_file(flags.output, write_file_atomically(flags.output, file, overwrite)));
  std::filesystem::remove(options.checkpoint, error);
  note(console, fmt::format("{}: written, {} bytes, from {}", flags.output, grouped(file.size()),
                            counted(static_cast<std::int64_t>(profile.n_tokens), "token")));
  warn_of_losses(flags, factors.key_losses);
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
  const bool is_from_caches = !flags.caches.empty();
  if (is_from_caches && (!flags.files.empty() || flags.quick || flags.depth)) {
    return usage_error("--from reads caches alone: no --file, --quick or --depth");
  }
  if (!is_from_caches && (flags.model.empty() || flags.files.empty())) {
    return usage_error("--model and --file are required, or --from with caches");
  }
  if (flags.quick && flags.depth) return usage_error("--quick and --depth exclude each other");
  if (flags.depth) return make_predictors(console, flags);
  if (flags.files.size() > 1) return usage_error("several --file need --depth");
  TQC_TRY_ASSIGN(const eval::Profile profile,
                 is_from_caches ? profile_of_caches(console, flags) : measure(console, flags));
  const Overwrite overwrite = flags.force ? Overwrite::kAllow : Overwrite::kRefuse;
  TQC_TRY(in_file(flags.output,
                  write_file_atomically(flags.output, eval::profile_bytes(profile), overwrite)));
  note(console, fmt::format("{}: written", flags.output));
  warn_of_losses(flags, profile.key_losses);
  if (console.json) {
    TQC_TRY(print_json(profile_json(flags, profile)));
  } else if (!profile.is_measured()) {
    TQC_TRY(print(report::text_table(factor_table(profile))));
  } else {
    TQC_TRY(print(report::text_table(layer_table(profile)) + "\n" +
                  report::text_table(curve_table(profile))));
  }
  return ExitCode::kDone;
}

}  // namespace

Action define_profile(FlagSet& app) {
  const auto flags = std::make_shared<ProfileFlags>();
  add_model_flag(app, flags->model, false);
  app.add("--file", flags->files,
          "Sample of text, UTF-8; - is standard input. With --depth also several times")
      ->type_name("FILE")
      ->file();
  app.add("--quick", flags->quick,
          "Only factors of keys, for caches in memory: one pass, and no archives");
  app.add("--from", flags->caches,
          "Make factors of keys from this dense cache of any program, without a model; several "
          "times")
      ->type_name("FILE")
      ->file();
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
