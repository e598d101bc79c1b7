// tools/verbs/cmd_profile.cpp: measures once what a model needs of an archive.

#include <fmt/format.h>

#include <memory>

#include "cli/cache_io.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "report/text_table.h"
#include "tqcache/base/file.h"
#include "tqcache/eval/measure_profile.h"
#include "tqcache/model/loading/model.h"

namespace tqcache::cli {
namespace {

constexpr const char* kProfileExamples =
    R"(The sample should be text as the caches will hold it. The model reads some windows
of it, once with a dense cache and once for the keys and for the values of each
layer, these alone being coded: so it shows what each layer needs. Archives that
are made with the profile share their bits among layers accordingly, and can be
made for a mean KL divergence in the place of a size. docs/reference/profile.md tells what a
profile holds.

Examples:
  tqcache profile -m model.gguf --file sample.txt -o model.tqprofile
  tqcache profile -m hf-folder --file sample.txt -o model.tqprofile --windows 8
  tqcache convert book.kv book.tqkv --tier archive --profile model.tqprofile --bits 3
  tqcache convert book.kv book.tqkv --tier archive --profile model.tqprofile --target-kld 0.05
)";

struct ProfileFlags {
  std::string model;
  std::string file;
  std::string output;
  eval::ProfileOptions options;
  bool force = false;
};

Outcome<eval::Profile> measure(const Console& console, const ProfileFlags& flags) {
  TQC_TRY_ASSIGN(const std::unique_ptr<model::Model> model,
                 in_file(flags.model, model::load_model(flags.model)));
  // Special tokens that are spelled out in a text are text.
  TQC_TRY_ASSIGN(const std::vector<std::int32_t> ids,
                 read_prompt({{}, flags.file, {}, true}, model->tokenizer));
  ProgressBar bar(console, "profile", Unit::kTokens);
  TQC_TRY_ASSIGN(eval::Profile profile,
                 eval::measure_profile(*model, ids, flags.options, bar.callback()));
  return profile;
}

eval::Table layer_table(const eval::Profile& profile) {
  eval::Table table{"Steps of layers, as multiples", {"layer", "k", "v", "k alone", "v alone"}, {}};
  table.caption = "Alone: the mean KL divergence with that side coded and all others dense.";
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
  eval::Table table{"Divergence to expect", {"step", "mean KLD"}, {}};
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

Outcome<ExitCode> run(const Console& console, const ProfileFlags& flags) {
  if (flags.output == "-") return usage_error("a profile is not written to standard output");
  TQC_TRY(check_output(flags.output, flags.force));
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

Action define_profile(CLI::App& app) {
  const auto flags = std::make_shared<ProfileFlags>();
  add_model_flag(app, flags->model, true);
  app.add_option("--file", flags->file, "A sample of text, UTF-8; - is standard input")
      ->type_name("FILE")
      ->check(file_name())
      ->required();
  app.add_option("-o,--output", flags->output, "The profile, a file")
      ->type_name("FILE")
      ->check(file_name())
      ->required();
  app.add_option("--window", flags->options.window, "Tokens that the model reads from nothing")
      ->type_name("N")
      ->check(at_least(1))
      ->capture_default_str();
  app.add_option("--windows", flags->options.max_windows,
                 "Windows of the sample, spread over it; all of it if it has fewer")
      ->type_name("N")
      ->check(at_least(1))
      ->capture_default_str();
  add_threads_flag(app, flags->options.n_threads);
  add_force_flag(app, flags->force);
  app.footer(kProfileExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
