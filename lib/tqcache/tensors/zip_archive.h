#pragma once
// tensors/zip_archive.h: the members of a zip file, read by position (libzip). Safe for untrusted
// input.
//
// Source: PKWARE APPNOTE.TXT 6.3.10; libzip.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tqcache/access.h"
#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/file.h"

namespace tqcache::tensors {

struct ZipLimits {
  std::size_t max_members = 65'536;
  std::uint64_t max_directory_bytes = std::uint64_t{64} << 20;  // read to find all members
  std::uint64_t max_inflated_bytes = std::uint64_t{4} << 30;    // of all compressed members
  MemoryBudget memory = {};                                     // for these
};

struct ZipMember {
  std::string name;
  std::uint64_t bytes = 0;
  bool is_stored = false;  // otherwise deflated
};

// Whether a file has the signature of a zip file.
// Errors: kIo.
Result<bool> begins_as_zip(const ByteSource& file);

// Threads: several may read at once; reads wait for each other.
class ZipArchive {
 public:
  // Errors: kCorrupt (not a zip file, a duplicate name, an impossible size), kTruncated, kTooLarge,
  //         kIo; kUnsupported (encrypted, or compressed with another method than deflate).
  static Result<std::unique_ptr<ZipArchive>> open(std::shared_ptr<const ByteSource> file,
                                                  const ZipLimits& limits = {});
  ~ZipArchive();
  ZipArchive(const ZipArchive&) = delete;
  ZipArchive& operator=(const ZipArchive&) = delete;

  // In the order of the directory; names differ.
  const std::vector<ZipMember>& members() const;

  // Fills `out` from byte `offset` of a member on. Stored members are read from the file, without
  // verifying their checksum. Others are inflated completely and verified at the first call, and
  // stay in memory.
  // Errors: kTruncated, kCorrupt (also a checksum), kIo.
  Result<void> read_at(std::size_t member, std::uint64_t offset, std::span<std::byte> out) const;

  // The last out.size() bytes of a member. Reads all of it and verifies its checksum.
  // Errors: as read_at().
  Result<void> read_end(std::size_t member, std::span<std::byte> out) const;

  // The first `max_bytes` bytes of a member, or all if it is shorter, without verifying the
  // checksum.
  Result<Bytes> read_start(std::size_t member, std::size_t max_bytes) const;

 private:
  struct State;
  explicit ZipArchive(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tqcache::tensors
