// tools/verbs/cmd_convert.cpp: quantization of caches, and conversion between programs.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/cache_io.h"
#include "cli/codec_flags.h"
#include "cli/common_flags.h"
#include "cli/export_target.h"
#include "cli/foreign_input.h"
#include "cli/model_facts.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/tier.h"
#include "cli/verb.h"
#include "migrations/migrate_file.h"
#include "report/info.h"
#include "tqcache/file.h"
#include "tqcache/format/predicted_blocks.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/predict/predictor.h"
#include "tqcache/predict/rate.h"
#include "tqcache/quantize.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::cli {
namespace {

constexpr const char* kConvertNotes =
    R"(Only full blocks of 256 tokens are quantized; the tokens after them stay dense until their block is
full. Conversion works block by block, so memory does not grow with the cache.
--bits 16 makes a dense file of a quantized one. It keeps the errors of quantization, which verify -m
then takes for those of another model (--probe 0 compares only the fingerprints).

The format of IN is detected from its content: a .tqkv file, or a cache of mlx-lm, llama.cpp,
transformers (tools/tqcache_hf.py), NumPy or TurboMLX. Files of other programs do not identify their
model: pass --model, which also recomputes a few tokens to check it (--probe; exit code 22 if they
differ). --ids-file supplies token ids that a file lacks; without them generation cannot resume.
docs/reference/interop.md lists what each format loses. Quantized values of TurboMLX are kept,
except where flags ask for dense ones (--bits 16).

)";

constexpr const char* kConvertExamples =
    R"(Examples:
  tqcache convert book.kv book.tqkv
  tqcache convert book.kv book.tqkv --preset k8v4
  tqcache convert book.kv book.tqkv --quality high     or balanced, small
  tqcache convert book.kv book.tqkv --key-bits 4 --value-bits 3
  tqcache convert book.kv book.tqkv --key-bits 16      keys stay dense
  tqcache convert book.tqkv dense.kv --bits 16         dense again
  tqcache convert book.kv book.tqkv --boundary-layers 2 --sink-tokens 4
  tqcache convert book.kv book.tqkv --mode mixed --outlier-channels 32
  tqcache convert book.kv book.tqkv --profile m.tqprofile   less error at the same size
  tqcache convert book.kv book.tqkv --tier lossless
  tqcache convert book.kv book.tqkv --tier archive --bits 2.8
  tqcache convert book.kv book.tqkv --tier archive --profile m.tqprofile --target-kld 0.05
  tqcache convert book.kv chapter.tqkv --tokens 4096
  tqcache convert - - < book.kv > book.tqkv
  tqcache convert mlx.safetensors book.tqkv -m hf-folder --ids-file book.json
  tqcache convert slot.bin book.tqkv -m model.gguf --bits 16
  tqcache convert book.tqkv book.safetensors --to mlx-lm
  tqcache convert book.tqkv book.ggsn --to llama-session -m model.gguf
)";

std::string footer() {
  std::string text = std::string(kConvertNotes) + "Presets:\n";
  for (const std::string_view name : cache::preset_names()) {
    text += fmt::format("  {:<9} {}\n", name, cache::preset_description(name));
  }
  return text + "\n" + kConvertExamples;
}

struct ConvertFlags {
  std::string input;
  std::string output;
  std::string named_output;  // of -o
  TierFlags tier;
  CodecFlags codec;
  CompressionFlags compression;
  ForeignFlags foreign;
  ExportFlags target;
  std::optional<std::int64_t> first_tokens;
  bool no_tokens = false;
  unsigned n_threads = 0;
  bool force = false;
  // Flags that apply only to .tqkv files as output, and flags for the files of other programs.
  std::vector<const Flag*> of_own;
  std::vector<const Flag*> of_codec;  // the subset that says how K and V are quantized
  std::vector<const Flag*> of_foreign;
};

struct Sizes {
  std::uint64_t before = 0;  // bytes of the input file
  std::uint64_t after = 0;
  std::int64_t n_tokens = 0;   // that were converted
  std::uint64_t n_values = 0;  // their keys and values

  double ratio() const {
    return after == 0 ? 0 : static_cast<double>(before) / static_cast<double>(after);
  }
};

