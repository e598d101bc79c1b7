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

// Four trials per octave of steps, two octaves.
constexpr std::size_t kMostTrials = 9;
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

// Number of ways to transform keys, or values: the usual rotation, or fitted transforms.
constexpr std::size_t kWays = 2;
// One of the four choices for keys and values.
struct FitChoice {
  bool map_keys = false;
  bool map_values = false;
};
constexpr std::array<FitChoice, 4> kFitChoices = {
    {{false, false}, {false, true}, {true, false}, {true, true}}};

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

// Encodes token blocks with each step in turn, and counts the bytes.
class Trials {
 public:
  Trials(const cache::CacheReader& source, unsigned n_threads, double first_step,
         std::size_t n_trials)
      : source_(source),
        index_(source.blocks()),
        tables_(source.description().identity.rope),
        compressor_(Compressor::for_planes()),
        n_threads_(n_threads) {
    for (std::size_t i = 0; i < n_trials; ++i) {
      const auto octave = static_cast<double>(1u << i / kQuarters.size());
      steps_.push_back(first_step * octave * kQuarters[i % kQuarters.size()]);
    }
  }

  Result<void> add(const Candidate& tensor) {
    const std::int64_t n_tokens = source_.n_tokens();
    const std::vector<std::int64_t> blocks = cache::fit_blocks(cache::Fit::kPrompt, n_tokens);
    if (blocks.empty()) return {};
    TQC_TRY(read(tensor, blocks));
    const auto n_full = static_cast<double>(n_tokens / cache::kTokenBlock);
    for (const bool is_mapped : {false, true}) {
      TQC_TRY_ASSIGN(cache::KvCodec codec, make_codec(tensor, steps_.front(), is_mapped));
      const std::vector<cache::FullBlock> sample = full_blocks(tensor, codec.dtype(), blocks);
      codec.fit(sample, n_threads_);
      TQC_TRY(code(tensor, codec, sample, n_full, is_mapped));
    }
    return {};
  }

  // Bytes of packed sections and transforms at each step.
  using Sizes = std::array<double, kMostTrials>;
  Sizes bytes(FitChoice fit) const {
    Sizes sum = of(TensorKind::kKeys, fit.map_keys);
    const Sizes& values = of(TensorKind::kValues, fit.map_values);
    for (std::size_t i = 0; i < steps_.size(); ++i) sum[i] += values[i];
    return sum;
  }

  // The step at which they take this many bytes. More bytes than in any trial: the finest step;
  // fewer than in any trial: nullopt.
  std::optional<double> step_for(const Sizes& sizes, double bytes) const {
    if (bytes >= sizes.front()) return steps_.front();
    for (std::size_t i = 1; i < steps_.size(); ++i) {
      if (sizes[i] > bytes || sizes[i - 1] < bytes) continue;
      const double part = (sizes[i - 1] - bytes) / (sizes[i - 1] - sizes[i]);
      return steps_[i - 1] * part_of_quarter(part);
    }
    return std::nullopt;
  }

 private:
  Result<void> read(const Candidate& tensor, const std::vector<std::int64_t>& blocks) {
    raw_.resize(blocks.size());
    return parallel_try(blocks.size(), n_threads_, [&](std::size_t i) {
      return source_.read(
          index_.at({static_cast<std::int64_t>(tensor.layer), tensor.name, blocks[i]}), raw_[i]);
    });
  }

  const Sizes& of(TensorKind tensor, bool is_mapped) const {
    return bytes_[static_cast<std::size_t>(tensor)][is_mapped ? 1 : 0];
  }

  Result<cache::KvCodec> make_codec(const Candidate& tensor, double step, bool is_mapped) {
    cache::TensorPlan plan = tensor.plan;
    plan.fit_transforms = is_mapped;
    plan.n_sinks = 0;  // only in one block of many, and counted separately
    plan.codec.step = static_cast<float>(
        std::clamp(step * tensor.weight, double{codec::kMinStep}, double{codec::kMaxStep}));
    const cache::LayerDesc& layer = source_.description().layers[tensor.layer];
    return cache::make_codec(plan, order_of(tensor.name), tensor.shape,
                             tensor_of(layer, tensor.name).dtype, tables_);
  }

