#include "store/test_backends.h"

namespace tqcache::test {

std::vector<TestBackend> test_backends() {
  TestBackend memory{.name = "Memory", .new_url = [](const auto&) { return "memory:"; }};
  memory.many_processes = false;
  const TestBackend dir{.name = "Dir", .new_url = [](const auto& folder) {
                          return "dir:" + (folder / "store").string();
                        }};
  return {memory, dir};
}

}  // namespace tqcache::test
