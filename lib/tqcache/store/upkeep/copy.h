#pragma once
// store/upkeep/copy.h: prompts from one store to another, with all that they need; or everything.
//
// Spec: docs/reference/store.md, "Copying".

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/store/backend.h"

namespace tqcache::store {

struct CopyOptions {
  bool replace = false;  // prompts of the same name that hold something else
  // Told of each thing that could not be copied, and why. The rest goes on.
  std::function<void(const std::string& message)> on_warning = {};
};

struct CopyReport {
  std::uint64_t prompts = 0;           // that are there now, and were not
  std::uint64_t prompts_existed = 0;   // were there already
  std::uint64_t prompts_failed = 0;    // could not be copied
  std::uint64_t blobs = 0, bytes = 0;  // that were put
  std::uint64_t blobs_existed = 0;
  std::uint64_t blobs_failed = 0;  // missing or damaged where they were

  bool is_whole() const { return prompts_failed == 0 && blobs_failed == 0; }
};

// Everything but usage notes: what no prompt needs, too. Every blob is decoded before it is put,
// and a damaged one is left out. Parameters and states may stand in other slots there, and records
// then say so; everything else is copied byte for byte. A prompt's record is put when all that it
// needs is there.
//
// Progress: in bytes of `from`.
// Errors:   those of the backends; kInterrupted. What cannot be copied is no error.
Result<CopyReport> copy_store(Backend& from, Backend& to, const CopyOptions& options,
                              const Progress& progress = {});

// Prompts by the keys of their records. One that is not there is told to on_warning.
// Progress: in bytes of the blobs that the prompts need.
Result<CopyReport> copy_prompts(Backend& from, Backend& to,
                                const std::vector<std::string>& record_keys,
                                const CopyOptions& options, const Progress& progress = {});

}  // namespace tqcache::store
