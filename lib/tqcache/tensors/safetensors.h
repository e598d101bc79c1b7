#pragma once
// tensors/safetensors.h: reads the tensors and metadata of a safetensors file. Safe for untrusted
// input.
//
// Every rule of the reference reader is checked, and a few more that keep a small file from
// asking for much memory; the tensors must cover the data exactly, without holes or overlap.
// Tensors may come in any order, need not be aligned, and may be empty.
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
  std::map<std::string, TensorView> tensors;    // views into the bytes given
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
  std::uint64_t offset = 0;          // from the beginning of the file, at any address
  std::uint64_t bytes = 0;           // as many as type and shape ask for
};

struct SafetensorsIndex {
  std::map<std::string, TensorPlace> tensors;
  std::map<std::string, std::string> metadata;
};

// The same of a file whose tensors are to be read one by one: only the header is.
// Errors: as read_safetensors(), and those of reading.
Result<SafetensorsIndex> index_safetensors(const ByteSource& file);

struct NewTensor {
  std::string name;
  std::string type_name;             // "BF16"
  std::vector<std::uint64_t> shape;  // outermost first
};

// The bytes that a safetensors file begins with: length and header, padded to a multiple of 8. The
// values of the tensors follow, one after another in the order given.
//
// Requires: names differ; types are ones that read_safetensors() knows, and sizes fit 64 bits.
// Bytes:    texts that are no UTF-8 get U+FFFD where they are not.
Bytes make_safetensors_header(const std::vector<NewTensor>& tensors,
                              const std::map<std::string, std::string>& metadata);

}  // namespace tqcache::tensors
