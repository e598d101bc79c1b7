#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/cache/centering.h"
#include "tqcache/cache/memory_blocks.h"
#include "tqcache/error.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/section_writer.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/format/sections/symbol_section.h"
#include "tqcache/tqkv.h"

namespace tqcache::format {
namespace {

// Number of token blocks of K or V that are encoded to measure their size.
constexpr std::size_t kMostTrialBlocks = 8;

// Fraction of the requested size that the sample may use; the rest is a safety margin.
constexpr double kMargin = 0.998;

// Four steps per octave, two octaves. The answer usually lies beside the third.
constexpr std::size_t kMostTrials = 9;
constexpr std::size_t kExpectedStep = 2;
// Where a file does not depend on the C library, its steps do not either: no exponentials here.
constexpr std::array<double, 4> kQuarters = {1.0, 1.189207115002721, 1.4142135623730951,
                                             1.681792830507429};
constexpr double kErrorOfStep = 0.2635;  // mean square, for a step of 1

// K or V of a layer that will be quantized.
struct Candidate {
  std::size_t layer = 0;
  TensorKind name = TensorKind::kKeys;
  cache::TensorPlan plan;
  cache::HeadShape shape;
  double weight = 1;  // multiplies its step
};

Result<void> check_target(const ArchiveTarget& target) {
  const auto in_range = [](std::optional<double> x, double low, double high) {
    return !x || (*x >= low && *x <= high);
  };
  if (!in_range(target.bits, kMinArchiveBits, kMaxArchiveBits)) {
    return invalid(fmt::format("{} bits per value is not between 1 and 8", *target.bits));
  }
  if (!in_range(target.mse, kMinArchiveMse, kMaxArchiveMse)) {
    return invalid(fmt::format("an error of {} is not between 0.0001 and 0.5", *target.mse));
  }
  if (!in_range(target.step, double{codec::kMinStep}, double{codec::kMaxStep})) {
    return invalid(fmt::format("a step of {} is not between 0.015625 and 8", *target.step));
  }
  if (int{target.bits.has_value()} + int{target.mse.has_value()} + int{target.step.has_value()} !=
      1) {
    return invalid("an archive needs one target: bits, error or step");
  }
  return {};
}

// 2^(x / 4) for x from 0 to 1, within 1e-3: between two trials, bytes are linear in the logarithm
// of the step.
double part_of_quarter(double x) { return 1 + x * (0.17329 + x * 0.01591); }

// Rounds to eleven bits; measurements are no more exact.
float rounded(double step) {
  int exponent = 0;
  const double mantissa = std::frexp(step, &exponent);
  return static_cast<float>(std::ldexp(std::round(mantissa * 2048), exponent - 11));
}

// Keys, or values, are transformed in one of two ways: by the usual rotation, or by fitted
// transforms.
constexpr std::size_t kWays = 2;
struct FitChoice {
  bool map_keys = false;
  bool map_values = false;
};

cache::ConvertOptions with_maps(cache::ConvertOptions options, FitChoice fit) {
  options.keys.fit_transforms = fit.map_keys;
  options.values.fit_transforms = fit.map_values;
  return options;
}

cache::ConvertOptions with_step(cache::ConvertOptions options, double step) {
  for (cache::TensorPlan* plan : {&options.keys, &options.values}) {
    if (!plan->dense) plan->codec.step = rounded(step);
  }
  return options;
}

// Encodes token blocks with a step, and counts the bytes. An encoding takes long, so that each is
// made when somebody asks for its size, and once.
class Trials {
 public:
  // Requires: source and tensors outlive the trials.
  Trials(const cache::CacheReader& source, const std::vector<Candidate>& tensors,
         unsigned n_threads, double first_step, std::size_t n_steps, const Progress& progress)
      : source_(source),
        index_(source.blocks()),
        tables_(source.description().identity.rope),
        compressor_(Compressor::for_planes()),
        n_threads_(n_threads),
        progress_(progress),
        tensors_(tensors),
        blocks_(cache::fit_blocks(cache::Fit::kPrompt, source.n_tokens())) {
    for (std::size_t i = 0; i < n_steps; ++i) {
      const auto octave = static_cast<double>(1u << i / kQuarters.size());
      steps_.push_back(first_step * octave * kQuarters[i % kQuarters.size()]);
    }
    n_rounds_ = n_steps == 1 ? 4 : 6;
  }