  std::vector<cache::FullBlock> full_blocks(const Candidate& tensor, Dtype dtype,
                                            const std::vector<std::int64_t>& blocks) const {
    std::vector<cache::FullBlock> sample;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      sample.push_back({tensor.shape, dtype, blocks[i], raw_[i]});
    }
    return sample;
  }

  // Encodes every n-th block of the sample with every step.
  Result<void> code(const Candidate& tensor, const cache::KvCodec& fitted,
                    const std::vector<cache::FullBlock>& sample, double n_full, bool is_mapped) {
    const std::size_t every = (sample.size() + kMostTrialBlocks - 1) / kMostTrialBlocks;
    const std::size_t n_blocks = (sample.size() + every - 1) / every;
    std::vector<double> found(n_blocks * steps_.size());
    cache::TensorDesc fit = fitted.describe();
    const double of_maps = map_bytes(fit.quant->transforms);
    for (std::size_t trial = 0; trial < steps_.size(); ++trial) {
      TQC_TRY_ASSIGN(const cache::KvCodec other, make_codec(tensor, steps_[trial], is_mapped));
      fit.quant->parts = other.parts();
      TQC_TRY_ASSIGN(const cache::KvCodec codec,
                     cache::KvCodec::make(fit, tensor.shape, other.order(), tables_));
      TQC_TRY(parallel_try(n_blocks, n_threads_, [&](std::size_t i) -> Result<void> {
        TQC_TRY_ASSIGN(found[trial * n_blocks + i], size_of(tensor, codec, sample[i * every]));
        return {};
      }));
    }
    Sizes& sizes = bytes_[static_cast<std::size_t>(tensor.name)][is_mapped ? 1 : 0];
    for (std::size_t i = 0; i < found.size(); ++i) {
      sizes[i / n_blocks] += found[i] / static_cast<double>(n_blocks) * n_full;
    }
    for (double& size : sizes) size += of_maps;
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
  std::vector<double> steps_;
  std::array<std::array<Sizes, kWays>, 2> bytes_{};  // [K or V][transforms fitted or not]
  std::vector<AlignedBytes> raw_;
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

// Chooses the transforms that reach the size with the finest step.
Result<cache::ConvertOptions> choose(const Trials& trials, const cache::ConvertOptions& options,
                                     double bits, double wanted, const Outlook& outlook) {
  std::optional<double> finest;
  FitChoice best;
  for (const FitChoice fit : kFitChoices) {
    const auto step = trials.step_for(trials.bytes(fit), wanted);
    // If even the finest trial takes too few bytes, the choice with the fewest bytes wins.
    const bool is_better =
        step && (!finest || *step < *finest ||
                 (*step == *finest && trials.bytes(fit).front() < trials.bytes(best).front()));
    if (!is_better) continue;
    finest = step;
    best = fit;
  }
  if (finest) return with_step(with_maps(options, best), *finest);
  return invalid(fmt::format("{} bits per value are too few: what is not quantized takes {:.3f}",
                             bits, outlook.other_bytes * 8 / outlook.n_values));
}

Result<void> try_all(const std::vector<Candidate>& tensors, Trials& trials,
                     const Progress& progress) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (auto added = trials.add(tensors[i]); !added) {
      return in_context("layer " + std::to_string(tensors[i].layer) +
                            (tensors[i].name == TensorKind::kKeys ? " k" : " v"),
                        std::move(added).error());
    }
    if (progress && !progress(i + 1, tensors.size())) {
      return interrupted_error();
    }
  }
  return {};
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
  Trials trials(source, options.n_threads, rounded(first), target.bits ? kMostTrials : 1);
  TQC_TRY(try_all(outlook.tensors, trials, progress));
  const double wanted = target.bits
                            ? *target.bits / 8 * outlook.n_values * kMargin - outlook.other_bytes
                            : std::numeric_limits<double>::infinity();
  return choose(trials, options, target.bits.value_or(0), wanted, outlook);
}

}  // namespace tqcache::format
