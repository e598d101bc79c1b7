// codec/trellis/trellis_walk_lanes.h: the state machine of trellis codes for kWalkBytes vectors at
// a time. Included by trellis_*.cpp, which define kWalkBytes, TQC_LANES and TQC_LANES_FUNCTION
// first.

#include <cstring>

#include "tqcache/codec/trellis/trellis_search.h"

namespace tqcache::codec {
namespace {

typedef std::uint8_t WalkLanes __attribute__((vector_size(kWalkBytes)));

TQC_LANES WalkLanes load_lanes(const std::uint8_t* from, std::size_t n) {
  WalkLanes v = {};
  if (n >= kWalkBytes) {
    std::memcpy(&v, from, sizeof(v));
  } else {
    std::memcpy(&v, from, n);
  }
  return v;
}

TQC_LANES void store_lanes(WalkLanes v, std::uint8_t* to, std::size_t n) {
  if (n >= kWalkBytes) {
    std::memcpy(to, &v, sizeof(v));
  } else {
    std::memcpy(to, &v, n);
  }
}

// The states after symbols with the lowest bits `driver`.
TQC_LANES WalkLanes next_states(WalkLanes states, WalkLanes driver) {
  const WalkLanes odd = states & 1;
  return (states >> 1) ^ (odd | odd << 2) ^ driver << 1;
}

TQC_LANES_FUNCTION void walk_to_codes(const TrellisStep& step) {
  for (std::size_t i = 0; i < step.n; i += kWalkBytes) {
    const std::size_t left = step.n - i;
    const WalkLanes symbols = load_lanes(step.in + i, left);
    const WalkLanes states = load_lanes(step.states + i, kWalkBytes);
    const WalkLanes bad = load_lanes(step.bad + i, kWalkBytes) | (symbols & 0x80);
    store_lanes(bad, step.bad + i, kWalkBytes);
    store_lanes((symbols << 1 | (states & 1)) ^ step.flip, step.out + i, left);
    store_lanes(next_states(states, symbols & 1), step.states + i, kWalkBytes);
  }
}

TQC_LANES_FUNCTION void walk_to_symbols(const TrellisStep& step) {
  for (std::size_t i = 0; i < step.n; i += kWalkBytes) {
    const std::size_t left = step.n - i;
    const WalkLanes codes = load_lanes(step.in + i, left) ^ step.flip;
    const WalkLanes states = load_lanes(step.states + i, kWalkBytes);
    const WalkLanes bad = load_lanes(step.bad + i, kWalkBytes) | ((codes ^ states) & 1);
    store_lanes(bad, step.bad + i, kWalkBytes);
    const WalkLanes symbols = codes >> 1;
    store_lanes(symbols, step.out + i, left);
    store_lanes(next_states(states, symbols & 1), step.states + i, kWalkBytes);
  }
}

}  // namespace
}  // namespace tqcache::codec
