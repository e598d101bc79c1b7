// Trellis codes with NEON.

#include "tqcache/codec/kernels/registers_neon.h"

#ifdef TQCACHE_NEON

#include "tqcache/codec/trellis/trellis_search.h"

namespace tqcache::codec {
namespace {

constexpr std::size_t kWalkBytes = 16;

// kWidth components of kWidth rows, transposed; only `left` components exist.
TQC_LANES void load_square(const float* const (&rows)[kWidth], std::size_t first, std::size_t left,
                           Lanes (&out)[kWidth]) {
  TQC_UNROLL for (std::size_t l = 0; l < kWidth; ++l) {
    out[l] = widen<Dtype::kF32>(reinterpret_cast<const std::byte*>(rows[l]), first, left);
  }
  transpose(out);
}

TQC_LANES Ints larger(Ints a, Ints b) { return a > b ? a : b; }

TQC_LANES Lanes smaller(Lanes a, Lanes b) { return vminq_f32(a, b); }

TQC_LANES Lanes clamp_lanes(Lanes v, float low, float high) {
  return vminq_f32(vmaxq_f32(v, vdupq_n_f32(low)), vdupq_n_f32(high));
}

TQC_LANES Lanes to_even(Lanes v) { return vrndnq_f32(v); }

// `yes` where b < a, else `no`.
TQC_LANES Ints where_less(Lanes b, Lanes a, Ints yes, Ints no) {
  return reinterpret_cast<Ints>(vbslq_s32(vcltq_f32(b, a), reinterpret_cast<int32x4_t>(yes),
                                          reinterpret_cast<int32x4_t>(no)));
}

// The lowest byte of each lane.
TQC_LANES void store_bytes(Ints v, std::uint8_t* to) {
  typedef std::uint8_t Four __attribute__((vector_size(4)));
  const Four bytes = __builtin_convertvector(v, Four);
  __builtin_memcpy(to, &bytes, sizeof(bytes));
}

TQC_LANES Ints load_bytes(const std::uint8_t* from) {
  typedef std::uint8_t Four __attribute__((vector_size(4)));
  Four bytes;
  __builtin_memcpy(&bytes, from, sizeof(bytes));
  return __builtin_convertvector(bytes, Ints);
}

}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/trellis/trellis_lanes.h"
#include "tqcache/codec/trellis/trellis_walk_lanes.h"

namespace tqcache::codec {

const TrellisKernels neon::kTrellisKernels = {search_all, walk_to_codes, walk_to_symbols};

}  // namespace tqcache::codec

#endif  // TQCACHE_NEON
