#pragma once
// What a fixture of ctest has started.

#include <string>

namespace tqcache::test {

// The URL in the file that an environment variable names. Throws when there is none, which fails
// the test.
std::string server_url(const std::string& variable);

}  // namespace tqcache::test
