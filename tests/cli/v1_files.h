#pragma once
// tests/cli/v1_files.h: files of version 1 for the program to read.

#include <filesystem>
#include <string>

#include "cli/demo.h"
#include "support/v1_builder.h"
#include "support/v1_writer.h"

namespace tqcache::test {

inline std::string write_v1_file(const std::filesystem::path& path,
                                 const migrations::V1File& file) {
  write_all(path, write_v1(file));
  return path.string();
}

// A small one of two layers, of no known origin.
inline migrations::V1File small_v1(std::uint64_t seed = 1) {
  return V1Builder(300, seed).turbo({2, 64}, {.bits = 3}).dense({2, 64}, V1Dtype::kF16).build();
}

// The dense cache in `file`, which has the bundled model's identity and tokens, as a program of the
// time would have kept it.
std::string write_v1_twin(const std::string& file);

}  // namespace tqcache::test
