#pragma once
// faults/disk_recorder.h: tells what a program asks of its disk, in order. It stands in the place
// of the C library's calls for the whole program.

#include <cstdint>
#include <string>
#include <vector>

#include "tqcache/bytes.h"

namespace tqcache::faults {

struct DiskStep {
  enum class Kind {
    kWrite,  // bytes, from offset on
    kCut,    // to `offset` bytes
    kFlush,  // of the file or folder
    kName,   // which the file has now, by renaming or linking
  };
  Kind kind = Kind::kWrite;
  std::uint64_t inode = 0;   // what it was done to
  bool is_folder = false;    // a flush of one
  std::uint64_t offset = 0;  // kWrite, kCut
  Bytes bytes = {};          // kWrite
};

// What the program does while this lives. One at a time.
class DiskRecording {
 public:
  DiskRecording();
  ~DiskRecording();
  DiskRecording(const DiskRecording&) = delete;
  DiskRecording& operator=(const DiskRecording&) = delete;
  const std::vector<DiskStep>& steps() const { return steps_; }

 private:
  std::vector<DiskStep> steps_;
};

}  // namespace tqcache::faults
