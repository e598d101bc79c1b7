#pragma once
// eval/calibration_state.h: the sums of a calibration that is under way, and its checkpoint file.
//
// Spec: docs/reference/profile.md, "How it is made".

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/hash.h"

namespace tqcache::eval {

using Doubles = std::vector<double>;

// Sums over all windows that were read.
struct Moments {
  std::size_t dim = 0, depth = 0, n_features = 0;
  double n = 0;
  std::vector<Doubles> shift;  // [layer][2 dim] subtracted before anything is summed
  std::vector<Doubles> sums;   // [layer][2 dim]
  std::vector<std::vector<Doubles>> products;  // [layer][distance][2 dim, 2 dim]
  std::vector<Doubles> with_features;          // [layer][2 dim, n_features]
  Doubles features;                            // [n_features, n_features]
  Doubles feature_sums;                        // [n_features]
};

// Symmetric matrices of errors that matter: [n_kv_heads][head_dim, head_dim].
using HeadMetrics = std::vector<Doubles>;

struct CalibrationState {
  std::uint64_t n_windows = 0;    // that were read
  std::uint64_t is_centered = 0;  // 1: all were read, and the moments are covariances
  Moments moments;
  std::vector<HeadMetrics> key_metrics;  // [layer]
  Doubles sensitivities;                 // of the first tensors
};

// Writes a checkpoint, atomically. `calibration` is a digest of everything that the result depends
// on.
// Errors: those of the file.
Result<void> save_state(const std::filesystem::path& path, const Sha256& calibration,
                        const CalibrationState& state);

// Reads a checkpoint into `state`, whose vectors have their sizes, except for `sensitivities`.
// Returns false if there is no file.
// Errors: kMismatch (a checkpoint of another calibration), kCorrupt; those of the file.
Result<bool> load_state(const std::filesystem::path& path, const Sha256& calibration,
                        CalibrationState& state);

}  // namespace tqcache::eval
