#pragma once
// model/loading/delta_net_weights.h: the weights of a gated delta net, in whatever order its file has them.
//
// Safe for untrusted input: every tensor's type, shape and size are checked.
//
// Qwen3-Next has queries, keys, values and gates of a key head side by side, Qwen3.5 has them
// apart; converters for GGUF put value heads in another order. The decoder's order, and a cache's,
// is that of Hugging Face: all queries, all keys, all values, and value heads of one key head in a
// row.
//
// Source: huggingface/transformers models/qwen3_next and models/qwen3_5; llama.cpp
// convert_hf_to_gguf.py.

#include <string>

#include "tqcache/model/loading/config.h"
#include "tqcache/model/loading/tensor_finder.h"
#include "tqcache/model/loading/weights.h"

namespace tqcache::model {

// Errors: kept by the finder.
DeltaNetWeights read_delta_net(TensorFinder& finder, const std::string& block,
                               const ModelConfig& config);

}  // namespace tqcache::model
