// The step of a predicted archive for a number of bits, from a sample of its tokens.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/manifest.h"
#include "tqcache/format/predicted_blocks.h"
#include "tqcache/format/section_writer.h"
#include "tqcache/predict/predictor.h"
#include "tqcache/predict/rate.h"

namespace tqcache::format {
namespace {

using predict::Predictor;

// Of the bits that were asked for: what the search aims at.
constexpr double kAim = 0.995;

// The formula of the profile is trusted for this change of the bits, and measured beyond it.
constexpr double kTrusted = 0.03;
constexpr int kMostPasses = 8;

// Tokens of the sample. A token is predicted from nothing but itself, so tokens from the whole
// cache tell more than as many of a few token blocks. They are coded in two parts, on two threads.
constexpr std::int64_t kSampleTokens = 512;
constexpr std::int64_t kSampleBlocks = 16;
constexpr std::size_t kParts = 2;

// The bytes with which the arithmetic code of a section ends.
constexpr std::size_t kEndBytes = 4;

// The tokens of one token block that are in the sample.
struct SampledBlock {
  std::int64_t block = 0;
  std::vector<std::size_t> tokens;  // ascending, in the block
};

// The sizes of predicted archives of one cache, from a sample of its tokens.
class SizeOfSteps {
 public:
  SizeOfSteps(const cache::CacheReader& source, const Predictor& predictor, std::int64_t n_sinks,
              unsigned n_threads)
      : source_(source), predictor_(predictor), n_threads_(n_threads) {
    const cache::CacheDesc& cache = source.description();
    n_tensors_ = predictor.profile().tensors.size();
    n_channels_ = to_size(predictor.profile().channels());
    n_coded_ = cache.n_tokens() - n_sinks;
    n_values_ = static_cast<double>(to_size(cache.n_tokens()) * n_channels_ * n_tensors_);
    for (std::size_t tensor = 0; tensor < n_tensors_; ++tensor) {
      other_ += static_cast<double>(to_size(n_sinks) * n_channels_ *
                                    dtype_size(predicted_dtype(cache, tensor)));
    }
    other_ += static_cast<double>(source.blocks().size() * kEndBytes);
    take_sample(n_sinks);
  }

  // Counts everything but coded residuals: manifest, section table, padding, sink tokens.
  Result<void> count_other() {
    TQC_TRY_ASSIGN(const Bytes encoded, encode_manifest(manifest_of(source_)));
    other_ += static_cast<double>(encoded.size() + kHeaderBytes);
    other_ += static_cast<double>(source_.blocks().size() * kSectionAlignment) / 2;
    return {};
  }
  double other_bits() const { return 8 * other_ / n_values_; }

  // Bits per value of the file, without those of other_bits().
  Result<double> measure(double step) const {
    std::array<std::size_t, kParts> bytes{};
    TQC_TRY(parallel_try(kParts, n_threads_, [&](std::size_t i) -> Result<void> {
      if (parts_[i].empty()) return {};
      TQC_TRY_ASSIGN(bytes[i], coded_bytes(parts_[i], static_cast<float>(step)));
      return {};
    }));
    const auto sum = static_cast<double>(bytes[0] + bytes[1]);
    return 8 * sum / static_cast<double>(n_sampled_) * static_cast<double>(n_coded_) / n_values_;
  }

 private:
  using Part = std::vector<SampledBlock>;

  // Tokens at equal distances among those of the sampled blocks, without the sink tokens.
  void take_sample(std::int64_t n_sinks) {
    const std::int64_t n_tokens = source_.n_tokens(), n_all = cache::block_count(n_tokens);
    const std::int64_t n_blocks = std::min(n_all, kSampleBlocks);
    std::vector<std::int64_t> blocks, firsts, places;  // a block's first token, and its place
    std::int64_t n = 0;                                // among all tokens to choose from
    for (std::int64_t i = 0; i < n_blocks; ++i) {
      blocks.push_back((2 * i + 1) * n_all / (2 * n_blocks));
      firsts.push_back(cache::sinks_in_block(n_sinks, blocks.back()));
      places.push_back(n);
      n += std::max<std::int64_t>(0,
                                  cache::tokens_in_block(n_tokens, blocks.back()) - firsts.back());
    }
    n_sampled_ = to_size(std::min(n, kSampleTokens));
    places.push_back(n);
    std::int64_t next = 0;  // of the sample
    const auto place_of = [&](std::int64_t i) {
      return (2 * i + 1) * n / (2 * static_cast<std::int64_t>(n_sampled_));
    };
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      SampledBlock sampled{blocks[i], {}};
      for (; next < static_cast<std::int64_t>(n_sampled_) && place_of(next) < places[i + 1];
           ++next) {
        sampled.tokens.push_back(to_size(firsts[i] + place_of(next) - places[i]));
      }
      if (!sampled.tokens.empty()) parts_[i % kParts].push_back(std::move(sampled));
    }
  }