  // Fits the means and transforms of all tensors, in each way. Comes before all else.
  Result<void> fit() {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (auto fitted = fit_tensor(tensors_[i]); !fitted) {
        return in_context(name_of(tensors_[i]), std::move(fitted).error());
      }
      TQC_TRY(report(i + 1, 0));
    }
    return {};
  }

  // Keys and values apart: whether fitted transforms take fewer bytes at the expected step.
  Result<FitChoice> best_fit() {
    const auto pays = [&](TensorKind kind) -> Result<bool> {
      TQC_TRY_ASSIGN(const double rotated, bytes_of(kind, false, expected()));
      TQC_TRY_ASSIGN(const double mapped, bytes_of(kind, true, expected()));
      return mapped < rotated;
    };
    FitChoice fit;
    TQC_TRY_ASSIGN(fit.map_keys, pays(TensorKind::kKeys));
    TQC_TRY_ASSIGN(fit.map_values, pays(TensorKind::kValues));
    return fit;
  }

  // The step at which packed sections and transforms take this many bytes. More bytes than in any
  // trial: the finest step; fewer than in any trial: nullopt.
  Result<std::optional<double>> step_for(FitChoice fit, double wanted) {
    const auto bytes = [&](std::size_t step) -> Result<double> {
      TQC_TRY_ASSIGN(const double keys, bytes_of(TensorKind::kKeys, fit.map_keys, step));
      TQC_TRY_ASSIGN(const double values, bytes_of(TensorKind::kValues, fit.map_values, step));
      return keys + values;
    };
    // The first step that takes no more than that is in [low, high]; no step: steps_.size().
    std::size_t low = 0, high = steps_.size();
    std::size_t step = expected();
    while (low < high) {
      TQC_TRY_ASSIGN(const double size, bytes(step));
      if (size <= wanted) {
        high = step;
        step = step == 0 ? 0 : std::max(step - 1, low);
      } else {
        low = step + 1;
        step = std::min(low, high - 1);
      }
    }
    if (low == steps_.size()) return std::optional<double>();
    if (low == 0) return std::optional(steps_.front());
    TQC_TRY_ASSIGN(const double finer, bytes(low - 1));
    TQC_TRY_ASSIGN(const double coarser, bytes(low));
    const double part = (finer - wanted) / (finer - coarser);
    return std::optional(steps_[low - 1] * part_of_quarter(part));
  }

 private:
  // The codec of a tensor, fitted in one way.
  struct Fitted {
    const Candidate* tensor;
    cache::TensorDesc codec;
    double map_bytes = 0;  // of the transforms in the manifest
  };

  static std::string name_of(const Candidate& tensor) {
    return "layer " + std::to_string(tensor.layer) +
           (tensor.name == TensorKind::kKeys ? " k" : " v");
  }

  // Index of the step that is tried first.
  std::size_t expected() const { return std::min(kExpectedStep, steps_.size() - 1); }

  // A round takes about as long as the fit of a quarter of the tensors.
  Result<void> report(std::size_t n_fitted, std::size_t n_rounds) const {
    if (!progress_) return {};
    const std::size_t total = 4 * tensors_.size() + n_rounds_ * tensors_.size();
    const std::size_t done = 4 * n_fitted + n_rounds * tensors_.size();
    return progress_(std::min(done, total), total) ? Result<void>() : interrupted_error();
  }

  Result<void> read(const Candidate& tensor, std::int64_t block, AlignedBytes& raw) const {
    return source_.read(index_.at({static_cast<std::int64_t>(tensor.layer), tensor.name, block}),
                        raw);
  }

  Result<void> fit_tensor(const Candidate& tensor) {
    raw_.resize(blocks_.size());
    TQC_TRY(parallel_try(blocks_.size(), n_threads_,
                         [&](std::size_t i) { return read(tensor, blocks_[i], raw_[i]); }));
    for (const bool is_mapped : {false, true}) {
      TQC_TRY_ASSIGN(cache::KvCodec codec, make_codec(tensor, steps_.front(), is_mapped));
      std::vector<cache::FullBlock> sample;
      for (std::size_t i = 0; i < blocks_.size(); ++i) {
        sample.push_back({tensor.shape, codec.dtype(), blocks_[i], raw_[i]});
      }
      codec.fit(sample, n_threads_);
      cache::TensorDesc fitted = codec.describe();
      const double of_maps = map_bytes(fitted.quant->transforms);
      fits_[static_cast<std::size_t>(tensor.name)][is_mapped ? 1 : 0].push_back(
          {&tensor, std::move(fitted), of_maps});
    }
    return {};
  }

