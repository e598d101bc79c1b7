// zstd's contexts, made once and used again. Making one takes longer than all else that a target
// does with a small input.
//
// The linker puts these functions in the place of zstd's (--wrap in CMakeLists.txt). A context that
// is used again is reset as zstd.h says, so that no input sees what another one left.

#include <zstd.h>

#include <atomic>

extern "C" {

ZSTD_CCtx* __real_ZSTD_createCCtx(void);
ZSTD_DCtx* __real_ZSTD_createDCtx(void);
size_t __real_ZSTD_freeCCtx(ZSTD_CCtx* context);
size_t __real_ZSTD_freeDCtx(ZSTD_DCtx* context);

// Taken and given back by any thread.
static std::atomic<ZSTD_CCtx*> free_cctx = nullptr;
static std::atomic<ZSTD_DCtx*> free_dctx = nullptr;

ZSTD_CCtx* __wrap_ZSTD_createCCtx(void) {
  ZSTD_CCtx* const kept = free_cctx.exchange(nullptr);
  return kept != nullptr ? kept : __real_ZSTD_createCCtx();
}

ZSTD_DCtx* __wrap_ZSTD_createDCtx(void) {
  ZSTD_DCtx* const kept = free_dctx.exchange(nullptr);
  return kept != nullptr ? kept : __real_ZSTD_createDCtx();
}

size_t __wrap_ZSTD_freeCCtx(ZSTD_CCtx* context) {
  if (context == nullptr) return 0;
  ZSTD_CCtx_reset(context, ZSTD_reset_session_and_parameters);
  ZSTD_CCtx* const before = free_cctx.exchange(context);
  return before == nullptr ? 0 : __real_ZSTD_freeCCtx(before);
}

size_t __wrap_ZSTD_freeDCtx(ZSTD_DCtx* context) {
  if (context == nullptr) return 0;
  ZSTD_DCtx_reset(context, ZSTD_reset_session_and_parameters);
  ZSTD_DCtx* const before = free_dctx.exchange(context);
  return before == nullptr ? 0 : __real_ZSTD_freeDCtx(before);
}

}  // extern "C"
