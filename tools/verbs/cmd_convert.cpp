// tools/verbs/cmd_convert.cpp: quantization of caches, and conversion between programs.

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/any_input.h"
#include "cli/archive_goal.h"
#include "cli/cache_io.h"
#include "cli/codec_flags.h"
#include "cli/common_flags.h"
#include "cli/export_target.h"
#include "cli/model_facts.h"
#include "cli/terminal.h"
#include "cli/verb.h"
#include "report/convert_report.h"
#include "tqcache/file.h"
#include "tqcache/predict/predictor.h"
#include "tqcache/quantize.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"
#include "verbs/convert_help.h"

namespace tqcache::cli {
namespace {

struct ConvertFlags {
  std::string input;
  std::string output;
  std::string named_output;  // of -o
  CodecFlags codec;
  ArchiveFlags archive;
  CompressionFlags compression;
  ForeignFlags foreign;
  ExportFlags target;
  std::optional<std::int64_t> first_tokens;
  bool no_tokens = false;
  unsigned n_threads = 0;
  bool force = false;
  // Flags that apply only to .tqkv files as output, and flags for the files of other programs.
  std::vector<const Flag*> of_own;
  std::vector<const Flag*> of_foreign;

  Overwrite overwrite() const { return force ? Overwrite::kAllow : Overwrite::kRefuse; }
};

// The work, after the flags have been checked.
struct Job {
  const ConvertFlags& flags;
  Target target = Target::kTqkv;
  cache::ConvertOptions options;
  format::WriteOptions write;
  ModelFacts model;
  std::optional<ArchiveGoal> archive;
};

// Writes the cache, and returns the size of the file.
Result<std::uint64_t> write_result(const Console& console, const cache::CacheReader& cache,
                                   const Job& job, const ArchivePlan& plan) {
  const ConvertFlags& flags = job.flags;
  ProgressBar bar(console, "converting", Unit::kBytes);
  if (job.target != Target::kTqkv) {
    TQC_TRY(write_target(job.target, cache, flags.output, flags.target, flags.foreign.rotation,
                         job.model, flags.overwrite(), bar.callback()));
    return size_on_disk(flags.output);
  }
  TQC_TRY_ASSIGN(
      AtomicFile file,
      AtomicFile::create(flags.output == "-" ? "/dev/stdout" : flags.output, flags.overwrite()));
  if (plan.predicted != nullptr) {
    format::WriteOptions write = job.write;
    write.keep_stored = true;
    TQC_TRY(format::write_cache(*plan.predicted, file, write, bar.callback()));
  } else {
    TQC_TRY(format::convert_file(cache, file, plan.options, job.write, bar.callback()));
  }
  const std::uint64_t size = file.size();
  TQC_TRY(file.commit());
  return size;
}

Result<ExitCode> convert(const Console& console, const InputFile& file, Job& job) {
  const ConvertFlags& flags = job.flags;
  ForeignFlags reading = flags.foreign;
  if (file.is_foreign()) {
    // A .tqkv file keeps the codes of another program, unless K or V is to be dense there. Files of
    // other programs get decoded values, which saves one rounding.
    cache::TensorPlan &keys = job.options.keys, &values = job.options.values;
    keys.keep_packed = !asks_for(flags.codec, 'k');
    values.keep_packed = !asks_for(flags.codec, 'v');
    const bool is_ours = job.target == Target::kTqkv;
    reading.decode_keys = !is_ours || (!keys.keep_packed && keys.dense);
    reading.decode_values = !is_ours || (!values.keep_packed && values.dense);
  } else {
    const bool is_unpacked =
        !job.options.keep_all && job.options.keys.dense && job.options.values.dense;
    reading.decode_keys = reading.decode_values = is_unpacked;
  }
  TQC_TRY_ASSIGN(AnyInput input, open_any_input(console, file, reading, job.model,
                                                flags.first_tokens, flags.n_threads));
  const cache::CacheReader& cache = *input.cache;
  const cache::CacheDesc& description = cache.description();
  if (file.is_foreign()) TQC_TRY(in_file(file.name, check_kept_codes(description, job.options)));
  if (!flags.codec.profile.empty() && !job.archive && job.target == Target::kTqkv) {
    TQC_TRY(add_calibration(console, flags.codec.profile, description, job.options));
  }

  ArchivePlan plan{job.options, std::nullopt};
  if (job.archive && job.target == Target::kTqkv) {
    TQC_TRY_ASSIGN(plan,
                   in_file(file.name, plan_archive(console, cache, *job.archive, job.options)));
  }
  const auto size = write_result(console, cache, job, plan);
  const std::string output = display_name(flags.output, "standard output");
  if (!size) {
    const std::string& blamed = file.source->to_blame(size.error(), file.name, output);
    return in_file(blamed, Error{size.error()});
  }

  ConvertReport report{.output = flags.output,
                       .from = std::string(name_of(file.kind())),
                       .to = std::string(name_of(job.target)),
                       .is_tqkv = job.target == Target::kTqkv,
                       .is_cut = flags.first_tokens.has_value(),
                       .n_tokens = cache.n_tokens(),
                       .bytes_before = input.file_bytes,
                       .bytes_after = *size,
                       .n_values = input.n_values};
  if (job.archive) report.archive = plan.text();
  if (plan.predictor != nullptr) report.profile = to_hex(plan.predictor->digest());
  report.expected_kld = plan.expected_kld;
  report.options = std::move(plan.options);
  report.notes = std::move(input.notes);
  report.dropped = std::move(input.dropped);
  describe_export(job.target, flags.target, cache, report.dropped, report.notes);
  TQC_TRY(report_conversion(console, description, report));
  return ExitCode::kDone;
}

// Flags that exclude each other.
Result<void> check_flags(const ConvertFlags& flags, Target target, bool is_foreign, bool json) {
  const bool to_stdout = flags.output == "-";
  if (json && to_stdout) {
    return usage_error("--json: standard output is used for the cache");
  }
  const bool is_llama = target == Target::kLlamaSession || target == Target::kLlamaSequence;
  if (target != Target::kTqkv) {
    const std::string to = fmt::format("a {}", name_of(target));
    if (to_stdout) return usage_error(to + " cannot be written to standard output");
    if (const Flag* const flag = first_given(flags.of_own)) {
      return usage_error(fmt::format("{} applies to .tqkv files, not to {}", flag->name(), to));
    }
  }
  if (!is_foreign && !is_llama) {
    if (const Flag* const flag = first_given(flags.of_foreign)) {
      return usage_error(flag->name() + " applies to files of other programs");
    }
  }
  return {};
}

// The settings of K and V, the goal of an archive, and how the file is written.
Result<void> settle_flags(const Console& console, Job& job) {
  const ConvertFlags& flags = job.flags;
  TQC_TRY_ASSIGN(cache::Configuration configuration, configuration_of(flags.codec));
  job.options = std::move(configuration.options);
  job.options.n_threads = flags.n_threads;
  job.options.losses = std::make_shared<cache::LossLog>();
  CompressionFlags compression = flags.compression;
  if (configuration.is_archive) {
    TQC_TRY_ASSIGN(job.archive, archive_goal(console, flags.codec, flags.archive, job.options));
    if (compression.is_given && compression.method == "none") {
      return usage_error("--compress none does not go with --config archive");
    }
  } else if (flags.archive.target_mse || flags.archive.target_kld) {
    return usage_error(fmt::format("--target-{} needs --config archive",
                                   flags.archive.target_mse ? "mse" : "kld"));
  }
  if (job.options.keep_all) {
    if (!flags.codec.profile.empty()) {
      return usage_error("--profile does not go with --config lossless, which quantizes nothing");
    }
    if (!compression.is_given) compression.method = "planes";
  }
  TQC_TRY_ASSIGN(job.write, write_options(compression, flags.n_threads, flags.force));
  job.write.hide_tokens = flags.no_tokens;
  job.write.keys = console.access.keys;
  job.options.memory = console.access.memory;
  return {};
}

Result<ExitCode> run(const Console& console, const ConvertFlags& flags) {
  TQC_TRY_ASSIGN(const Target target, target_of(flags.target, flags.output));
  Job job{flags, target, {}, {}, {}, {}};
  TQC_TRY(settle_flags(console, job));
  TQC_TRY(check_flags(flags, target, true, console.json));
  TQC_TRY(check_output(flags.output, flags.force));
  TQC_TRY_ASSIGN(const InputFile file, open_input_file(flags.input));
  TQC_TRY(check_flags(flags, target, !file.is_own(), console.json));
  TQC_TRY_ASSIGN(job.model, load_model_facts(console, flags.foreign.model));
  return convert(console, file, job);
}

}  // namespace

Action define_convert(FlagSet& app) {
  const auto flags = std::make_shared<ConvertFlags>();
  app.add("in", flags->input, "Cache file to read; - is standard input")
      ->type_name("")
      ->file()
      ->required();
  Flag* const out = app.add("out", flags->output, "Cache file to write; - is standard output");
  out->type_name("")->file();
  app.add("-o,--output", flags->named_output, "Another way to name OUT")
      ->type_name("FILE")
      ->file()
      ->excludes(out);
  flags->of_own = app.added_by([&] {
    add_bits_flag(app, flags->codec, "Quantization");
    add_config_flag(app, flags->codec, "Quantization");
    app.add("--profile", flags->codec.profile,
            "File of tqcache profile: its factors of keys lower the error; with --config archive "
            "it distributes or predicts. A folder: the profile in it that fits the model")
        ->type_name("FILE")
        ->file()
        ->group("Quantization");
    add_archive_flags(app, flags->archive);
    add_no_tokens_flag(app, flags->no_tokens);
    add_compression_flags(app, flags->compression, "zstd");
  });
  add_first_tokens_flag(app, flags->first_tokens);
  flags->of_foreign = app.added_by([&] { add_foreign_flags(app, flags->foreign); });
  add_export_flags(app, flags->target);
  add_resource_flags(app, flags->n_threads);
  add_force_flag(app, flags->force);
  app.usual({"in", "out", "--bits", "--config", "--profile", "--tokens", "--model", "--to",
             "--ids-file", "--threads", "--force", "--json"});
  app.footer(convert_help());
  return [flags](const Console& console) -> Result<ExitCode> {
    if (flags->output.empty()) flags->output = flags->named_output;
    if (flags->output.empty()) return usage_error("no output: name the file as OUT or with -o");
    return run(console, *flags);
  };
}

}  // namespace tqcache::cli
