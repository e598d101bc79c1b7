#pragma once
// store/upkeep/copy.h: copies of prompts, or of everything, from one store to another.
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
  bool replace = false;  // replace prompts of the same name with other content
  // Receives a message for each blob or prompt that could not be copied. The copy continues.
  std::function<void(const std::string& message)> on_warning = {};
};

struct CopyReport {
  std::uint64_t prompts = 0;           // that were copied
  std::uint64_t prompts_existed = 0;   // that existed already
  std::uint64_t prompts_failed = 0;    // that could not be copied
  std::uint64_t blobs = 0, bytes = 0;  // that were copied
  std::uint64_t blobs_existed = 0;
  std::uint64_t blobs_failed = 0;  // missing or damaged in the source

  bool is_whole() const { return prompts_failed == 0 && blobs_failed == 0; }
};

// Copies everything except hit statistics, also blobs that no prompt needs. Every blob is decoded
// before it is put; damaged ones are left out. Parameters and snapshots may get other slots, which
// records then name; everything else is copied byte for byte. A record is put after everything it
// needs.
//
// Progress: in bytes of `from`.
// Errors:   those of the backends; kInterrupted. A blob that cannot be copied is no error.
Result<CopyReport> copy_store(Backend& from, Backend& to, const CopyOptions& options,
                              const Progress& progress = {});

// Copies prompts, given by the keys of their records. Missing ones are reported to on_warning.
// Progress: in bytes of the blobs that the prompts need.
Result<CopyReport> copy_prompts(Backend& from, Backend& to,
                                const std::vector<std::string>& record_keys,
                                const CopyOptions& options, const Progress& progress = {});

}  // namespace tqcache::store
