#pragma once
// tensors/gguf.h: reader of the metadata and tensors of GGUF files, version 2 or 3, little-endian.
// Safe for untrusted input.
//
// Every length, count and offset is checked against the file before it is used, and tensors must
// follow each other without dead space or overlap, as ggml itself requires. The caller has to check
// the meaning of the metadata (which keys a model needs, and whether its numbers make sense).
//
// Source: ggml docs/gguf.md, include/gguf.h and src/gguf.cpp.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/tensors/tensor.h"

namespace tqcache::tensors {

// A metadata value. All integer types become i64, f32 becomes f64; arrays hold one type, and may be
// empty. A u64 beyond i64 becomes f64, and so does an array with one: no key that is read here has
// such a number, and a key that is not read must not matter. Texts of an array are views into the
// given bytes.
using GgufValue =
    std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>,
                 std::vector<double>, std::vector<bool>, std::vector<std::string_view>>;

struct Gguf {
  std::uint32_t version = 0;
  std::map<std::string, GgufValue> metadata;
  std::map<std::string, TensorView> tensors;  // views into the given bytes; shape outermost first

  // Typed look-ups. Errors: kCorrupt if the key is missing or of another type, with the key in the
  // message.
  Result<std::int64_t> get_int(const std::string& key) const;
  Result<double> get_float(const std::string& key) const;  // also accepts an integer
  Result<bool> get_bool(const std::string& key) const;
  Result<std::string> get_string(const std::string& key) const;
  Result<const std::vector<std::int64_t>*> get_ints(const std::string& key) const;
  Result<const std::vector<std::string_view>*> get_strings(const std::string& key) const;
  bool has(const std::string& key) const { return metadata.contains(key); }
};

// Bytes after the last tensor are ignored (ggml pads them, some writers don't). A part of a split
// model is a file like any other, with some of the tensors (model/gguf_parts.h).
//
// Errors:  kTruncated, kCorrupt, kTooLarge (limits: see the .cpp file), kUnsupported
//          (version 1 or above 3, big-endian, nested arrays, unknown types).
// Threads: any number at once; the views are as safe as the bytes.
Result<Gguf> read_gguf(ByteView file);

}  // namespace tqcache::tensors
