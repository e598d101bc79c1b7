// tools/cmd_verify.cpp: is a cache file whole, and does it belong to a model.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "cache_io.h"
#include "cli.h"
#include "probe.h"
#include "progress.h"
#include "text.h"
#include "tqcache/model/model.h"

namespace tqcache::cli {
namespace {

constexpr const char* kExamples =
    R"(Every checksum and every rule of the format is checked, and each damage is told.
With --model, the fingerprints are compared, and then the model runs again over
the last tokens (--probe) to see whether the same keys and values come out, up to
0.01 of their length, or 0.01 + 3.3 / 2^bits where tokens are packed.

Exit codes: 0 whole, 20 damaged, 22 of another model.

Examples:
  tqcache verify book.tqkv
  tqcache verify book.tqkv -m model.gguf
  tqcache verify book.tqkv -m model.gguf --probe 64 --json
)";

struct VerifyFlags {
  std::string file;
  std::string model;
  std::int64_t n_probe = 16;
  unsigned n_threads = 0;
};

Json probe_json(const ProbeReport& report) {
  Json json;
  json["first_token"] = report.first_token;
  json["n_tokens"] = report.n_tokens;
  json["layers"] = Json::array();
  for (const ProbeLayer& layer : report.layers) {
    Json row;
    row["layer"] = layer.layer;
    row["k_relative_error"] = layer.k_error;
    row["k_limit"] = layer.k_limit;
    row["v_relative_error"] = layer.v_error;
    row["v_limit"] = layer.v_limit;
    json["layers"].push_back(std::move(row));
  }
  return json;
}

struct Extremes {
  double error = 0;
  double limit = 0;
};

Extremes largest(const ProbeReport& report) {
  Extremes extremes;
  for (const ProbeLayer& layer : report.layers) {
    extremes.error = std::max({extremes.error, layer.k_error, layer.v_error});
    extremes.limit = std::max({extremes.limit, layer.k_limit, layer.v_limit});
  }
  return extremes;
}

// What was found; each part is there as far as the checks came.
struct Findings {
  format::VerifyReport file;
  std::optional<ProbeReport> probe;
  std::optional<Error> error;  // why the cache is refused
};

Json findings_json(const std::string& name, const VerifyFlags& flags, const Findings& findings) {
  Json json;
  json["schema"] = 1;
  json["file"] = name;
  json["ok"] = !findings.error.has_value();
  json["sections_checked"] = findings.file.sections_checked;
  json["bytes_checked"] = findings.file.bytes_checked;
  json["damage"] = findings.file.damage;
  json["model"] = flags.model.empty() ? Json(nullptr) : Json(flags.model);
  json["probe"] = findings.probe ? probe_json(*findings.probe) : Json(nullptr);
  return json;
}

std::string verdict(const std::string& name, const VerifyFlags& flags, const Findings& findings) {
  std::string text =
      fmt::format("{}: whole, {} sections and {} bytes checked", name,
                  grouped(findings.file.sections_checked), grouped(findings.file.bytes_checked));
  if (!flags.model.empty()) text += "; of this model by its fingerprints";
  if (const auto& probe = findings.probe; probe) {
    const Extremes extremes = largest(*probe);
    text += fmt::format(
        " and by its last {} tokens: computed again they differ by {:.2g}, up to "
        "{:.2g} is expected",
        probe->n_tokens, extremes.error, extremes.limit);
  }
  return text + "\n";
}

// Compares with the model; fills `findings` as far as it comes.
Outcome<Done> check_model(const Console& console, const VerifyFlags& flags,
                          const ByteSource& source, Findings& findings) {
  TQC_TRY_ASSIGN(const std::unique_ptr<model::Model> model,
                 in_file(flags.model, model::load_model(flags.model)));
  const std::string name = display_name(flags.file, "standard input");
  format::ReadOptions options;
  options.n_threads = flags.n_threads;
  TQC_TRY_ASSIGN(cache::Cache cache, in_file(name, format::read_cache(source, options)));
  if (Result<void> same = cache::check_identity(cache, model->identity); !same) {
    findings.error = same.error();
    return Done{};
  }
  if (flags.n_probe == 0 || cache.n_tokens() == 0) return Done{};
  ProgressBar bar(console, "probing", Unit::kTokens);
  TQC_TRY_ASSIGN(findings.probe, in_file(name, probe(std::move(cache), *model, flags.n_probe,
                                                     flags.n_threads, bar.callback())));
  if (const std::optional<std::string> complaint = findings.probe->complaint()) {
    findings.error = Error{ErrorCode::kMismatch, *complaint};
  }
  return Done{};
}

Outcome<format::VerifyReport> check_file(const Console& console, const VerifyFlags& flags,
                                         const ByteSource& source, const std::string& name) {
  ProgressBar bar(console, "checking", Unit::kBytes);
  format::ReadOptions options;
  options.n_threads = flags.n_threads;
  return in_file(name, format::verify_cache(source, options, bar.callback()));
}

Outcome<ExitCode> run(const Console& console, const VerifyFlags& flags) {
  const std::string name = display_name(flags.file, "standard input");
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, open_cache(flags.file));
  Findings findings;
  TQC_TRY_ASSIGN(findings.file, check_file(console, flags, *source, name));
  const std::vector<std::string>& damage = findings.file.damage;
  if (!damage.empty()) {
    for (const std::string& line : damage) complain(name, line);
    findings.error = Error{ErrorCode::kCorrupt, fmt::format("damaged in {} place{}", damage.size(),
                                                            damage.size() == 1 ? "" : "s")};
  } else if (!flags.model.empty()) {
    TQC_TRY(check_model(console, flags, *source, findings));
  }
  if (console.json) TQC_TRY(print_json(findings_json(name, flags, findings)));
  if (findings.error) return Failure{*findings.error, name, false};
  if (!console.json) TQC_TRY(print(verdict(name, flags, findings)));
  return ExitCode::kDone;
}

}  // namespace

Action define_verify(CLI::App& app) {
  const auto flags = std::make_shared<VerifyFlags>();
  app.add_option("file", flags->file, "Cache file; - is standard input")
      ->type_name("")
      ->check(file_name())
      ->required();
  add_model_flag(app, flags->model, false);
  app.add_option("--probe", flags->n_probe, "With --model: tokens to compute again; 0: none")
      ->type_name("N")
      ->check(at_least(0))
      ->capture_default_str();
  add_threads_flag(app, flags->n_threads);
  app.footer(kExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