// The work, after the flags have been checked.
struct Job {
  const ConvertFlags& flags;
  Target target = Target::kTqkv;
  cache::ConvertOptions options;
  format::WriteOptions write;
  ModelFacts model;
  std::optional<Archive> archive;      // its goal
  std::optional<double> expected_kld;  // of the archive, if a profile predicts it
  float predicted_step = 0;            // above 0: a predicted archive
  std::shared_ptr<const predict::Predictor> predictor = {};  // of it

  std::int64_t predicted_sinks() const {
    return std::max(options.keys.n_sinks, options.values.n_sinks);
  }
  Overwrite overwrite() const { return flags.force ? Overwrite::kAllow : Overwrite::kRefuse; }
};

// The step of an archive that falls back from prediction, where the bits asked for are out of
// reach: about 3 bits per value.
constexpr float kUsualArchiveStep = 0.25f;

// Whether keys and values are to be dense (--bits 16).
bool is_unpacked(const cache::ConvertOptions& options) {
  return !options.keep_all && options.keys.dense && options.values.dense;
}

// Notes on the result, besides its size.
struct Remarks {
  std::string from;  // the kind of the input
  std::vector<std::string> notes;
  std::vector<std::string> losses;
  std::vector<std::string> hints;
};

// ", 3.50 times smaller"; empty for a device, which has no size.
std::string ratio_text(const Sizes& sizes) {
  if (sizes.after == 0 || sizes.before == 0 || sizes.after == sizes.before) return {};
  const bool is_smaller = sizes.after < sizes.before;
  return fmt::format(", {:.2f} times {}", is_smaller ? sizes.ratio() : 1 / sizes.ratio(),
                     is_smaller ? "smaller" : "larger");
}

// What the user may not know of the result: why it did not become smaller.
std::vector<std::string> hints_of(const cache::CacheDesc& info, const Job& job,
                                  std::int64_t n_tokens) {
  std::vector<std::string> hints;
  if (job.target != Target::kTqkv || job.options.keep_all || is_unpacked(job.options)) return hints;
  const auto n_small = std::ranges::count_if(info.layers, [](const cache::LayerDesc& layer) {
    const auto* attention = std::get_if<cache::AttentionDesc>(&layer);
    return attention != nullptr && std::min(attention->shape.head_dim,
                                            attention->value_shape().head_dim) < codec::kMinHeadDim;
  });
  if (n_small > 0 && job.options.keys.keep_small_heads) {
    hints.push_back(fmt::format("{} stayed dense: only a head_dim of {} or more is quantized",
                                counted(n_small, "layer"), codec::kMinHeadDim));
  }
  if (n_tokens < cache::kTokenBlock) {
    hints.push_back(fmt::format("nothing was quantized: only full blocks of {} tokens are",
                                cache::kTokenBlock));
  }
  const auto n_windows = std::ranges::count_if(info.layers, [](const cache::LayerDesc& layer) {
    const auto* window = std::get_if<cache::WindowDesc>(&layer);
    return window != nullptr && window->window.keep == 0 && !cache::is_quantized(window->attention);
  });
  if (n_windows > 0 && job.options.windows == cache::WindowForm::kAsTheyAre && !job.archive) {
    hints.push_back(fmt::format("{} stayed dense; --windows turbo quantizes {}",
                                counted(n_windows, "sliding-window layer"),
                                n_windows == 1 ? "it" : "them"));
  }
  return hints;
}

// Keys or values that the model will hardly work with, and what could help. Empty: none.
std::string bad_tensors_text(const cache::CacheDesc& cache, const Job& job,
                             cache::TensorKind kind) {
  std::string layers;
  double share = 0;
  std::int64_t n = 0;
  for (const cache::TensorLoss& loss : job.options.losses->losses()) {
    if (loss.kind != kind || loss.share <= cache::kHeavyLoss) continue;
    if (++n <= 8) layers += fmt::format("{}{}", n > 1 ? ", " : "", loss.layer);
    share = std::max(share, loss.share);
  }
  if (n == 0) return {};
  if (n > 8) layers += fmt::format(" and {} more", n - 8);
  const bool is_key = kind == cache::TensorKind::kKeys;
  const std::string word = is_key ? "key" : "value";
  const cache::Centering center = is_key ? job.options.keys.center : job.options.values.center;
  std::string help = job.archive ? "more bits, or tier turbo with a profile of the model, help"
                                 : fmt::format(
                                       "more bits (--{}-bits 8) or dense ones "
                                       "(--{}-bits 16) help",
                                       word, word);
  if (center == cache::Centering::kNone) {
    help = "they are not centered; without center=none the common part is not coded";
  } else if (is_key && cache.identity.rope == cache::Rope{}) {
    help = "the RoPE of the model is not known; with -m MODEL keys are centered before it";
  } else if (is_key && job.options.calibration == nullptr && !job.archive) {
    help = "a profile of the model (tqcache profile, then --profile), or " + help;
  }
  return fmt::format(
      "the {}s of {} {} quantize badly: the error has {:.1f} times the energy of what tells tokens "
      "apart, in half of a head; {}",
      word, n == 1 ? "layer" : "layers", layers, share, help);
}

