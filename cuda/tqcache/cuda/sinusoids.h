#pragma once
// cuda/sinusoids.h: tables of sinusoids over the tokens of a block, as kernels see them. Of this
// module only.

#include <vector_types.h>

namespace tqcache::cuda {

inline constexpr int kMostPairs = 128;   // of head_dim 256
inline constexpr int kPolynomials = 14;  // degrees 0 to 13
inline constexpr int kStepRows = 16;     // rows that matrix units multiply at once
inline constexpr int kStepPairs = 8;     // a row for its cosine, and one for its sine
inline constexpr int kMostJoined = 2;    // steps with polynomials

// All pointers are device pointers. Rows of a block's table: cosine and sine of each fast pair,
// then the polynomials, then zeros. Columns are tokens, counted from the middle of the block.
// Steps of fast pairs alone are direct: their factors are the amplitudes of pairs. Those of the
// other steps, which have polynomials, are joined from the amplitudes of the pairs that are left.
struct SinusoidTables {
  SinusoidTables() = default;
  SinusoidTables(const SinusoidTables&) = delete;
  SinusoidTables& operator=(const SinusoidTables&) = delete;
  ~SinusoidTables();

  int n_pairs = 0;
  int n_fast = 0;                 // the first of them
  int n_steps = 0;                // of kStepRows rows
  const double* turns = nullptr;  // [n_pairs]: full turns per token
  // Left factors, f16: [steps of the pairs that are left, joined steps, 32 threads]
  const uint4* joins = nullptr;
  const uint4* rows = nullptr;  // [8 tiles, n_steps, 2, 32 threads]: left factors, f16
  void* memory = nullptr;       // all of the above
};

}  // namespace tqcache::cuda
