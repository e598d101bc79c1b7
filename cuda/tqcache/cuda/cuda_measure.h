#pragma once
// cuda/cuda_measure.h: what the kernels reach on the current GPU.
//
// Source: bench/cuda/bench_cuda.cpp measures more, for those who change the kernels.

#include <cstdint>

#include "tqcache/cuda/cuda_attention.h"
#include "tqcache/cuda/cuda_codec.h"

namespace tqcache::cuda {

// Keys and values of one layer in f16, random, the mean of keys taken out before RoPE.
struct Workload {
  codec::HeadCodec keys, values;
  std::int64_t n_tokens = 8192;  // of each sequence: whole blocks of 256
  int n_sequences = 1, n_kv_heads = 8, n_query_heads = 32;
  int n_runs = 20;  // medians of them
};

// Seconds for K and V of the layer together.
struct Rates {
  std::size_t dense_bytes = 0, packed_bytes = 0;
  double copy_seconds = 0;  // a copy of the dense bytes in the memory of the GPU
  double encode_seconds = 0, decode_seconds = 0;
  double attend_seconds =
      0;  // of one decode step on the packed bytes; 0: there is no kernel for it
};

// Allocates the memory that it needs, and waits for the GPU.
// Errors: kInvalidArgument; kUnsupported (no kernel for the codec); kIo (CUDA, or memory is short).
Result<Rates> measure(const Workload& work);

}  // namespace tqcache::cuda