void warn_of_losses(const cache::CacheDesc& cache, const Job& job) {
  if (job.target != Target::kTqkv || job.options.losses == nullptr) return;
  const std::string output = display_name(job.flags.output, "standard output");
  for (const auto kind : {cache::TensorKind::kKeys, cache::TensorKind::kValues}) {
    const std::string text = bad_tensors_text(cache, job, kind);
    if (!text.empty()) warn(output, text);
  }
}

// The largest loss of all keys, and of all values; null: none was quantized.
Json lost_json(const Job& job) {
  Json lost{{"k", nullptr}, {"v", nullptr}};
  for (const cache::TensorLoss& loss : job.options.losses->losses()) {
    Json& most = lost[loss.kind == cache::TensorKind::kKeys ? "k" : "v"];
    if (most.is_null() || most.get<double>() < loss.share) most = loss.share;
  }
  return lost;
}

Json bad_tensors_json(const Job& job) {
  Json list = Json::array();
  for (const cache::TensorLoss& loss : job.options.losses->losses()) {
    if (loss.share <= cache::kHeavyLoss) continue;
    list.push_back({{"layer", loss.layer},
                    {"tensor", loss.kind == cache::TensorKind::kKeys ? "k" : "v"},
                    {"lost", loss.share}});
  }
  return list;
}

Json archive_json(const Job& job) {
  Json json;
  json["configuration"] = job.predicted_step > 0 ? fmt::format("predicted:{}", job.predicted_step)
                                                 : cache::configuration_text(job.options);
  if (job.predicted_step > 0) json["profile"] = to_hex(job.predictor->digest());
  json["expected_kld"] = job.expected_kld ? Json(*job.expected_kld) : Json(nullptr);
  return json;
}

Result<void> tell(const Console& console, const Job& job, const Sizes& sizes,
                  const Remarks& remarks) {
  const ConvertFlags& flags = job.flags;
  std::optional<double> bits;
  if (sizes.after > 0) bits = bits_per_value(sizes.after, sizes.n_values);  // a device has no size
  // A ratio of sizes makes no sense if only a part was converted.
  const std::string change =
      flags.first_tokens ? fmt::format("the first {}, {} bytes", counted(sizes.n_tokens, "token"),
                                       grouped(sizes.after))
      : sizes.after == 0 ? fmt::format("{} bytes converted", grouped(sizes.before))
                         : fmt::format("{} -> {} bytes{}", grouped(sizes.before),
                                       grouped(sizes.after), ratio_text(sizes));
  const std::string output = display_name(flags.output, "standard output");
  note(console, fmt::format("{}: {}{}", output, change,
                            bits ? fmt::format(", {:.3f} bits per value", *bits) : ""));
  if (job.expected_kld) {
    note(console, fmt::format("expected mean KL divergence: {:.3g} nats", *job.expected_kld));
  }
  for (const std::string& each : remarks.notes) note(console, fmt::format("note: {}", each));
  for (const std::string& each : remarks.losses) note(console, fmt::format("dropped: {}", each));
  for (const std::string& each : remarks.hints) note(console, fmt::format("hint: {}", each));
  if (!console.json) return {};
  Json object;
  object["schema"] = 1;
  object["file"] = flags.output;
  object["from"] = remarks.from;
  object["to"] = name_of(job.target);
  object["n_tokens"] = sizes.n_tokens;
  object["bytes_before"] = sizes.before;
  object["bytes_after"] = sizes.after;
  object["ratio"] = sizes.ratio();
  object["bits_per_value"] = bits ? Json(*bits) : Json(nullptr);
  if (job.archive) object["archive"] = archive_json(job);
  object["notes"] = remarks.notes;
  object["losses"] = remarks.losses;
  object["lost"] = lost_json(job);
  object["badly_quantized"] = bad_tensors_json(job);
  return print_json(object);
}

