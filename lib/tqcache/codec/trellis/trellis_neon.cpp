// The search for the nearest path with NEON: four vectors at once.

#include "tqcache/codec/kernels/rows_neon.h"

#ifdef TQCACHE_NEON

#define TQC_LANES_FUNCTION
#define TQC_LANES __attribute__((always_inline)) inline

namespace tqcache::codec {
namespace {
using Lanes = float32x4_t;
constexpr std::size_t kPassStages = 4;  // half of the registers
}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/kernels/lane_rotation.h"

namespace tqcache::codec {
namespace {

typedef std::int32_t Ints __attribute__((vector_size(sizeof(Lanes))));

// kWidth components of kWidth rows, of which `left` are there, with rows and columns changed.
TQC_LANES void load_square(const float* const (&rows)[kWidth], std::size_t first, std::size_t left,
                           Lanes (&out)[kWidth]) {
  TQC_UNROLL for (std::size_t l = 0; l < kWidth; ++l) {
    out[l] = neon::widen<Dtype::kF32>(reinterpret_cast<const std::byte*>(rows[l]), first, left);
  }
  neon::transpose(out);
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

std::size_t tqcache::codec::search_trellis_neon(const TrellisTask& task) {
  return search_all(task);
}

#endif  // TQCACHE_NEON
