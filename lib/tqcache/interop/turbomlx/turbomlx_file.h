#pragma once
// interop/turbomlx/turbomlx_file.h: a prompt cache of TurboMLX of any version, before its layers are looked
// at. Safe for untrusted input.
//
// Spec: docs/reference/interop.md, "TurboMLX".

#include <cstdint>
#include <string>
#include <vector>

#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/interop/turbomlx/turbomlx.h"
#include "tqcache/interop/value_tree.h"

namespace tqcache::interop {

// The cache of one layer.
struct TurboMlxEntry {
  // The class without its module: "TurboQuantKVCache", "KVCache". Of cache_type_id if TurboMLX
  // knows that one, otherwise of class_path.
  std::string class_name;
  ValueId state = 0;
  ValueId meta_state = 0;
  ValueId extra_state = 0;  // a dict, or what is taken for an empty one
};

struct TurboMlxContents {
  TurboMlxFile kind = TurboMlxFile::kPickle;
  int schema_version = 0;
  int pickle_protocol = 0;  // of pickles
  ValueTree tree;
  std::vector<TurboMlxEntry> entries;
};

// Errors: kTruncated, kCorrupt (a file of neither kind, too), kTooLarge; kUnsupported (versions;
//         classes that are neither TurboMLX's nor mlx-lm's, by their path); those of the file.
Result<TurboMlxContents> read_turbomlx(const ByteSource& file);

}  // namespace tqcache::interop
