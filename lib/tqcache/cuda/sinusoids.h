#pragma once
// cuda/sinusoids.h: tables of sinusoids over the tokens of a block, as kernels see them. Of this
// module only.

#include <vector_types.h>

namespace tqcache::cuda {

inline constexpr int kMostPairs = 128;   // of head_dim 256
inline constexpr int kPolynomials = 14;  // degrees 0 to 13
inline constexpr int kJoinRow = 16;      // floats: factors of the polynomials in a slow sinusoid
inline constexpr int kStepRows = 16;     // rows that matrix units multiply at once

// All pointers are device pointers. Rows of a block's table: cosine and sine of each fast pair,
// then the polynomials, then zeros. Columns are tokens, counted from the middle of the block.
struct SinusoidTables {
  SinusoidTables() = default;
  SinusoidTables(const SinusoidTables&) = delete;
  SinusoidTables& operator=(const SinusoidTables&) = delete;
  ~SinusoidTables();

  int n_pairs = 0;
  int n_fast = 0;                 // the first of them
  int n_steps = 0;                // of kStepRows rows
  const double* turns = nullptr;  // [n_pairs]: full turns per token
  const float* joins = nullptr;   // [n_pairs - n_fast, kJoinRow]
  const uint4* rows = nullptr;    // [4 tiles, n_steps, 2, 32 threads]: left factors, f16
  void* memory = nullptr;         // all of the above
};

}  // namespace tqcache::cuda