// Reports that the requested centering of keys before RoPE is not possible.
void report_fallback(const Console& console, const cache::CacheDesc& info,
                     const cache::ConvertOptions& options) {
  const cache::SidePlan& keys = options.keys;
  if (options.keep_all || keys.dense || keys.center != cache::Centering::kPreRope) return;
  for (const cache::LayerDesc& layer : info.layers) {
    const bool is_window = std::holds_alternative<cache::WindowDesc>(layer);
    if (is_window && options.windows != cache::WindowForm::kTurboCentered) continue;
    const cache::AttentionDesc* attention = cache::attention_of(layer);
    if (attention == nullptr || attention->k.quant) continue;
    if (keys.keep_small_heads && attention->shape.head_dim < codec::kMinHeadDim) continue;
    const auto got =
        cache::key_centering(keys.center, info.identity.rope, attention->shape.head_dim);
    if (got == keys.center) continue;
    note(console,
         "the cache does not store the RoPE parameters of its model; keys are centered after RoPE "
         "instead");
    return;
  }
}

// A source that remembers whether reading failed: then an error is due to the input, otherwise to
// the output.
class WatchedSource : public ByteSource {
 public:
  explicit WatchedSource(std::shared_ptr<const ByteSource> source) : source_(std::move(source)) {}
  std::uint64_t size() const override { return source_->size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    Result<void> read = source_->read_at(offset, out);
    if (!read) failed_ = true;
    return read;
  }
  // The file that caused an error of the work from `input` to `output`.
  const std::string& to_blame(const Error& error, const std::string& input,
                              const std::string& output) const {
    if (error.code == ErrorCode::kBusy) return output;  // another process is writing to it
    return error.code == ErrorCode::kIo && !failed_ ? output : input;
  }

 private:
  std::shared_ptr<const ByteSource> source_;
  mutable std::atomic<bool> failed_ = false;
};

bool has_dense_sides(const cache::CacheDesc& manifest) {
  return std::ranges::any_of(manifest.layers, [](const cache::LayerDesc& layer) {
    const auto* attention = std::get_if<cache::AttentionDesc>(&layer);
    return attention != nullptr && (!attention->k.quant || !attention->v.quant);
  });
}

// The profiles that the cache can be predicted with. A profile that was named has to fit; of a
// folder those that fit count.
Result<std::vector<std::shared_ptr<const predict::Predictor>>> fitting_predictors(
    const Console& console, const cache::CacheDesc& cache, const Archive& archive) {
  std::vector<std::shared_ptr<const predict::Predictor>> all, fitting;
  if (archive.predictor != nullptr) all.push_back(archive.predictor);
  if (!archive.profile_folder.empty()) {
    TQC_TRY_ASSIGN(all, predict::profiles_of_model(archive.profile_folder,
                                                   cache.identity.weights_fingerprint));
  }
  std::string why = "no profile in the folder belongs to the model of the cache";
  for (const auto& each : all) {
    const auto fits = format::check_predictable(cache, each->profile());
    if (fits) fitting.push_back(each);
    if (fits) continue;
    if (fits.error().code != ErrorCode::kUnsupported && archive.predictor != nullptr) {
      return fits.error();
    }
    why = fits.error().message;
  }
  if (fitting.empty()) {
    const std::string bits = archive.predicted_kld
                                 ? fmt::format(" with {} bits per value", *archive.target.bits)
                                 : std::string();
    note(console, fmt::format("{}: an archive without prediction is made{}", why, bits));
  }
  return fitting;
}

