// tools/verbs/cmd_verify.cpp: verification of a cache file, alone and against a model.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "cli/cache_io.h"
#include "cli/common_flags.h"
#include "cli/model_facts.h"
#include "cli/probe.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "migrations/v1_file.h"
#include "tqcache/cache.h"
#include "tqcache/decoder.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/model.h"

namespace tqcache::cli {
namespace {

constexpr const char* kVerifyExamples =
    R"(Checks every checksum and every rule of the format, and reports every problem found. With --model,
compares the fingerprints, then recomputes the last tokens (--probe) and compares their keys and
values. The limit is a relative error of 0.01 (--limit), or 0.01 + 3.3 / 2^bits for quantized tokens
(latents: 4.7). A cache with hidden tokens cannot be probed: --probe 0 compares only the fingerprints.
A cache with sliding windows or recurrent state cannot be cut shorter: up to 1,024 tokens are computed
again, and of longer ones layer 0 is compared, where it depends on the last tokens alone. Files of
older versions have no fingerprint of the model's configuration; verify then says so. Leftovers of an
interrupted save behind the end of the file are not damage.

Exit codes: 0 undamaged, 20 damaged, 22 wrong model or key. Of several files all are checked; the
code is 3 if some are bad, and that of the first one if all are.

Examples:
  tqcache verify book.tqkv
  tqcache verify book.tqkv -m model.gguf
  tqcache verify *.tqkv
  tqcache verify book.tqkv -m model.gguf --probe 64 --json
)";

struct VerifyFlags {
  std::vector<std::string> files;
  std::string model;
  std::int64_t n_probe = 16;
  double limit = kDenseLimit;
  unsigned n_threads = 0;
};

Json probe_json(const ProbeReport& report) {
  Json json;
  json["scope"] = name_of(report.scope);
  json["first_token"] = report.first_token;
  json["n_tokens"] = report.n_tokens;
  json["layers"] = Json::array();
  for (const ProbeLayer& layer : report.layers) {
    Json row;
    row["layer"] = layer.layer;
    const std::string k = layer.is_state ? "convolution" : "k";
    const std::string v = layer.is_state ? "state" : "v";
    row[k + "_relative_error"] = layer.k_error;
    row[k + "_limit"] = layer.k_limit;
    row[v + "_relative_error"] = layer.v_error;
    row[v + "_limit"] = layer.v_limit;
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

// The findings of the checks that were reached.
struct Findings {
  format::VerifyReport file;
  std::optional<V1Summary> v1;  // of a file of version 1
  std::optional<ProbeReport> probe;
  // Whether the model's own version of the fingerprints was compared.
  bool compared_config = false;
  bool is_foreign = false;                            // the values came from another program
  cache::Standing standing = cache::Standing::kNone;  // as the file says
  std::optional<Error> error;                         // why the cache is rejected
};

Json findings_json(const std::string& name, const VerifyFlags& flags, const Findings& findings) {
  Json json;
  json["schema"] = 1;
  json["file"] = name;
  json["ok"] = !findings.error.has_value();
  json["version"] = findings.v1 ? 1 : findings.file.info.version;
  json["sections_checked"] = findings.file.sections_checked;
  json["bytes_checked"] = findings.file.bytes_checked;
  json["dead_bytes"] = findings.file.info.gap_bytes;
  json["bytes_behind_the_end"] = findings.file.info.trailing_bytes;
  json["damage"] = findings.file.damage;
  json["model"] = flags.model.empty() ? Json(nullptr) : Json(flags.model);
  json["compared_config"] = findings.compared_config;
  json["probe"] = findings.probe ? probe_json(*findings.probe) : Json(nullptr);
  const bool is_compared = findings.probe && findings.probe->scope != ProbeScope::kNothing;
  json["identity"] = flags.model.empty() || findings.error   ? Json(nullptr)
                     : is_compared                           ? Json("checked")
                     : findings.is_foreign || findings.probe ? Json("stated, not checked")
                                                             : Json("fingerprints");
  return json;
}

// "400 sections and 13,248,016 bytes verified"
std::string checked_text(const Findings& findings) {
  const format::VerifyReport& file = findings.file;
  if (findings.v1) {
    return fmt::format("version 1, {} layers and {} bytes verified",
                       findings.v1->class_paths.size(), grouped(file.bytes_checked));
  }
  std::string text = fmt::format("{} sections and {} bytes verified",
                                 grouped(file.sections_checked), grouped(file.bytes_checked));
  if (file.info.gap_bytes > 0) {
    text += fmt::format(", {} of them dead space", grouped(file.info.gap_bytes));
  }
  if (file.info.trailing_bytes > 0) {
    text += fmt::format("; {} bytes behind the end are left from an interrupted save",
                        grouped(file.info.trailing_bytes));
  }
  return text;
}

std::string verdict(const std::string& name, const VerifyFlags& flags, const Findings& findings) {
  std::string text = fmt::format("{}: OK, {}", printable(name), checked_text(findings));
  if (!flags.model.empty()) {
    text += ". Model: fingerprints match";
    if (!findings.compared_config) {
      text += " (the file has none of the configuration, which may differ)";
    }
  }
  const auto& probe = findings.probe;
  if (probe && (probe->scope == ProbeScope::kLastTokens || probe->scope == ProbeScope::kWhole)) {
    const Extremes extremes = largest(*probe);
    text += fmt::format("; the last {} tokens, recomputed{}, differ by {:.2g} (limit {:.2g})",
                        probe->n_tokens,
                        probe->scope == ProbeScope::kWhole ? " with all tokens before them" : "",
                        extremes.error, extremes.limit);
  } else if (probe && probe->scope == ProbeScope::kFirstLayer) {
    text += fmt::format(
        "; layer 0 fits the last {} tokens, the other layers depend on tokens that are gone and "
        "were not compared",
        probe->n_tokens);
  } else if (findings.is_foreign || probe) {
    text += fmt::format("; no value was compared with the model{}: identity stated, not checked",
                        probe ? " (the state cannot be cut shorter)" : "");
  }
  if (findings.standing == cache::Standing::kShifted) {
    text += "; context-shifted: not what the model computes from these tokens alone";
  }
  return text + "\n";
}

// Compares with the model and fills in `findings` up to the first failure.
Result<void> check_model(const Console& console, const VerifyFlags& flags, const std::string& name,
                         const ByteSource& source, std::unique_ptr<model::Model>& model,
                         Findings& findings) {
  if (!model) {  // for the first of several files
    TQC_TRY_ASSIGN(model, load_model(console, flags.model));
  }
  // Values are read when their layers are known to be of the model.
  TQC_TRY_ASSIGN(const format::CacheFileInfo info,
                 in_file(name, format::read_cache_info(source, console.access.keys)));
  Result<void> same = model::check_fits(info, *model);
  if (same) same = check_token_ids(info, model->config);
  if (!same) {
    findings.error = same.error();
    return {};
  }
  findings.compared_config = cache::share_model_fingerprint(info.identity, model->identity);
  findings.standing = info.identity.standing;
  findings.is_foreign = info.identity.source_format != "tqcache";
  format::ReadOptions options;
  options.n_threads = flags.n_threads;
  options.verify_digests = true;  // the same content that was verified before
  options.access = console.access;
  TQC_TRY_ASSIGN(cache::Cache cache, in_file(name, format::read_cache(source, options)));
  if (flags.n_probe == 0 || cache.n_tokens() == 0) return {};
  if (!cache::tokens_known(cache)) {
    findings.error = Error{ErrorCode::kUnsupported,
                           "the tokens are hidden and cannot be recomputed; use --probe 0"};
    return {};
  }
  // The last tokens of a predicted archive are coded, too.
  const bool is_predicted = info.prediction.has_value();
  const double limit = is_predicted ? std::max(flags.limit, kForeignQuantizedLimit) : flags.limit;
  std::optional<cache::Cache> earlier;
  if (!can_probe(cache)) {
    TQC_TRY_ASSIGN(const auto reader,
                   in_file(name, format::SectionReader::open(source, console.access)));
    if (const auto n = tokens_of_earlier_state(reader)) {
      TQC_TRY_ASSIGN(const auto first,
                     in_file(name, cache::first_tokens(cache::borrow(reader), *n)));
      TQC_TRY_ASSIGN(earlier,
                     in_file(name, cache::load(*first, {console.access.memory, flags.n_threads})));
    }
  }
  ProgressBar bar(console, "probing", Unit::kTokens);
  const bool can_be_cut = can_probe(cache);
  auto made = earlier ? probe_behind(*std::move(earlier), std::move(cache), *model, flags.n_probe,
                                     limit, flags.n_threads, bar.callback())
              : can_be_cut ? probe(std::move(cache), *model, flags.n_probe, limit, flags.n_threads,
                                   bar.callback())
                           : probe_alone(std::move(cache), *model, flags.n_probe, limit,
                                         flags.n_threads, bar.callback());
  TQC_TRY_ASSIGN(findings.probe, in_file(name, std::move(made)));
  if (std::optional<std::string> complaint = findings.probe->complaint()) {
    if (info.identity.source_format != "tqcache") {
      *complaint += fmt::format(
          "; values that another program computed may need --limit {}, and "
          "--limit {} if it quantized them",
          kForeignLimit, kForeignQuantizedLimit);
    }
    findings.error = Error{ErrorCode::kMismatch, *complaint};
  }
  return {};
}

// Checks the file itself. `source` has version 2 afterwards.
Result<void> check_file(const Console& console, const VerifyFlags& flags, const std::string& name,
                        FileKind kind, std::unique_ptr<ByteSource>& source, Findings& findings) {
  TQC_TRY(check_encrypted(console, name, *source));
  if (kind == FileKind::kTqkvVersion1) {
    findings.file.bytes_checked = source->size();
    TQC_TRY_ASSIGN(V1Input old, read_v1_input(console, *source, name, flags.n_threads, true));
    source = std::move(old.source);
    findings.v1 = std::move(old.summary);
    return {};
  }
  ProgressBar bar(console, "checking", Unit::kBytes);
  format::ReadOptions options;
  options.n_threads = flags.n_threads;
  options.access = console.access;
  TQC_TRY_ASSIGN(findings.file,
                 in_file(name, format::verify_cache(*source, options, bar.callback())));
  return {};
}

// Checks a file and prints the verdict, or returns it in `json`. The result is why the cache is
// rejected.
Result<void> verify(const Console& console, const VerifyFlags& flags, const std::string& file,
                    std::unique_ptr<model::Model>& model, Json& json) {
  const std::string name = display_name(file, "standard input");
  TQC_TRY_ASSIGN(std::unique_ptr<ByteSource> source, open_source(file));
  TQC_TRY_ASSIGN(const FileKind kind, in_file(name, own_kind(*source)));
  Findings findings;
  TQC_TRY(check_file(console, flags, name, kind, source, findings));
  const std::vector<std::string>& damage = findings.file.damage;
  if (!damage.empty()) {
    for (const std::string& line : damage) complain(name, line);
    findings.error = Error{ErrorCode::kCorrupt, fmt::format("{} problem{} found", damage.size(),
                                                            damage.size() == 1 ? "" : "s")};
  } else if (!flags.model.empty()) {
    TQC_TRY(check_model(console, flags, name, *source, model, findings));
  }
  json = findings_json(name, flags, findings);
  if (findings.error) return in_file(name, *findings.error);
  return console.json ? Result<void>() : print(verdict(name, flags, findings));
}

Result<ExitCode> run(const Console& console, const VerifyFlags& flags) {
  if (!(flags.limit >= 0 && flags.limit <= 1)) return usage_error("--limit: not between 0 and 1");
  std::unique_ptr<model::Model> model;
  if (flags.files.size() == 1) {
    Json json;
    const Result<void> outcome = verify(console, flags, flags.files.front(), model, json);
    if (console.json && !json.is_null()) TQC_TRY(print_json(json));
    if (!outcome) return outcome.error();
    return ExitCode::kDone;
  }
  Tally tally;
  Json files = Json::array();
  for (const std::string& file : flags.files) {
    Json json;
    const Result<void> outcome = verify(console, flags, file, model, json);
    if (json.is_null()) json = {{"file", file}, {"ok", false}};
    json["error"] = outcome ? Json(nullptr) : failure_json(outcome.error());
    files.push_back(std::move(json));
    if (outcome) {
      tally.done();
    } else {
      tally.failed(outcome.error());
      if (outcome.error().code == ErrorCode::kInterrupted) break;
    }
  }
  if (console.json) TQC_TRY(print_json({{"schema", 1}, {"files", files}}));
  return tally.exit_code();
}

}  // namespace

Action define_verify(FlagSet& app) {
  const auto flags = std::make_shared<VerifyFlags>();
  app.add("file", flags->files, "Cache files; - is standard input")
      ->type_name("")
      ->file()
      ->required();
  add_model_flag(app, flags->model, false);
  app.add("--probe", flags->n_probe, "With --model: number of tokens to recompute; 0 turns it off")
      ->type_name("N")
      ->at_least(0)
      ->show_default();
  app.add("--limit", flags->limit,
          "With --probe: largest relative difference of dense values. Values from another program "
          "may need 0.05, or 0.7 if it quantized them")
      ->type_name("X")
      ->show_default();
  add_resource_flags(app, flags->n_threads);
  app.footer(kVerifyExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
