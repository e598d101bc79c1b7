#pragma once
// base/file_io.h: what the kinds of files do with their descriptors: read, write, flush and lock.
//
// Only for the sources of base: everyone else reads and writes through base/file.h.

#include <cerrno>
#include <cstdint>
#include <span>
#include <string>

#include "tqcache/base/bytes.h"
#include "tqcache/base/descriptor.h"
#include "tqcache/base/result.h"

namespace tqcache {

// Bytes in the file at this moment; 0 when the system does not say, so that reading it then fails.
std::uint64_t size_of(const Descriptor& file);

// Errors: kTruncated when `size` bytes do not hold `count` from `offset` on.
Result<void> check_range(std::uint64_t offset, std::uint64_t count, std::uint64_t size);

// Fills `out` from byte `offset` on, without moving the position in the file.
// Errors: kTruncated, kIo.
Result<void> read_fully_at(const Descriptor& file, std::uint64_t offset, std::span<std::byte> out);

// Writes every byte, however many at a time the system takes. `put` writes some of those it is
// given, which begin `done` bytes into `bytes`.
template <class Put>
Result<void> put_all(ByteView bytes, Put put) {
  for (std::size_t done = 0; done < bytes.size();) {
    const auto count = retry_interrupted([&] { return put(bytes.subspan(done), done); });
    if (count <= 0) return system_error("write", count == 0 ? EIO : errno);
    done += static_cast<std::size_t>(count);
  }
  return {};
}

Result<void> write_fully_at(const Descriptor& file, std::uint64_t offset, ByteView bytes);

// `sync` is fsync or fdatasync. Devices, pipes and some network file systems have no flush to
// offer; that is no error.
Result<void> flush_with(int (*sync)(int), const Descriptor& file);

inline Error busy_error() { return {ErrorCode::kBusy, "another process is writing it"}; }

// Locks the open file against every other opening of it, in this process too, until it is closed.
// False when its file system has no locks.
// Errors: kBusy, kIo.
Result<bool> lock(const Descriptor& file);

// Whether the open file is what stands under `name` in `folder` (or AT_FDCWD) now.
Result<bool> stands_under(const Descriptor& file, int folder, const std::string& name);

}  // namespace tqcache
