#include "store/engines.h"

namespace tqcache::test {

std::vector<Engine> engines() {
  Engine memory{.name = "Memory", .new_url = [](const auto&) { return "memory:"; }};
  memory.many_processes = false;
  const Engine dir{.name = "Dir", .new_url = [](const auto& folder) {
                     return "dir:" + (folder / "store").string();
                   }};
  return {memory, dir};
}

}  // namespace tqcache::test
