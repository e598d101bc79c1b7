#pragma once
// interop/llama/llama_search.h: which of the layouts a state file of llama.cpp has. Safe for untrusted
// input.

#include "tqcache/base/result.h"
#include "tqcache/interop/llama/llama_parse.h"

namespace tqcache::interop {

// Whether there are files of such a version that may be read.
// Errors: kUnsupported.
Result<void> check_llama_version(LlamaFile kind, std::uint32_t version);

// Requires: check_llama_version().
// Errors: kUnsupported (versions, files of ik_llama.cpp); kCorrupt (more than one layout fits);
// else
//         those of the layout that the file was like for longest.
Result<LlamaBody> find_llama_body(const LlamaParse& parse, std::uint32_t version);

}  // namespace tqcache::interop
