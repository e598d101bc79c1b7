#pragma once
// interop/import_any.h: import of any foreign cache file, completed with hints.

#include <memory>
#include <string>
#include <vector>

#include "tqcache/interop.h"
#include "tqcache/interop/foreign_cache.h"

namespace tqcache::interop {

struct ImportedCache {
  ForeignCache cache;
  std::vector<std::string> notes;  // for display: what the file's content implies
};

// Reads the description of a cache in another program's file and completes it with the hints.
//
// Requires: `kind` is the result of detect_kind(), and neither kTqkv nor kTqkvVersion1.
// Errors:   those of the importers; kInvalidArgument (a hint is missing, named in the message;
//           first_tokens for a cache with recurrent state or sliding windows); kMismatch (tokens
//           that differ from the file's); kUnsupported (TurboMLX, in a library built without it).
Result<ImportedCache> import_any(std::shared_ptr<const ByteSource> file, FileKind kind,
                                 const OpenHints& hints = {});

}  // namespace tqcache::interop
