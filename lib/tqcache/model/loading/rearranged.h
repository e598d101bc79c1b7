#pragma once
// model/loading/rearranged.h: copies of gpt-oss's experts in the layout of GGUF.
//
// In Hugging Face's files a matrix of an expert is [inputs, outputs], and the outputs of gate and
// up alternate. In MXFP4, rows are as in GGUF, but scales are a tensor of their own, and a byte has
// two neighboring codes instead of codes 16 apart.
//
// Safe for untrusted input: types and shapes are checked.
//
// Source: huggingface/transformers models/gpt_oss and integrations/mxfp4.py; llama.cpp
// conversion/gpt_oss.py.

#include "tqcache/access.h"
#include "tqcache/error.h"
#include "tqcache/model/loading/model_files.h"

namespace tqcache::model {

// Replaces the tensors ffn_gate_up_exps and ffn_down_exps of every layer (weight and bias, or
// MXFP4's blocks and scales) by GGUF's ffn_gate_exps, ffn_up_exps and ffn_down_exps. These are
// copies in model.rearranged, as large as the originals.
//
// Errors: kCorrupt (shapes that do not fit, scales without blocks), kUnsupported (another type),
//         each with the name of the tensor; kTooLarge.
Result<void> rearrange_experts(ModelTensors& model, const MemoryBudget& memory = {});

}  // namespace tqcache::model
