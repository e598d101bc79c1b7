#pragma once
// tensors/npz.h: the arrays of a .npz file of NumPy, a zip file of .npy members. Safe for untrusted
// input.

#include <map>
#include <memory>
#include <span>
#include <string>

#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/tensors/npy.h"
#include "tqcache/tensors/zip_archive.h"

namespace tqcache::tensors {

struct NpzArray {
  NpyHeader header;
  std::size_t member = 0;
};

// Threads: as ZipArchive.
class Npz {
 public:
  // Reads the header of every array.
  //
  // Errors: those of ZipArchive::open() and parse_npy_header(); kUnsupported (a member that is no
  //         array), kCorrupt or kTruncated (not as long as its shape says).
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