  // Bytes of the transforms in the manifest.
  double map_bytes(const std::vector<std::int8_t>& transforms) const {
    const ByteView entries = std::as_bytes(std::span(transforms));
    Bytes frame;
    if (entries.empty()) return 0;
    return static_cast<double>(compressor_.compress(entries, frame) ? frame.size()
                                                                    : entries.size());
  }

  Result<cache::KvCodec> make_codec(const Candidate& tensor, double step, bool is_mapped) const {
    cache::TensorPlan plan = tensor.plan;
    plan.fit_transforms = is_mapped;
    plan.n_sinks = 0;  // only in one block of many, and counted separately
    plan.codec.step = static_cast<float>(
        std::clamp(step * tensor.weight, double{codec::kMinStep}, double{codec::kMaxStep}));
    const cache::LayerDesc& layer = source_.description().layers[tensor.layer];
    return cache::make_codec(plan, order_of(tensor.name), tensor.shape,
                             tensor_of(layer, tensor.name).dtype, tables_);
  }

  // Bytes of all tensors of one kind.
  Result<double> bytes_of(TensorKind kind, bool is_mapped, std::size_t step) {
    const auto of_kind = static_cast<std::size_t>(kind);
    const std::size_t way = is_mapped ? 1 : 0;
    std::optional<double>& known = bytes_[of_kind][way][step];
    if (known) return *known;
    const std::vector<Fitted>& fits = fits_[of_kind][way];
    std::vector<double> found(fits.size());
    TQC_TRY(parallel_try(fits.size(), n_threads_, [&](std::size_t i) -> Result<void> {
      auto bytes = encode(fits[i], is_mapped, step);
      if (!bytes) return in_context(name_of(*fits[i].tensor), std::move(bytes).error());
      found[i] = *bytes;
      return {};
    }));
    double sum = 0;
    for (const double bytes : found) sum += bytes;
    known = sum;
    TQC_TRY(report(tensors_.size(), ++n_done_));
    return sum;
  }

  // Encodes every n-th block of a tensor's sample. They are read again: those of all tensors
  // together may be more than fit in memory.
  Result<double> encode(const Fitted& fitted, bool is_mapped, std::size_t step) const {
    const Candidate& tensor = *fitted.tensor;
    TQC_TRY_ASSIGN(const cache::KvCodec of_step, make_codec(tensor, steps_[step], is_mapped));
    cache::TensorDesc fit = fitted.codec;
    fit.quant->parts = of_step.parts();
    TQC_TRY_ASSIGN(const cache::KvCodec codec,
                   cache::KvCodec::make(fit, tensor.shape, of_step.order(), tables_));
    const std::size_t every = (blocks_.size() + kMostTrialBlocks - 1) / kMostTrialBlocks;
    const std::size_t n_blocks = (blocks_.size() + every - 1) / every;
    std::vector<double> found(n_blocks);
    TQC_TRY(parallel_try(n_blocks, n_threads_, [&](std::size_t i) -> Result<void> {
      const std::int64_t block = blocks_[i * every];
      AlignedBytes raw;
      TQC_TRY(read(tensor, block, raw));
      TQC_TRY_ASSIGN(found[i], size_of(tensor, codec, {tensor.shape, codec.dtype(), block, raw}));
      return {};
    }));
    const auto n_full = static_cast<double>(source_.n_tokens() / cache::kTokenBlock);
    double sum = 0;
    for (const double bytes : found) sum += bytes / static_cast<double>(n_blocks) * n_full;
    return sum + fitted.map_bytes;
  }

