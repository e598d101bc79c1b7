#pragma once
// format/predicted_blocks.h: sections that hold the residual of a prediction: whole token blocks,
// decoded or encoded together.
//
// The sections of a token block depend on each other: keys and values of a layer are predicted from
// those of the layers before it. Token blocks are independent.
//
// Spec: docs/reference/format.md §6.7; docs/reference/codec.md §11.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/predict.h"
#include "tqcache/predict/rate.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::format {

// The sections of one token block, in the order of the section table: keys and values of layer 0,
// of layer 1, ...
struct PredictedBlock {
  std::vector<AlignedBytes> raw;  // as docs/reference/format.md §6.1 defines them
  std::vector<Bytes> coded;       // as stored; only if the block was encoded
};

// The token blocks that were made last: two more than there are processors. A thread that needs a
// block which another one is making makes one of the next blocks instead of waiting.
//
// Threads: any.
class PredictedBlocks {
 public:
  using Make = std::function<Result<PredictedBlock>(std::int64_t block)>;

  explicit PredictedBlocks(const Access& access = {})
      : profiles_(access.profiles), memory_(access.memory) {}

  // Requires: 0 <= block < n_blocks; `make` gives the same result whoever calls it.
  // Errors: those of `make` for this block.
  Result<std::shared_ptr<const PredictedBlock>> get(std::int64_t block, std::int64_t n_blocks,
                                                    const Make& make);

  // The profile of this manifest, whose prediction is present, after check_profile(); looked up
  // once.
  Result<std::shared_ptr<const predict::Predictor>> predictor(const Manifest& manifest);

 private:
  using Entry = std::optional<Result<std::shared_ptr<const PredictedBlock>>>;  // empty: in progress

  // Drops blocks that were made, the first ones before `end`, until one more may be made. Blocks
  // are read in ascending order, so the first ones are no longer needed. Keeps `block`.
  bool make_room(std::int64_t block, std::int64_t end);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::int64_t, Entry> entries_;
  predict::Profiles profiles_;
  MemoryBudget memory_;
  std::shared_ptr<const predict::Predictor> predictor_;
};

// Number of leading token blocks of a file that are predicted; the others are not.
std::int64_t predicted_block_count(const Manifest& manifest);

// Reads the stored bytes of a section, checked or authenticated.
using ReadStored = std::function<Result<void>(const SectionInfo& section, AlignedBytes& stored)>;

// The bytes of a predicted section before compression. Threads: any.
// Errors: kUnsupported (an unknown profile), kMismatch, kCorrupt; those of `read`.
Result<void> read_predicted(const Manifest& manifest, const SectionInfo& section,
                            const ReadStored& read, AlignedBytes& raw);

// A view of a dense cache as a predicted archive: its values are those that readers of the file
// will decode, and stored() gives the code.
//
// Requires: check_predictable(source).
// Errors:   kCorrupt for a profile whose maps have no inverse.
Result<std::shared_ptr<const cache::CacheReader>> predict_cache(
    std::shared_ptr<const cache::CacheReader> source,
    std::shared_ptr<const predict::Predictor> predictor, float step, std::int64_t n_sinks);

// The dtype of tensor `tensor` of a token block: keys of layer 0, values of layer 0, keys of layer
// 1,
// ...
Dtype predicted_dtype(const cache::CacheDesc& cache, std::size_t tensor);

// Checks that a cache can become a predicted archive.
// Errors: those of predict::check_profile(); kUnsupported (fewer than 256 tokens; quantized keys or
//         values).
Result<void> check_predictable(const cache::CacheDesc& cache, const predict::Profile& profile);

inline constexpr float kMinPredictedStep = predict::kMinStep;
inline constexpr float kMaxPredictedStep = predict::kMaxStep;

struct PredictedStep {
  float step = 0;
  double bits = 0;  // per value of the file, as the sample has it
};

// A step at which the file has about this many bits per value: it aims at half a percent less.
// Encodes 512 tokens from the whole cache, usually once or twice. Errors: kInvalidArgument if no
// step has so few bits; those of the source.
Result<PredictedStep> choose_predicted_step(
    const cache::CacheReader& source, const std::shared_ptr<const predict::Predictor>& predictor,
    std::int64_t n_sinks, double bits, unsigned n_threads);

// Bits per value of the file at this step, from the same tokens.
// Errors: those of the source.
Result<double> predicted_bits_of_step(const cache::CacheReader& source,
                                      const std::shared_ptr<const predict::Predictor>& predictor,
                                      std::int64_t n_sinks, float step, unsigned n_threads);

}  // namespace tqcache::format
