// tools/verbs/cmd_convert.cpp: quantization of caches, and conversion between programs.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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
#include "tqcache/format/predicted_blocks.h"
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

// Rejects K or V whose stored bit width differs from the requested one.
Result<void> check_kept_codes(const cache::CacheDesc& manifest,
                              const cache::ConvertOptions& options) {
  const auto check = [](std::size_t layer, const cache::TensorDesc& tensor, const char* what,
                        const cache::TensorPlan& plan) -> Result<void> {
    if (!tensor.quant || plan.keep_packed) return {};
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("layer {} {}: is packed already, in codes that are kept without "
                             "--bits and --config; --bits 16 decodes them",
                             layer, what)};
  };
  for (std::size_t i = 0; i < manifest.layers.size(); ++i) {
    const auto* attention = std::get_if<cache::AttentionDesc>(&manifest.layers[i]);
    if (attention == nullptr) continue;
    TQC_TRY(check(i, attention->k, "k", options.keys));
    TQC_TRY(check(i, attention->v, "v", options.values));
  }
  return {};
}

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
  if (plan.predictor != nullptr) {
    const std::int64_t n_sinks = std::max(plan.options.keys.n_sinks, plan.options.values.n_sinks);
    TQC_TRY_ASSIGN(const auto predicted, format::predict_cache(cache::borrow(cache), plan.predictor,
                                                               plan.predicted_step, n_sinks));
    format::WriteOptions write = job.write;
    write.keep_stored = true;
    TQC_TRY(format::write_cache(*predicted, file, write, bar.callback()));
  } else {
    TQC_TRY(format::convert_file(cache, file, plan.options, job.write, bar.callback()));
  }
  const std::uint64_t size = file.size();
  TQC_TRY(file.commit());
  return size;
}

// Whether --bits or --config says how keys ('k') or values ('v') are to be quantized: v=dense says
// nothing of keys.
bool is_asked_for(const CodecFlags& codec, char tensor) {
  if (codec.bits) return true;
  if (!codec.configuration) return false;
  const std::string& text = *codec.configuration;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = std::string_view(text).substr(begin, end - begin);
    const bool is_of_one = item.size() > 1 && (item[1] == '=' || item[1] == '.');
    if (!is_of_one || item[0] == tensor) return true;
    begin = end + 1;
  }
  return false;
}

Result<ExitCode> convert(const Console& console, const InputFile& file, Job& job) {
  const ConvertFlags& flags = job.flags;
  ForeignFlags reading = flags.foreign;
  if (file.is_foreign()) {
    // A .tqkv file keeps the codes of another program, unless K or V is to be dense there. Files of
    // other programs get decoded values, which saves one rounding.
    cache::TensorPlan &keys = job.options.keys, &values = job.options.values;
    keys.keep_packed = !is_asked_for(flags.codec, 'k');
    values.keep_packed = !is_asked_for(flags.codec, 'v');
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
  if (job.archive) {
    report.archive = plan.predictor == nullptr ? cache::configuration_text(plan.options)
                                               : fmt::format("predicted:{}", plan.predicted_step);
    if (plan.predictor != nullptr) report.profile = to_hex(plan.predictor->digest());
  }
  report.expected_kld = plan.expected_kld;
  report.options = std::move(plan.options);
  report.notes = std::move(input.notes);
  report.dropped = std::move(input.dropped);
  const std::size_t n_checkpoints = cache.checkpoints().size();
  std::ranges::move(losses_of(job.target, flags.target, description, n_checkpoints),
                    std::back_inserter(report.dropped));
  std::ranges::move(export_notes(job.target, flags.target, description, n_checkpoints),
                    std::back_inserter(report.notes));
  TQC_TRY(report_conversion(console, description, report));
  return ExitCode::kDone;
}

// The name of the first flag that was given, or empty.
std::string first_given(const std::vector<const Flag*>& flags) {
  const auto given = std::ranges::find_if(flags, [](const Flag* each) { return each->is_given(); });
  return given == flags.end() ? std::string() : (*given)->name();
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
    if (const std::string flag = first_given(flags.of_own); !flag.empty()) {
      return usage_error(fmt::format("{} applies to .tqkv files, not to {}", flag, to));
    }
  }
  if (!is_foreign && !is_llama) {
    if (const std::string flag = first_given(flags.of_foreign); !flag.empty()) {
      return usage_error(flag + " applies to files of other programs");
    }
  }
  return {};
}

// What else a configuration has follows from the goal of an archive.
Result<void> check_archive_settings(const cache::ConvertOptions& options) {
  const auto is_trellis = [](const cache::TensorPlan& plan) {
    return !plan.dense && plan.codec.mode == codec::Mode::kTrellis && !plan.fit_transforms;
  };
  if (is_trellis(options.keys) && is_trellis(options.values) && options.boundary.n == 0 &&
      options.windows == cache::WindowMode::kAsTheyAre && options.fit == cache::Fit::kFirstBlock &&
      options.weights == cache::StepWeights{} && options.calibration == nullptr) {
    return {};
  }
  return usage_error(
      "--config archive takes sink= and center= alone: the rest follows from --bits");
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
    TQC_TRY(check_archive_settings(job.options));
    TQC_TRY_ASSIGN(job.archive, archive_goal(console, flags.codec, flags.archive));
    if (compression.is_given && compression.method == "none") {
      return usage_error("--compress none does not go with --config archive");
    }
    // K or V that is already quantized is kept unless another size is asked for.
    const bool keeps = !flags.codec.bits && !flags.archive.target_mse && !flags.archive.target_kld;
    job.options.keys.keep_packed = job.options.values.keep_packed = keeps;
  } else {
    if (flags.archive.target_mse) return usage_error("--target-mse needs --config archive");
    if (flags.archive.target_kld) return usage_error("--target-kld needs --config archive");
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

// The flags that `add` adds.
template <class Add>
std::vector<const Flag*> flags_of(FlagSet& app, Add add) {
  const std::size_t n_before = app.flags().size();
  add();
  std::vector<const Flag*> added;
  for (std::size_t i = n_before; i < app.flags().size(); ++i) added.push_back(app.flags()[i].get());
  return added;
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
  flags->of_own = flags_of(app, [&] {
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
  flags->of_foreign = flags_of(app, [&] { add_foreign_flags(app, flags->foreign); });
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