  Result<double> size_of(const Candidate& tensor, const cache::KvCodec& codec,
                         const cache::FullBlock& block) const {
    TQC_TRY_ASSIGN(const SharedBytes packed, codec.encode(block, 1));
    cache::AttentionDesc layer{tensor.shape, {}, {}};
    (tensor.name == TensorKind::kKeys ? layer.k : layer.v) = codec.describe();
    SectionInfo section;
    section.tensor = tensor.name;
    section.block = block.index;
    Bytes stored;
    const ByteView raw = packed.view();
    const bool shrank = compress_symbols(compressor_, symbol_shape(layer, section), raw, stored);
    return static_cast<double>(align_section(shrank ? stored.size() : raw.size()));
  }

  const cache::CacheReader& source_;
  cache::BlockIndex index_;
  cache::KvTables tables_;  // shared by codecs of one step
  Compressor compressor_;
  unsigned n_threads_;
  const Progress& progress_;
  const std::vector<Candidate>& tensors_;
  std::vector<std::int64_t> blocks_;  // that codecs are fitted to
  std::vector<AlignedBytes> raw_;     // these, of one tensor
  std::vector<double> steps_;
  std::size_t n_rounds_ = 0;  // usual number of encodings of K or V
  std::size_t n_done_ = 0;
  // [K or V][transforms fitted or not]
  std::array<std::array<std::vector<Fitted>, kWays>, 2> fits_;
  std::array<std::array<std::array<std::optional<double>, kMostTrials>, kWays>, 2> bytes_{};
};

// The future file without the bytes of its newly packed sections.
struct Outlook {
  std::vector<Candidate> tensors;
  double other_bytes = 0;  // of everything that is not packed now
  double n_values = 0;     // keys and values of the whole cache
};

void count_values(const cache::CacheDesc& cache, Outlook& outlook) {
  for (const cache::LayerDesc& layer : cache.layers) {
    const auto* attention = std::get_if<cache::AttentionDesc>(&layer);
    if (attention == nullptr) continue;
    const std::int64_t of_token = attention->shape.head_dim + attention->value_shape().head_dim;
    outlook.n_values +=
        static_cast<double>(attention->shape.n_kv_heads * of_token * cache.n_tokens());
  }
}

// Unchanged sections keep their stored size, or count with their raw size if that is unknown.
double other_sections(const cache::CacheReader& source,
                      const std::vector<cache::TensorPlan>& plans) {
  double bytes = 0;
  for (const cache::BlockInfo& section : source.blocks()) {
    const bool is_array = section.tensor == TensorKind::kArray;
    const bool is_full =
        cache::tokens_in_block(source.n_tokens(), section.block) == cache::kTokenBlock;
    const std::size_t plan = 2 * to_size(section.layer) + static_cast<std::size_t>(section.tensor);
    if (!is_array && !plans[plan].dense && !section.packed && is_full) continue;
    const std::uint64_t known = section.stored_bytes;
    bytes += static_cast<double>(align_section(known > 0 ? known : section.raw_bytes));
  }
  return bytes;
}

// Requires: options have a step of 1, so that the steps of plans are the weights.
Result<Outlook> look_ahead(const cache::CacheReader& source, const cache::ConvertOptions& options) {
  const Manifest manifest = manifest_of(source);
  TQC_TRY_ASSIGN(const auto plans, cache::plan_layers(manifest, options));
  Outlook outlook;
  for (std::size_t i = 0; i < manifest.layers.size(); ++i) {
    for (const TensorKind name : {TensorKind::kKeys, TensorKind::kValues}) {
      const cache::TensorPlan& plan = plans[2 * i + static_cast<std::size_t>(name)];
      if (plan.dense || tensor_of(manifest.layers[i], name).quant) continue;
      outlook.tensors.push_back(
          {i, name, plan, shape_of(manifest.layers[i], name), double{plan.codec.step}});
    }
  }
  count_values(manifest, outlook);
  // The manifest has no more about a packed section than about a dense one; a quantized tensor adds
  // its mean and its codec. Sink tokens hardly compress.
  TQC_TRY_ASSIGN(const Bytes bytes, encode_manifest(manifest));
  double packed_tensors = 0;
  for (const Candidate& tensor : outlook.tensors) {
    const auto dim = static_cast<double>(tensor.shape.head_dim);
    const bool has_mean = tensor.plan.center != cache::Centering::kNone;
    packed_tensors += dim * static_cast<double>(tensor.shape.n_kv_heads * tensor.plan.n_sinks) *
                      static_cast<double>(
                          dtype_size(tensor_of(manifest.layers[tensor.layer], tensor.name).dtype));
    packed_tensors +=
        has_mean ? dim * static_cast<double>(tensor.shape.n_kv_heads) * sizeof(float) : 0;
  }
  constexpr double kCodecBytes = 1400;  // once: 256 centroids, and texts
  outlook.other_bytes = other_sections(source, plans) + static_cast<double>(bytes.size()) +
                        packed_tensors + kCodecBytes + static_cast<double>(kHeaderBytes);
  return outlook;
}

// The step that gives all tensors together this mean error. The error of one tensor is
// r + (r / (1 + r))^2: r comes from the step, the second term from the shrinkage of vectors.
double step_of_error(double mse, const std::vector<Candidate>& tensors) {
  double of_step = mse;
  for (int i = 0; i < 8; ++i) {
    const double drawn = of_step / (1 + of_step);
    of_step = mse - drawn * drawn;
  }
  double values = 0, squares = 0;
  for (const Candidate& tensor : tensors) {
    const auto n = static_cast<double>(tensor.shape.n_kv_heads * tensor.shape.head_dim);
    values += n;
    squares += n * tensor.weight * tensor.weight;
  }
  return std::sqrt(of_step / kErrorOfStep * (tensors.empty() ? 1 : values / squares));
}

// The step of the first trial, which surely takes more bits than requested.
double step_of_bits(double bits) {
  const int quarters = static_cast<int>(std::ceil(bits * 4));
  const double step = 1.4 * kQuarters[static_cast<std::size_t>(-quarters & 3)] *
                      std::ldexp(1.0, -(quarters + 3) / 4);
  return std::clamp(step, double{codec::kMinStep}, codec::kMaxStep / 8.0);
}

double first_step(const ArchiveTarget& target, const Outlook& outlook) {
  if (target.step) return *target.step;
  if (target.mse) return step_of_error(*target.mse, outlook.tensors);
  // What is not quantized, as recurrent state, can take more bits than the trials span.
  constexpr double kFew = 0.5;
  const double other = outlook.other_bytes * 8 / outlook.n_values;
  return step_of_bits(std::max(*target.bits - (other > kFew ? other : 0), 0.25));
}

// Chooses the transforms that take the fewest bytes, and the step at which they take so many.
Result<cache::ConvertOptions> choose(Trials& trials, const cache::ConvertOptions& options,
                                     double bits, double wanted, const Outlook& outlook) {
  TQC_TRY_ASSIGN(const FitChoice fit, trials.best_fit());
  TQC_TRY_ASSIGN(const std::optional<double> step, trials.step_for(fit, wanted));
  if (step) return with_step(with_maps(options, fit), *step);
  return invalid(fmt::format("{} bits per value are too few: what is not quantized takes {:.3f}",
                             bits, outlook.other_bytes * 8 / outlook.n_values));
}

}  // namespace

Result<cache::ConvertOptions> choose_step(const cache::CacheReader& source,
                                          const cache::ConvertOptions& settings,
                                          const ArchiveTarget& target, const Progress& progress) {
  TQC_TRY(check_target(target));
  cache::ConvertOptions options = settings;
  options.fit = cache::Fit::kPrompt;
  if (options.windows != cache::WindowMode::kAsTheyAre) {
    return invalid("an archive leaves sliding windows as they are");
  }
  TQC_TRY_ASSIGN(const Outlook outlook, look_ahead(source, with_step(options, 1.0)));
  const double first = first_step(target, outlook);
  const bool has_samples = !outlook.tensors.empty() && source.n_tokens() >= cache::kTokenBlock;
  if (!has_samples) return with_step(options, first);
  Trials trials(source, outlook.tensors, options.n_threads, rounded(first),
                target.bits ? kMostTrials : 1, progress);
  TQC_TRY(trials.fit());
  const double wanted = target.bits
                            ? *target.bits / 8 * outlook.n_values * kMargin - outlook.other_bytes
                            : std::numeric_limits<double>::infinity();
  return choose(trials, options, target.bits.value_or(0), wanted, outlook);
}

}  // namespace tqcache::format
