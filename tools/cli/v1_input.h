#pragma once
// tools/cli/v1_input.h: files of version 1, for verbs that read caches: as what they are in version 2.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/outcome.h"
#include "tqcache/base/file.h"

namespace tqcache::cli {

// What a file of version 1 says of itself.
struct V1Summary {
  std::vector<std::string> class_paths;  // of every layer, the first layer first
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<std::string> notes;  // on what version 2 has in another form
};

struct V1Input {
  V1Summary summary;
  std::unique_ptr<ByteSource> source;  // of version 2, in memory
};

// "version 1 is read only; ...", for verbs that write in a file.
Error v1_is_read_only();

// Reads a file of version 1 and warns of its age. `name` is what messages call it. If asked to
// `compare`, every value of the new form is held against what the file says.
//
// Memory: the file, decompressed, and the same in version 2.
Outcome<V1Input> read_v1_input(const ByteSource& file, const std::string& name, unsigned n_threads,
                               bool compare = false);

}  // namespace tqcache::cli
