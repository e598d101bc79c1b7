// zstd's contexts, made once and used again. Making one takes longer than all else that a target
// does with a small input.
//
// The linker puts these functions in the place of zstd's (--wrap in CMakeLists.txt). A context that
// is used again is reset as zstd.h says, so that no input sees what another one left.

#include <zstd.h>

extern "C" {

ZSTD_CCtx* __real_ZSTD_createCCtx(void);
ZSTD_DCtx* __real_ZSTD_createDCtx(void);
size_t __real_ZSTD_freeCCtx(ZSTD_CCtx* context);
size_t __real_ZSTD_freeDCtx(ZSTD_DCtx* context);

static ZSTD_CCtx* free_cctx = nullptr;
static ZSTD_DCtx* free_dctx = nullptr;

ZSTD_CCtx* __wrap_ZSTD_createCCtx(void) {
  ZSTD_CCtx* const kept = free_cctx;
  free_cctx = nullptr;
  return kept != nullptr ? kept : __real_ZSTD_createCCtx();
}

ZSTD_DCtx* __wrap_ZSTD_createDCtx(void) {
  ZSTD_DCtx* const kept = free_dctx;
  free_dctx = nullptr;
  return kept != nullptr ? kept : __real_ZSTD_createDCtx();
}

size_t __wrap_ZSTD_freeCCtx(ZSTD_CCtx* context) {
  if (context == nullptr || free_cctx != nullptr) return __real_ZSTD_freeCCtx(context);
  free_cctx = context;
  return ZSTD_CCtx_reset(context, ZSTD_reset_session_and_parameters);
}

size_t __wrap_ZSTD_freeDCtx(ZSTD_DCtx* context) {
  if (context == nullptr || free_dctx != nullptr) return __real_ZSTD_freeDCtx(context);
  free_dctx = context;
  return ZSTD_DCtx_reset(context, ZSTD_reset_session_and_parameters);
}

}  // extern "C"