// Chooses the profile and the step of a predicted archive: the least divergence to expect at the
// bits that were asked for, or the fewest bits at the divergence.
Result<void> settle_prediction(const Console& console, const cache::CacheReader& source, Job& job) {
  const Archive& archive = *job.archive;
  if (!archive.may_predict()) return {};
  TQC_TRY_ASSIGN(const auto predictors, fitting_predictors(console, source.description(), archive));
  double least = std::numeric_limits<double>::infinity();
  for (const auto& each : predictors) {
    float step = 0;
    double cost = 0;
    if (archive.predicted_kld) {
      TQC_TRY_ASSIGN(const double found,
                     predict::step_of_divergence(each->profile(), *archive.predicted_kld));
      step = static_cast<float>(found);
      if (predictors.size() > 1) {
        TQC_TRY_ASSIGN(cost, format::predicted_bits_of_step(source, each, job.predicted_sinks(),
                                                            step, job.options.n_threads));
      }
    } else {
      TQC_TRY_ASSIGN(const format::PredictedStep found,
                     format::choose_predicted_step(source, each, job.predicted_sinks(),
                                                   archive.predicted_bits, job.options.n_threads));
      step = found.step;
      cost = predict::expected_divergence(each->profile(), double{step});
    }
    if (cost >= least) continue;
    least = cost;
    job.predictor = each;
    job.predicted_step = step;
    job.expected_kld = predict::expected_divergence(each->profile(), double{step});
  }
  return {};
}

// Finds the quantization step of an archive, if one is made.
Result<void> settle_archive(const Console& console, const cache::CacheReader& source, Job& job) {
  if (!job.archive || job.target != Target::kTqkv) return {};
  TQC_TRY(settle_prediction(console, source, job));
  if (job.predicted_step > 0) return {};
  ProgressBar bar(console, "measuring", Unit::kSides);
  if (const auto& profile = job.archive->profile) {
    const cache::CacheDesc& manifest = source.description();
    TQC_TRY(eval::check_profile(*profile, manifest.identity, std::ssize(manifest.layers)));
    job.options.weights = profile->weights;
  }
  auto chosen = format::choose_step(source, job.options, job.archive->target, bar.callback());
  if (!chosen && chosen.error().code == ErrorCode::kInvalidArgument && job.archive->may_predict()) {
    // The bits were meant for a predicted archive.
    note(console, fmt::format("{}: the step of about 3 bits is used", chosen.error().message));
    format::ArchiveTarget usual;
    usual.step = kUsualArchiveStep;
    chosen = format::choose_step(source, job.options, usual, bar.callback());
  }
  TQC_TRY_ASSIGN(job.options, std::move(chosen));
  if (const auto& profile = job.archive->profile;
      profile && has_dense_sides(source.description())) {
    job.expected_kld = eval::divergence_of_step(*profile, double{job.options.keys.codec.step});
  }
  return {};
}

bool begins_as_profile(const std::string& path) {
  constexpr std::string_view kWord = "tqcache-profile ";
  std::array<std::byte, kWord.size()> begin;
  const auto file = open_file(path);
  return file && (*file)->size() >= begin.size() && (*file)->read_at(0, begin) &&
         std::ranges::equal(begin, std::as_bytes(std::span(kWord)));
}

// Takes the factors of keys of --profile, if turbo codes are made. Of a folder the first profile,
// by name, that belongs to the model of the cache counts.
Result<void> settle_calibration(const Console& console, const cache::CacheDesc& cache, Job& job) {
  const std::string& path = job.flags.tier.profile;
  if (path.empty() || job.archive || job.target != Target::kTqkv) return {};
  if (job.options.calibration != nullptr) {
    return usage_error("--profile and profile= in --config exclude each other");
  }
  std::string chosen = path;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    std::vector<std::string> names;
    std::filesystem::directory_iterator each(path, error);
    for (; !error && each != std::filesystem::directory_iterator(); each.increment(error)) {
      names.push_back(each->path().string());
    }
    if (error) return Error{ErrorCode::kIo, error.message(), path};
    std::ranges::sort(names);
    chosen.clear();
    for (const std::string& name : names) {
      // Other files, and profiles that have no factors, are passed over. Damaged ones are not: the
      // file would have other bytes than with a whole one.
      const auto found = cache::read_calibration(name);
      if (!found && found.error().code == ErrorCode::kCorrupt && begins_as_profile(name)) {
        return in_file(name, Error{found.error()});
      }
      const bool fits = found && found->weights_fingerprint != Sha256{} &&
                        found->weights_fingerprint == cache.identity.weights_fingerprint;
      if (fits && chosen.empty()) chosen = name;
    }
    if (chosen.empty()) {
      note(console, fmt::format("{}: no profile with factors of keys belongs to the model of the "
                                "cache; none is used",
                                path));
      return {};
    }
  }
  TQC_TRY_ASSIGN(cache::Calibration calibration, in_file(chosen, cache::read_calibration(chosen)));
  job.options.calibration = std::make_shared<const cache::Calibration>(std::move(calibration));
  job.options.calibration_path = chosen;
  return {};
}

