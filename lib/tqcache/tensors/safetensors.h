#pragma once
// tensors/safetensors.h: reads the tensors and metadata of a safetensors file. Safe for untrusted
// input.
//
// Every rule of the reference reader is checked, and a few more that keep a small file from
// asking for much memory; the tensors must cover the data exactly, without holes or overlap.
// Tensors may stand in any order, need not be aligned, and may be empty.
//
// Source: huggingface/safetensors README.md and safetensors/src/tensor.rs.

#include <map>
#include <string>

#include "tqcache/base/bytes.h"
#include "tqcache/base/result.h"
#include "tqcache/tensors/tensor.h"

namespace tqcache::tensors {

struct Safetensors {
  std::map<std::string, TensorView> tensors;    // views into the bytes given
  std::map<std::string, std::string> metadata;  // "__metadata__"; empty where absent or null
};

// Errors:  kTruncated, kCorrupt, kTooLarge (the limits stand in the .cpp files), kUnsupported
//          (dtypes and fields of later versions).
// Threads: any number at once; the views are as safe as the bytes.
Result<Safetensors> read_safetensors(ByteView file);

}  // namespace tqcache::tensors
