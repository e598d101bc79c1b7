#pragma once
// tensors/zip_writer.h: writer of zip files with stored (uncompressed) members; atomic.
//
// The same members give the same bytes: the date of every member is the first that zip files allow.
//
// Source: PKWARE APPNOTE.TXT 6.3.10, sections 4.3 and 4.5.3.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/file.h"

namespace tqcache::tensors {

class ZipWriter {
 public:
  // Uses zip64 for numbers from `zip64_from` on.
  explicit ZipWriter(AtomicFile file, std::uint64_t zip64_from = 0xffffffff);

  // Adds a member that consists of the parts in order.
  // Requires: the name is ASCII, has at most 65535 bytes, and is unique.
  // Errors:   those of AtomicFile.
  Result<void> add(std::string_view name, std::span<const ByteView> parts);

  // Writes the directory, and commits. No members can be added afterwards.
  Result<void> finish();

 private:
  struct Member {
    std::string name;
    std::uint32_t crc = 0;
    std::uint64_t bytes = 0;
    std::uint64_t offset = 0;  // of its local header
  };

  bool is_large(std::uint64_t number) const { return number >= zip64_from_; }
  Bytes local_header(const Member& member) const;
  static void write_shared(const Member& member, bool is_zip64, std::uint16_t extra_bytes,
                           ByteWriter& out);
  void add_central_header(const Member& member, ByteWriter& out) const;
  void add_end(std::uint64_t begin, ByteWriter& out) const;

  AtomicFile file_;
  std::uint64_t zip64_from_;
  std::vector<Member> members_;
};

}  // namespace tqcache::tensors
