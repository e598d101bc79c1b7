#include "tqcache/codec/trellis/trellis_walk.h"

#include <cassert>
#include <string>
#include <string_view>

#include "tqcache/codec/trellis/trellis_search.h"

// Registers of sixteen bytes, which nearly every CPU has.
#define TQC_LANES inline
#define TQC_LANES_FUNCTION

namespace tqcache::codec {
namespace {

constexpr std::size_t kWalkBytes = 16;

}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/trellis/trellis_walk_lanes.h"

namespace tqcache::codec {
namespace {

const TrellisSteps& steps_of([[maybe_unused]] const Kernels& kernels) {
#ifdef TQCACHE_X86
  const std::string_view name = kernels.name;  // tables may be copies
  if (name == "avx512") return kTrellisStepsAvx512;
  if (name == "avx2") return kTrellisStepsAvx2;
#endif
  return kSteps;
}

}  // namespace

TrellisWalk::TrellisWalk(std::size_t n_vectors, const Kernels& kernels)
    : n_(n_vectors), steps_(steps_of(kernels)) {
  assert(n_vectors >= 1 && n_vectors <= kBlockTokens);
}

void TrellisWalk::to_codes(const std::uint8_t* symbols, std::uint8_t flip, std::uint8_t* codes) {
  steps_.to_codes({symbols, codes, n_, flip, states_.data(), bad_.data()});
}

void TrellisWalk::to_symbols(const std::uint8_t* codes, std::uint8_t flip, std::uint8_t* symbols) {
  steps_.to_symbols({codes, symbols, n_, flip, states_.data(), bad_.data()});
}

Result<void> TrellisWalk::verdict(const char* fact) const {
  for (std::size_t vector = 0; vector < n_; ++vector) {
    if (bad_[vector] == 0) continue;
    return Error{ErrorCode::kCorrupt, "vector " + std::to_string(vector) + ": " + fact};
  }
  return {};
}

}  // namespace tqcache::codec
