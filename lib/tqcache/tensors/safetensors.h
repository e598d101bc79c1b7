#pragma once
// tensors/safetensors.h: reader and header writer of safetensors files. Safe for untrusted input.
//
// Checks every rule of the reference reader, and a few more that keep a small file from using much
// memory; the tensors must cover the data exactly, without holes or overlap. Tensors may have any
// order, may be unaligned, and may be empty.
//
// Source: huggingface/safetensors README.md and safetensors/src/tensor.rs.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/tensors/tensor.h"

namespace tqcache::tensors {

struct Safetensors {
  std::map<std::string, TensorView> tensors;    // views into the given bytes
  std::map<std::string, std::string> metadata;  // "__metadata__"; empty where absent or null
};

// Errors:  kTruncated, kCorrupt, kTooLarge (limits: see the .cpp file), kUnsupported
//          (dtypes and fields of later versions).
// Threads: any number at once; the views are as safe as the bytes.
Result<Safetensors> read_safetensors(ByteView file);

// The place of a tensor in a file.
struct TensorPlace {
  TensorType type = TensorType::kOther;
  std::string type_name;
  std::vector<std::uint64_t> shape;  // outermost first
  std::uint64_t offset = 0;          // from the beginning of the file, with any alignment
  std::uint64_t bytes = 0;           // computed from type and shape
};

struct SafetensorsIndex {
  std::map<std::string, TensorPlace> tensors;
  std::map<std::string, std::string> metadata;
};

// The same for a file whose tensors are read one by one: reads only the header.
// Errors: as read_safetensors(), and those of reading.
Result<SafetensorsIndex> index_safetensors(const ByteSource& file);

// "F32", "F16" or "BF16".
std::string safetensors_type(tqcache::Dtype dtype);

struct NewTensor {
  std::string name;
  std::string type_name;             // "BF16"
  std::vector<std::uint64_t> shape;  // outermost first
};

// The start of a safetensors file: length and header, padded to a multiple of 8. The values of the
// tensors must follow, one after another in the given order.
//
// Requires: names differ; read_safetensors() knows the types, and sizes fit 64 bits.
// Bytes:    invalid UTF-8 in texts is replaced by U+FFFD.
Bytes make_safetensors_header(const std::vector<NewTensor>& tensors,
                              const std::map<std::string, std::string>& metadata);

}  // namespace tqcache::tensors
