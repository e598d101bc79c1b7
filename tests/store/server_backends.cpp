// Backends that ctest's fixtures have started (tests/store/servers); each has written its URL to a
// file.

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

#include "store/server_url.h"
#include "store/test_backends.h"

namespace tqcache::test {
namespace {

// Stores of different tests, which may run at the same time, have different prefixes.
std::string unique_name() {
  static std::atomic<int> count = 0;
  return "test-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

TestBackend redis(const std::string& name, const std::string& variable) {
  TestBackend backend{.name = name, .exact_sizes = false, .new_url = {}};
  backend.more_than_one_answer = 1100;
  backend.new_url = [=](const auto&) {
    return server_url(variable) + "?prefix=" + unique_name() + ":";
  };
  return backend;
}

TestBackend s3(const std::string& name, const std::string& more) {
  TestBackend backend{.name = name, .new_url = {}};
  backend.more_than_one_answer = 1010;
  backend.new_url = [=](const auto&) {
    const std::string url = server_url("TQCACHE_TEST_S3");
    const std::size_t query = url.find('?');
    return url.substr(0, query) + "/" + unique_name() + url.substr(query) + more;
  };
  return backend;
}

}  // namespace

std::string server_url(const std::string& variable) {
  const char* const path = std::getenv(variable.c_str());
  std::string url;
  if (path == nullptr || !(std::ifstream(path) >> url)) {
    throw std::runtime_error(variable + " names no file with the URL of a server");
  }
  return url;
}

std::vector<TestBackend> test_backends() {
  // As servers/radosgw.sh has made them.
  ::setenv("AWS_ACCESS_KEY_ID", "tqcache-access", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", "tqcache-secret", 1);
  // It looks before it puts, so that two may find nothing there.
  TestBackend without_conditions = s3("S3WithoutConditions", "&conditional=off");
  without_conditions.one_writer_stores = false;
  without_conditions.more_than_one_answer = 20;  // it lists as the other does
  return {redis("Redis", "TQCACHE_TEST_REDIS"), redis("RedisCluster", "TQCACHE_TEST_REDIS_CLUSTER"),
          s3("S3", ""), without_conditions};
}

}  // namespace tqcache::test
