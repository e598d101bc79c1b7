#pragma once
// tensors/npy.h: the header that an array of NumPy (.npy) begins with. Safe for untrusted input.
//
// Source: numpy/lib/format.py, versions 1.0 to 3.0.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/bytes.h"
#include "tqcache/base/result.h"
#include "tqcache/tensors/tensor.h"

namespace tqcache::tensors {

// More than any header takes, and enough to be read at once.
inline constexpr std::size_t kMaxNpyHeaderBytes = 64 << 10;

struct NpyHeader {
  TensorType type = TensorType::kOther;  // of texts, too, which `descr` tells apart
  std::string descr;                     // "<f2", "|S12", "<U5"
  std::vector<std::uint64_t> shape;      // outermost first; [] is a scalar
  std::uint64_t data_offset = 0;         // where the values begin
  std::uint64_t bytes = 0;               // of the values, as many as type and shape ask for
};

// `start`: the file, or as much of it as kMaxNpyHeaderBytes.
//
// Errors: kTruncated, kCorrupt, kTooLarge; kUnsupported (later versions, big-endian values,
// objects,
//         records, Fortran order).
Result<NpyHeader> parse_npy_header(ByteView start);

// Version 1.0, padded so that the values begin at a multiple of 64.
// Requires: `descr` is one that parse_npy_header() takes; shapes have at most 32 dimensions.
Bytes make_npy_header(std::string_view descr, const std::vector<std::uint64_t>& shape);

}  // namespace tqcache::tensors