// Says which factors the file has: they are part of its bytes.
void report_factors(const Console& console, const cache::CacheDesc& cache, const Job& job) {
  if (job.options.calibration == nullptr || job.target != Target::kTqkv) return;
  const auto plans = cache::plan_layers(cache, job.options);
  const bool has_any = plans && std::ranges::any_of(*plans, [](const cache::SidePlan& plan) {
                         return !plan.dense && !plan.factors.empty();
                       });
  note(console, has_any ? fmt::format("factors of keys from {}", job.options.calibration_path)
                        : fmt::format("{}: not used: no keys are quantized in a way that has "
                                      "factors",
                                      job.options.calibration_path));
}

// Writes a .tqkv file, and returns its size.
Result<std::uint64_t> write_tqkv(const Console& console, const cache::CacheReader& cache,
                                 const Job& job) {
  const bool to_stdout = job.flags.output == "-";
  TQC_TRY_ASSIGN(AtomicFile file,
                 AtomicFile::create(to_stdout ? "/dev/stdout" : job.flags.output, job.overwrite()));
  ProgressBar bar(console, "converting", Unit::kBytes);
  if (job.predicted_step > 0) {
    TQC_TRY_ASSIGN(const auto predicted,
                   format::predict_cache(cache::borrow(cache), job.predictor, job.predicted_step,
                                         job.predicted_sinks()));
    format::WriteOptions write = job.write;
    write.n_threads = job.options.n_threads;
    TQC_TRY(format::write_cache(*predicted, file, write, bar.callback()));
  } else {
    TQC_TRY(format::convert_file(cache, file, job.options, job.write, bar.callback()));
  }
  const std::uint64_t size = file.size();
  TQC_TRY(file.commit());
  return size;
}

Result<std::uint64_t> write_other(const Console& console, const cache::CacheReader& cache,
                                  const Job& job) {
  ProgressBar bar(console, "converting", Unit::kBytes);
  TQC_TRY(write_target(job.target, cache, job.flags.output, job.flags.target,
                       job.flags.foreign.rotation, job.model, job.overwrite(), bar.callback()));
  return size_on_disk(job.flags.output);
}

// Writes the result, and returns its size. `name`: of the input, from which `cache` reads.
Result<std::uint64_t> write_result(const Console& console, const std::string& name,
                                   const cache::CacheReader& cache, const WatchedSource& watched,
                                   const Job& job) {
  auto size = job.target == Target::kTqkv ? write_tqkv(console, cache, job)
                                          : write_other(console, cache, job);
  const std::string output = display_name(job.flags.output, "standard output");
  return in_file(size ? output : watched.to_blame(size.error(), name, output), std::move(size));
}

// --- from a .tqkv file

// The tokens of a .tqkv file to be converted. `source` must outlive the reader.
Result<std::shared_ptr<const cache::CacheReader>> open_reader(const ByteSource& source,
                                                              const Job& job) {
  TQC_TRY_ASSIGN(auto reader, format::SectionReader::open(source, job.write.keys));
  std::shared_ptr<const cache::CacheReader> whole =
      std::make_shared<format::SectionReader>(std::move(reader));
  if (is_unpacked(job.options)) {
    TQC_TRY_ASSIGN(whole, cache::dequantize(whole));
  }
  return cache::first_tokens(whole, job.flags.first_tokens.value_or(whole->n_tokens()));
}

