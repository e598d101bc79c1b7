#pragma once
// interop/llama/llama_transposed.h: values that llama.cpp keeps without flash attention: for each
// component a row of all cells.

#include "tqcache/interop/llama/llama_side.h"

namespace tqcache::interop {

// As read_llama_side(). Requires: side.rows.is_transposed.
ReadRows read_transposed_llama_side(LlamaSide side);

}  // namespace tqcache::interop
