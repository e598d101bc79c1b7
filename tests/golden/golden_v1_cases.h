#pragma once
// golden/golden_v1_cases.h: what the golden files of version 1 hold.

#include <functional>
#include <string>
#include <vector>

#include "migrations/v1_file.h"

namespace tqcache::test {

struct GoldenV1Case {
  std::string name;
  std::function<migrations::V1File()> make;
};

// Cases are only added: the files are never made anew (README.md).
std::vector<GoldenV1Case> golden_v1_cases();

}  // namespace tqcache::test
