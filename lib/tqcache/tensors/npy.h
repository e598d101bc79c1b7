#pragma once
// tensors/npy.h: NumPy arrays: headers of .npy files, and .npz files, which are zip files of .npy
// members. Safe for untrusted input.
//
// Source: numpy/lib/format.py, versions 1.0 to 3.0.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/tensors/tensor.h"
#include "tqcache/tensors/zip_archive.h"

namespace tqcache::tensors {

// Larger than any header, and small enough to read at once.
inline constexpr std::size_t kMaxNpyHeaderBytes = 64 << 10;

struct NpyHeader {
  TensorType type = TensorType::kOther;  // also for texts, which `descr` identifies
  std::string descr;                     // "<f2", "|S12", "<U5"
  std::vector<std::uint64_t> shape;      // outermost first; [] is a scalar
  std::uint64_t data_offset = 0;         // start of the values
  std::uint64_t bytes = 0;               // of the values, computed from type and shape
};

// `start`: the file, or at least its first kMaxNpyHeaderBytes.
//
// Errors: kTruncated, kCorrupt, kTooLarge; kUnsupported (later versions, big-endian values,
//         objects, records, Fortran order).
Result<NpyHeader> parse_npy_header(ByteView start);

// Version 1.0, padded so that the values begin at a multiple of 64.
// Requires: parse_npy_header() accepts `descr`; the shape has at most 32 dimensions.
Bytes make_npy_header(std::string_view descr, const std::vector<std::uint64_t>& shape);

struct NpzArray {
  NpyHeader header;
  std::size_t member = 0;
};

// Threads: as ZipArchive.
class Npz {
 public:
  // Reads the header of every array.
  //
  // Errors: those of ZipArchive::open() and parse_npy_header(); kUnsupported (a member that is not
  //         an array), kCorrupt or kTruncated (a length that does not match the shape).
  static Result<Npz> open(std::shared_ptr<const ByteSource> file, const ZipLimits& limits = {});
  static Result<Npz> open(std::unique_ptr<ZipArchive> zip);

  // By name, without ".npy".
  const std::map<std::string, NpzArray>& arrays() const { return arrays_; }

  // Fills `out` from byte `offset` of an array's values on, as ZipArchive::read_at().
  Result<void> read_at(const NpzArray& array, std::uint64_t offset, std::span<std::byte> out) const;

  // All values of an array, checked. Requires: out.size() is array.header.bytes.
  Result<void> read_all(const NpzArray& array, std::span<std::byte> out) const;

 private:
  explicit Npz(std::unique_ptr<ZipArchive> zip) : zip_(std::move(zip)) {}
  Result<void> add(std::size_t member);

  std::unique_ptr<ZipArchive> zip_;
  std::map<std::string, NpzArray> arrays_;
};

}  // namespace tqcache::tensors