Result<ExitCode> convert_own(const Console& console, CacheInput input, Job& job) {
  TQC_TRY_ASSIGN(const format::CacheFileInfo info,
                 in_file(input.name, format::read_cache_info(*input.source, console.keys)));
  const std::int64_t n_tokens = job.flags.first_tokens.value_or(info.n_tokens());
  Sizes sizes{input.file_bytes, 0, n_tokens, value_count(info, n_tokens)};
  const WatchedSource watched(std::move(input.source));
  TQC_TRY_ASSIGN(const auto reader, in_file(input.name, open_reader(watched, job)));
  TQC_TRY(settle_calibration(console, reader->description(), job));
  TQC_TRY(in_file(input.name, settle_archive(console, *reader, job)));
  TQC_TRY_ASSIGN(sizes.after, write_result(console, input.name, *reader, watched, job));
  if (job.target == Target::kTqkv) report_fallback(console, info, job.options);
  report_factors(console, info, job);
  warn_of_losses(info, job);
  const std::size_t n_checkpoints = info.checkpoints.size();
  TQC_TRY(tell(console, job, sizes,
               {std::string(name_of(Target::kTqkv)),
                export_notes(job.target, job.flags.target, info, n_checkpoints),
                losses_of(job.target, job.flags.target, info, n_checkpoints),
                hints_of(info, job, n_tokens)}));
  return ExitCode::kDone;
}

// --- from a file of another program

// Whether a flag says how K, or V, should be quantized; `group` is that of the flags for this
// tensor only.
bool is_asked(const std::vector<const Flag*>& options, std::string_view group) {
  return std::ranges::any_of(options, [&](const Flag* option) {
    const bool counts =
        option->description().group == "Quantization" || option->description().group == group;
    return counts && option->is_given();
  });
}

// A .tqkv file keeps the codes of another program, unless K or V is to be dense there. Files of
// other programs get decoded values, which saves one rounding.
ForeignFlags foreign_flags(const Job& job) {
  ForeignFlags flags = job.flags.foreign;
  const bool is_ours = job.target == Target::kTqkv;
  flags.decode_keys = !is_ours || (!job.options.keys.keep_packed && job.options.keys.dense);
  flags.decode_values = !is_ours || (!job.options.values.keep_packed && job.options.values.dense);
  return flags;
}

// Rejects K or V whose stored bit width differs from the requested one.
Result<void> check_kept_codes(const cache::CacheDesc& manifest, const Job& job) {
  const auto check = [](std::size_t layer, const cache::TensorDesc& tensor, const char* what,
                        const cache::SidePlan& plan) -> Result<void> {
    if (!tensor.quant || plan.keep_packed) return {};
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("layer {} {}: is packed already, in codes that are kept if no flag "
                             "asks for others; --{}-bits 16 decodes them",
                             layer, what[0], what)};
  };
  for (std::size_t i = 0; i < manifest.layers.size(); ++i) {
    const auto* attention = std::get_if<cache::AttentionDesc>(&manifest.layers[i]);
    if (attention == nullptr) continue;
    TQC_TRY(check(i, attention->k, "key", job.options.keys));
    TQC_TRY(check(i, attention->v, "value", job.options.values));
  }
  return {};
}

Result<ExitCode> convert_foreign(const Console& console, const std::string& name,
                                 std::unique_ptr<ByteSource> source, FileKind kind, Job& job) {
  const auto watched = std::make_shared<WatchedSource>(std::move(source));
  job.options.keys.keep_packed = !is_asked(job.flags.of_own, "For keys alone (as the flags above)");
  job.options.values.keep_packed = !is_asked(job.flags.of_own, "For values alone");
  TQC_TRY_ASSIGN(ForeignInput input,
                 open_foreign(console, name, watched, kind, foreign_flags(job), job.model,
                              job.flags.first_tokens, job.flags.n_threads));
  Remarks remarks{std::string(name_of(kind)),
                  std::move(input.opened.notes),
                  std::move(input.opened.dropped_fields),
                  {}};
  if (job.model.not_run) {
    remarks.notes.push_back(
        fmt::format("{}: {}; the model of the cache is unknown, and no token "
                    "was recomputed",
                    job.flags.foreign.model, job.model.not_run->message));
  }
  const cache::CacheReader& cache = *input.opened.cache;
  const cache::CacheDesc& manifest = cache.description();
  TQC_TRY(in_file(name, check_kept_codes(manifest, job)));
  Sizes sizes{input.file_bytes, 0, manifest.n_tokens(), value_count(manifest, manifest.n_tokens())};
  TQC_TRY(settle_calibration(console, manifest, job));
  TQC_TRY(in_file(name, settle_archive(console, cache, job)));
  TQC_TRY_ASSIGN(sizes.after, write_result(console, name, cache, *watched, job));
  if (job.target == Target::kTqkv) report_fallback(console, manifest, job.options);
  report_factors(console, manifest, job);
  warn_of_losses(manifest, job);
  remarks.hints = hints_of(manifest, job, manifest.n_tokens());
  const std::size_t n_checkpoints = cache.checkpoints().size();
  for (std::string& each : losses_of(job.target, job.flags.target, manifest, n_checkpoints)) {
    remarks.losses.push_back(std::move(each));
  }
  for (std::string& each : export_notes(job.target, job.flags.target, manifest, n_checkpoints)) {
    remarks.notes.push_back(std::move(each));
  }
  TQC_TRY(tell(console, job, sizes, remarks));
  return ExitCode::kDone;
}

