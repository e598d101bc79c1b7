#pragma once
// tools/cli/foreign_probe.h: a check that an imported cache holds what the model computes.
//
// Files of other programs do not name their model, and in some the layout is ambiguous. Recomputing
// a few tokens settles both: keys in another order, rotated, or of another model are unrelated to
// those in the file.

#include <cstdint>
#include <optional>
#include <string>

#include "cli/console.h"
#include "cli/model_facts.h"
#include "tqcache/error.h"
#include "tqcache/reader.h"

namespace tqcache::cli {

// The relative error of a few of the first tokens against the model's own, if the rows are read as
// rotated and as not rotated: the larger one of K and V, over all layers.
struct RotationErrors {
  std::int64_t n_tokens = 0;
  double on = 0;
  double off = 0;

  // True: rotated. nullopt if both errors are large, or both are small.
  std::optional<bool> decision() const;
};

// Errors: kUnsupported if the tokens are not known; those of reading and of the decoder.
Result<RotationErrors> compare_rotations(const cache::CacheReader& on,
                                         const cache::CacheReader& off, const model::Model& model,
                                         unsigned n_threads);

struct ForeignFindings {
  std::optional<std::string> words = {};  // nullopt without a model, or without a token to check
  cache::Standing standing = cache::Standing::kNone;
};

// Recomputes the last `n_probe` tokens, or what can be computed without those before them
// (probe.h). 0 turns it off.
//
// Memory: the whole cache.
// Errors: kMismatch if they differ by more than expected (probe.h); those of reading and of the
//         decoder.
Result<ForeignFindings> probe_foreign(const Console& console, const std::string& name,
                                      const cache::CacheReader& cache, std::int64_t n_probe,
                                      const ModelFacts& model, unsigned n_threads);

}  // namespace tqcache::cli
