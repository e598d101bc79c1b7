#pragma once
// store/test_backends.h: the backends of the conformance tests. Each test program has its own list.

#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace tqcache::test {

struct TestBackend {
  std::string name;
  bool exact_sizes = true;  // list() tells the bytes of the value, not what they take
  bool many_processes = true;
  bool one_writer_stores = true;   // of many that put one key at the same time
  int more_than_one_answer = 140;  // keys that list() cannot have at once
  // A URL for a new, empty store. `folder` lasts as long as the test.
  std::function<std::string(const std::filesystem::path& folder)> new_url;
};

inline std::ostream& operator<<(std::ostream& out, const TestBackend& backend) {
  return out << backend.name;
}

std::vector<TestBackend> test_backends();

}  // namespace tqcache::test
