#pragma once
// codec/trellis/trellis_search.h: the search for the nearest path, once for each kind of CPU.
//
// All give the same bytes; trellis_scalar.cpp is the definition.
//
// Spec: docs/reference/codec.md, "Trellis codes".

#include <cstddef>
#include <cstdint>

#include "tqcache/codec/kernels/kernel_tables.h"
#include "tqcache/codec/kernels/rotation_tables.h"
#include "tqcache/codec/trellis/trellis.h"
#include "tqcache/codec/trellis/trellis_walk.h"

namespace tqcache::codec {

// Costs are of quarters of y, so that the levels of a class (those that are equal modulo 4) are one
// apart: class u has u / 4 + r for every whole r from kFirstTurn to kLastTurn.
inline constexpr float kTrellisFirstTurn = -32.0f;
inline constexpr float kTrellisLastTurn = 31.0f;
// Beyond this many steps y costs no more: sums of squares stay finite.
inline constexpr float kTrellisFar = 1024.0f;
// Up to this many steps the level of each class nearest to y is there.
inline constexpr float kTrellisNear = 125.0f;

// The lower of the two states from which `state` is reached; the other is four above it.
constexpr std::size_t trellis_source(std::size_t state) {
  const std::size_t odd = state >> 2;
  return odd | ((state & 1) ^ odd) << 1;
}

// The class of levels on the way from there. On the way from the other one it is this one, plus or
// minus 2.
constexpr std::size_t trellis_class(std::size_t state) {
  return (state >> 1 & 1) << 1 | state >> 2;
}

// Rows to be coded and where their paths go, as encode_trellis has them. A null pointer is a sum
// that nobody wants.
//
// With tables, rows are head vectors: each is turned and brought to steps of its own scale
// (trellis_rows.h), which goes to `scales`. Symbols of a vector whose scale is 0 or beyond f16 are
// those of a vector of zeros.
struct TrellisTask {
  const float* rows = nullptr;  // [n_vectors, dim]
  TrellisShape shape;
  std::uint8_t* symbols = nullptr;         // [dim, n_vectors]
  float* products = nullptr;               // [n_vectors]
  float* squares = nullptr;                // [n_vectors]
  const RotationTables* tables = nullptr;  // null: rows are in steps already
  std::uint16_t* scales = nullptr;         // [n_vectors], with tables
};

// Returns the first vector with a component that is not finite, or else n_vectors.
using TrellisSearch = std::size_t (*)(const TrellisTask&);

std::size_t search_trellis_scalar(const TrellisTask& task);
#ifdef TQCACHE_X86
std::size_t search_trellis_avx2(const TrellisTask& task);
std::size_t search_trellis_avx512(const TrellisTask& task);
extern const TrellisSteps kTrellisStepsAvx2;
extern const TrellisSteps kTrellisStepsAvx512;
#endif

#ifdef TQCACHE_NEON
std::size_t search_trellis_neon(const TrellisTask& task);
#endif

// The one that belongs to a table of kernels.
TrellisSearch trellis_search(const Kernels& kernels);

}  // namespace tqcache::codec
