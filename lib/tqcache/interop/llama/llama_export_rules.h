#pragma once
// interop/llama/llama_export_rules.h: what can be written as a state file of llama.cpp, told before
// anything is.

#include "tqcache/base/result.h"
#include "tqcache/format/manifest.h"
#include "tqcache/interop/llama/llama_geometry.h"
#include "tqcache/interop/llama/llama_rows.h"
#include "tqcache/interop/llama/llama_state.h"

namespace tqcache::interop {

struct LlamaRowTypes {
  const LlamaRowType* k;
  const LlamaRowType* v;
};

// Errors: kInvalidArgument.
Result<LlamaRowTypes> check_export_options(const LlamaExport& options);

// Whether the cache is this model's, and all that llama.cpp would keep for it.
// Errors: kInvalidArgument, kUnsupported, kMismatch, as export_llama_state().
Result<void> check_export_cache(const format::Manifest& manifest, const LlamaGeometry& model,
                                const LlamaRowTypes& types);

}  // namespace tqcache::interop
