#pragma once
// format/archive_rate.h: the step with which the archive tier makes a file of a given size.
//
// How many bits a step takes depends on the vectors, so it is found out: some token blocks of every
// side are coded with a few steps, and what they take in the file tells the step between them that
// the whole file needs.
//
// Spec: docs/reference/codec.md §10, "Rate".

#include <optional>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/plan.h"
#include "tqcache/cache/reader.h"

namespace tqcache::format {

// What an archive shall come to: one of the three.
struct ArchiveTarget {
  // Bits of the whole file for each key and value: sections, means, section table, token ids and
  // all. 1 to 8.
  std::optional<double> bits;
  // |x - x^|^2 / |x|^2 of what is coded, the mean being out. 0.0001 to 0.5.
  std::optional<double> mse;
  // The step itself, 1/64 to 8; what is left to choose is whether maps pay.
  std::optional<double> step = {};
};

inline constexpr double kMinArchiveBits = 1.0;
inline constexpr double kMaxArchiveBits = 8.0;
inline constexpr double kMinArchiveMse = 0.0001;
inline constexpr double kMaxArchiveMse = 0.5;

// The same options with the steps of keys and values set. Both get one step, which the weights of
// layers multiply: without any, a level is the same share of every vector.
//
// Reads at most 32 token blocks of every side that gets packed, one side after another.
// Requires: both plans are of mode trellis, or dense, or keep what is packed.
// Errors:   kInvalidArgument for a target out of range, or that no step meets: the message says
//           what the file takes without the packed sections; for windows that shall be packed;
//           those of the source; as cache::plan_layers(), as convert_file() for what is packed.
//           kInterrupted.
// Value:    the same for any number of threads.
Result<cache::ConvertOptions> choose_step(const cache::CacheReader& source,
                                          const cache::ConvertOptions& options,
                                          const ArchiveTarget& target,
                                          const Progress& progress = {});

}  // namespace tqcache::format