  // Codes a part as if it were a token block.
  Result<std::size_t> coded_bytes(const Part& part, float step) const {
    const cache::CacheDesc& cache = source_.description();
    const cache::HeadShape shape = predictor_.profile().shape;
    std::vector<std::int32_t> ids;
    std::vector<std::int64_t> positions;
    for (const SampledBlock& sampled : part) {
      for (const std::size_t token : sampled.tokens) {
        positions.push_back(sampled.block * cache::kTokenBlock + static_cast<std::int64_t>(token));
        ids.push_back(cache.tokens[to_size(positions.back())]);
      }
    }
    predict::BlockCoder coder(predictor_, step, ids, 0);
    const predict::BlockRope rope(cache.identity.rope, shape, positions);
    AlignedFloats rows(ids.size() * n_channels_), decoded(rows.size());
    Bytes coded;
    std::size_t n_bytes = 0;
    for (std::size_t tensor = 0; tensor < n_tensors_; ++tensor) {
      std::size_t first = 0;
      for (const SampledBlock& sampled : part) {
        const std::size_t index = to_size(sampled.block) * n_tensors_ + tensor;
        TQC_TRY_ASSIGN(const SharedBytes values, source_.share(index));
        const std::size_t n = sampled.tokens.size() * n_channels_;
        predict::rows_of_tokens(shape, predicted_dtype(cache, tensor), values.view(),
                                sampled.tokens, std::span(rows).subspan(first, n));
        first += n;
      }
      if (tensor % 2 == 0) rope.rotate_back(rows);
      coded.clear();
      if (auto done = coder.encode(rows, coded, decoded); !done) {
        return in_context(fmt::format("layer {} {}", tensor / 2, tensor % 2 == 0 ? "k" : "v"),
                          std::move(done).error());
      }
      n_bytes += coded.size() - std::min(coded.size(), kEndBytes);
    }
    return n_bytes;
  }

  const cache::CacheReader& source_;
  const Predictor& predictor_;
  unsigned n_threads_;
  std::size_t n_tensors_ = 0, n_channels_ = 0, n_sampled_ = 0;
  std::int64_t n_coded_ = 0;  // tokens of the cache that are no sink tokens
  double n_values_ = 0, other_ = 0;
  std::array<Part, kParts> parts_;
};

}  // namespace

Result<PredictedStep> choose_predicted_step(const cache::CacheReader& source,
                                            const std::shared_ptr<const Predictor>& predictor,
                                            std::int64_t n_sinks, double bits, unsigned n_threads) {
  TQC_TRY(predictor->prepare_encoding(n_threads));
  SizeOfSteps sizes(source, *predictor, n_sinks, n_threads);
  TQC_TRY(sizes.count_other());
  const double other = sizes.other_bits(), wanted = kAim * (bits - other);
  if (wanted <= 0) {
    return invalid(
        fmt::format("{} bits per value: the file takes {:.3f} without any residual", bits, other));
  }
  // The profile says how bits fall with the step, except for a factor, which the sample gives.
  const predict::Profile& profile = predictor->profile();
  double factor = 1;
  for (int pass = 0; pass < kMostPasses; ++pass) {
    const double step = predict::step_of_rate(profile, wanted / factor);
    TQC_TRY_ASSIGN(const double found, sizes.measure(step));
    factor = found / predict::rate_of_step(profile, step);
    if (std::abs(found - wanted) > kTrusted * wanted) continue;
    const double last = predict::step_of_rate(profile, wanted / factor);
    return PredictedStep{static_cast<float>(last), wanted + other};
  }
  return invalid(fmt::format("{} bits per value: no step is large enough", bits));
}

Result<double> predicted_bits_of_step(const cache::CacheReader& source,
                                      const std::shared_ptr<const Predictor>& predictor,
                                      std::int64_t n_sinks, float step, unsigned n_threads) {
  TQC_TRY(predictor->prepare_encoding(n_threads));
  SizeOfSteps sizes(source, *predictor, n_sinks, n_threads);
  TQC_TRY(sizes.count_other());
  TQC_TRY_ASSIGN(const double found, sizes.measure(double{step}));
  return found + sizes.other_bits();
}

}  // namespace tqcache::format