// --- flags that exclude each other

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

Result<ExitCode> run(const Console& console, const ConvertFlags& flags) {
  TQC_TRY_ASSIGN(const Target target, target_of(flags.target, flags.output));
  Job job{flags, target, {}, {}, {}, {}, {}};
  TQC_TRY_ASSIGN(job.archive, wanted_archive(flags.tier, flags.codec));
  CodecFlags codec = flags.codec;
  if (job.archive) codec.both.bits = codec.both.exact_bits = {};  // it applies to the whole file
  TQC_TRY_ASSIGN(job.options, convert_options(codec));
  job.options.n_threads = flags.n_threads;
  job.options.losses = std::make_shared<cache::LossLog>();
  CompressionFlags compression = flags.compression;
  TQC_TRY(apply_tier(flags.tier, flags.of_codec, job.options, compression));
  TQC_TRY_ASSIGN(job.write, write_options(compression, flags.n_threads, flags.force));
  job.write.hide_tokens = flags.no_tokens;
  job.write.keys = console.keys;
  TQC_TRY(check_flags(flags, target, true, console.json));
  TQC_TRY(check_output(flags.output, flags.force));
  const std::string name = display_name(flags.input, "standard input");
  TQC_TRY_ASSIGN(std::unique_ptr<ByteSource> source, open_source(flags.input));
  TQC_TRY_ASSIGN(const std::optional<FileKind> kind, in_file(name, foreign_kind(*source)));
  // A file that is not a cache is rejected as such, and not because of the flags.
  const bool is_own = migrations::is_cache_of_any_version(*source);
  TQC_TRY(check_flags(flags, target, !is_own, console.json));
  TQC_TRY_ASSIGN(job.model, load_model_facts(flags.foreign.model));
  if (kind) TQC_TRY(check_encrypted(console, name, *source));
  if (kind) return convert_foreign(console, name, std::move(source), *kind, job);
  TQC_TRY_ASSIGN(CacheInput input, cache_input(console, name, std::move(source), flags.n_threads));
  return convert_own(console, std::move(input), job);
}

// --help shows the flags that most users need.
void show_the_usual_flags(FlagSet& app) {
  constexpr std::string_view kUsual[] = {"in",        "out",        "--output",  "--tier",
                                         "--preset",  "--quality",  "--bits",    "--windows",
                                         "--profile", "--compress", "--tokens",  "--model",
                                         "--to",      "--ids-file", "--threads", "--force"};
  for (const auto& flag : app.flags()) {
    if (std::ranges::find(kUsual, flag->name()) == std::end(kUsual)) flag->rare();
  }
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
    add_tier_flag(app, flags->tier);
    flags->of_codec = flags_of(app, [&] { add_codec_flags(app, flags->codec); });
    add_no_tokens_flag(app, flags->no_tokens);
    add_compression_flags(app, flags->compression, "zstd");
  });
  add_first_tokens_flag(app, flags->first_tokens);
  flags->of_foreign = flags_of(app, [&] { add_foreign_flags(app, flags->foreign); });
  add_export_flags(app, flags->target);
  add_resource_flags(app, flags->n_threads);
  add_force_flag(app, flags->force);
  show_the_usual_flags(app);
  app.footer(footer());
  return [flags](const Console& console) -> Result<ExitCode> {
    if (flags->output.empty()) flags->output = flags->named_output;
    if (flags->output.empty()) return usage_error("no output: name the file as OUT or with -o");
    return run(console, *flags);
  };
}

}  // namespace tqcache::cli
