#pragma once
// interop/import_any.h: what a file of another program says of its cache, completed with
// hints.

#include <memory>
#include <string>
#include <vector>

#include "tqcache/interop.h"
#include "tqcache/interop/foreign_cache.h"

namespace tqcache::interop {

struct ImportedCache {
  ForeignCache cache;
  std::vector<std::string> notes;  // for people: what the file's content implies
};

// Reads what a file of another program says of its cache, and completes it with the hints.
//
// Requires: `kind` is what detect_kind() returned, neither kTqkv nor kTqkvVersion1.
// Errors:   those of the importers; kInvalidArgument (a hint is missing: which one; first_tokens
//           of a cache with recurrent state or sliding windows); kMismatch (tokens that differ from
//           the file's); kUnsupported (TurboMLX, in a library built without it).
Result<ImportedCache> import_any(std::shared_ptr<const ByteSource> file, FileKind kind,
                                 const OpenHints& hints = {});

}  // namespace tqcache::interop
