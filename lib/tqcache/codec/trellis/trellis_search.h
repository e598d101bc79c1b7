#pragma once
// codec/trellis/trellis_search.h: arguments of the trellis kernels (TrellisKernels in kernels.h).
//
// All kernels give the same bytes; trellis_scalar.cpp defines the search. The state machine
// consists of shifts and exclusive ors, so it processes as many vectors at a time as a register has
// bytes.
//
// Spec: docs/reference/codec.md, "Trellis codes".

#include <array>
#include <cstddef>
#include <cstdint>

#include "tqcache/codec/kernels/lanes.h"
#include "tqcache/codec/quantizer.h"
#include "tqcache/codec/trellis/trellis.h"

namespace tqcache::codec {

// Costs use y / 4, so that the levels of a class (those that are equal modulo 4) are 1 apart: class
// u has u / 4 + r for every integer r from kTrellisFirstPeriod to kTrellisLastPeriod.
inline constexpr float kTrellisFirstPeriod = -32.0f;
inline constexpr float kTrellisLastPeriod = 31.0f;
// Beyond this many steps the cost of y is constant, which keeps sums of squares finite.
inline constexpr float kTrellisFar = 1024.0f;
// Up to this many steps every class has its level nearest to y within the limits.
inline constexpr float kTrellisNear = 125.0f;

// The lower of the two source states of `state`; the other is four above it.
constexpr std::size_t trellis_source(std::size_t state) {
  const std::size_t odd = state >> 2;
  return odd | ((state & 1) ^ odd) << 1;
}

// The class of levels on the transition from that source. The class for the other source differs by
// 2.
constexpr std::size_t trellis_class(std::size_t state) {
  return (state >> 1 & 1) << 1 | state >> 2;
}

// Rows to encode and the destination of their paths, as in encode_trellis. Products or squares
// whose pointer is null are not stored.
//
// With tables, rows are head vectors: each is rotated and scaled to steps with its own scale
// (trellis_rows.h), which is stored in `scales`. A vector whose scale is 0 or beyond f16 gets the
// symbols of a vector of zeros.
struct TrellisTask {
  const float* rows = nullptr;  // [n_vectors, dim]
  TrellisShape shape;
  std::uint8_t* symbols = nullptr;         // [dim, n_vectors]
  float* products = nullptr;               // [n_vectors]
  float* squares = nullptr;                // [n_vectors]
  const RotationTables* tables = nullptr;  // null: rows are in steps already
  std::uint16_t* scales = nullptr;         // [n_vectors], with tables
};

// One component of n vectors. There are 256 bytes each of states and marks.
struct TrellisStep {
  const std::uint8_t* in = nullptr;
  std::uint8_t* out = nullptr;
  std::size_t n = 0;
  std::uint8_t flip = 0;
  std::uint8_t* states = nullptr;
  std::uint8_t* bad = nullptr;
};

class TrellisWalk {
 public:
  // Requires: n_vectors 1 to 256.
  TrellisWalk(std::size_t n_vectors, const Kernels& kernels);

  // Converts the next component from symbols to codes. `flip` is 0x80 for levels instead of codes,
  // else 0.
  // Shapes: symbols, codes [n_vectors].
  void to_codes(const std::uint8_t* symbols, std::uint8_t flip, std::uint8_t* codes);

  // Converts the next component from codes to symbols.
  void to_symbols(const std::uint8_t* codes, std::uint8_t flip, std::uint8_t* symbols);

  // An error for the first vector with a symbol of 128 or more, or with a code that its state does
  // not allow. Errors: kCorrupt: "vector 17: " + fact.
  Result<void> verdict(const char* fact) const;

 private:
  std::size_t n_;
  const TrellisKernels& kernels_;
  alignas(64) std::array<std::uint8_t, kBlockTokens> states_{};
  alignas(64) std::array<std::uint8_t, kBlockTokens> bad_{};  // nonzero for a bad vector
};

}  // namespace tqcache::codec
