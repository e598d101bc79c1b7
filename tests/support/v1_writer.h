#pragma once
// support/v1_writer.h: writes files of version 1, good ones and bad ones. Nothing but tests does.

#include <cstdint>
#include <functional>

#include "migrations/v1_file.h"
#include "tqcache/bytes.h"

namespace tqcache::test {

struct V1WriteOptions {
  std::uint32_t schema_version = 1;
  // What stands in the place of a tensor's frame: for files that lie. Empty: a frame of its values.
  std::function<Bytes(const migrations::V1Tensor&)> frame = {};
  bool share_frames = false;  // equal frames stand in the file once, and tensors point to them
  // The number that stands for a tensor's dtype.
  std::function<int(const migrations::V1Tensor&)> dtype = {};
};

// The file, digest and all. Throws when it cannot be made.
Bytes write_v1(const migrations::V1File& file, const V1WriteOptions& options = {});

// One zstd frame that says how much it holds; no bytes of no bytes.
Bytes zstd_frame(ByteView raw);

// Writes the SHA-256 of a file that was changed by hand over the old one.
// Requires: 32 bytes or more.
void seal_v1(Bytes& file);

}  // namespace tqcache::test
