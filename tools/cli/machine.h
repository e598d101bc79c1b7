#pragma once
// tools/cli/machine.h: what this program found on this machine, and what it uses of it.

#include <string>

#include "cli/console.h"

namespace tqcache::cli {

// What `tqcache --version` says of the processor's part.
std::string kernels_text();  // "avx512 (of scalar, avx2, avx512; TQCACHE_ISA chooses)"
std::string prompts_text();  // which code multiplies the matrices of a prompt

// The sections of `tqcache doctor`: objects of names and texts, numbers or lists of texts. Names
// are those of docs/reference/output.schema.json.
Json system_facts();
Json processor_facts();  // instruction sets found, kernels there are, kernels used
Json library_facts();    // versions of the libraries that run, not those of the build
Json gpu_facts();        // makes a CUDA context where there is a GPU
Json memory_facts(const MemoryBudget& memory);
Json setting_facts();  // the environment variables that change what the program does

}  // namespace tqcache::cli
