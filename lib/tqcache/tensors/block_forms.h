#pragma once
// tensors/block_forms.h: what the bytes of ggml's quantized blocks mean.
//
// A block is one or eight groups of 32 values. Value i of a block is
//
//   scale[i / kRun] * (code[i] - kOffset) - minimum[i / kRun]
//
// in f32, in this order; a form without minimum has no last term. Kernels read codes in their own
// way; the codes() here define what they must find.
//
//   kType, kValues, kBytes   as in BlockType
//   kRun                     values that share a scale: 16 or 32
//   kOffset                  what code stands for zero
//   kHasMinimum
//   codes(block, g, code)    the codes of group g, [32]
//   scales(block)            scale and minimum of every run
//
// Source: ggml ggml-common.h (block_q4_0 and the others), ggml-quants.c (dequantize_row_*).

#include "tqcache/tensors/block_forms_256.h"
#include "tqcache/tensors/block_forms_32.h"

namespace tqcache::tensors::forms {

template <class... Form>
struct List {
  static constexpr std::size_t kSize = sizeof...(Form);
};

using All = List<Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K>;

}  // namespace tqcache::tensors::forms
