#pragma once
// tools/cli/foreign_probe.h: A check that an imported cache holds what the model computes.
//
// Files of other programs do not say whose they are, and some not how they are to be read. Both
// show when a few tokens are computed again: keys in another order, rotated, or of another model
// have nothing in common with the ones in the file.

#include <cstdint>
#include <optional>
#include <string>

#include "cli/console.h"
#include "cli/model_facts.h"
#include "tqcache/error.h"
#include "tqcache/reader.h"

namespace tqcache::cli {

// How far a few of the first tokens are from what the model computes, in parts of their length,
// were the rows rotated and were they not: the larger one of keys and values, over all layers.
struct RotationErrors {
  std::int64_t n_tokens = 0;
  double on = 0;
  double off = 0;

  // True: rotated. Nothing when both are far, or neither is.
  std::optional<bool> decision() const;
};

// Errors: kUnsupported when the tokens are not known; those of reading and of the decoder.
Result<RotationErrors> compare_rotations(const cache::CacheReader& on,
                                         const cache::CacheReader& off, const model::Model& model,
                                         unsigned n_threads);

// Computes the last `n_probe` tokens again. Gives what was found out, in words; nothing when there
// is no model, no token to look at, or not to be looked.
//
// Memory: the whole cache.
// Errors: kMismatch when they differ by more than expected (probe.h); those of reading and of the
//         decoder.
Result<std::optional<std::string>> probe_foreign(const Console& console, const std::string& name,
                                                 const cache::CacheReader& cache,
                                                 std::int64_t n_probe, const ModelFacts& model,
                                                 unsigned n_threads);

}  // namespace tqcache::cli
