#pragma once
// What has to hold after processes were killed in the middle of their work.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "store/writer.h"
#include "tqcache/store.h"

namespace tqcache::test {

// In all; TQCACHE_STORE_TEST_KILLS=1000 makes it a long test.
inline int n_kills() {
  const char* const asked = std::getenv("TQCACHE_STORE_TEST_KILLS");
  return asked == nullptr ? 20 : std::atoi(asked);
}

// A moment that nobody has chosen: some acknowledged puts from now, and a little later.
inline void wait_for_any_moment(Writer& writer, std::mt19937& random) {
  writer.wait_for(static_cast<int>(random() % 6));
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
}

inline std::unique_ptr<store::Backend> backend_at(const std::string& url) {
  auto opened = store::open_backend(url, {.credentials = store::credentials_of_environment()});
  if (!opened) throw std::runtime_error(opened.error().message);
  return std::move(opened).value();
}

// Every key that the store shows, each with the value that was put under it or, as somebody may
// just be putting it, none.
inline std::set<std::string> expect_only_whole_values(store::Backend& store) {
  std::set<std::string> keys;
  const Result<void> listed = store.list("", [&](const store::Entry& entry) -> Result<void> {
    keys.insert(entry.key);
    return {};
  });
  EXPECT_TRUE(listed.ok()) << listed.error().message;
  for (const std::string& key : keys) {
    const auto value = store.get(key);
    EXPECT_TRUE(value.ok()) << value.error().message;
    EXPECT_TRUE(!value || !value->has_value() || **value == NumberedBlobs::value(key)) << key;
  }
  return keys;
}

// The first `n_told` blobs are there and listed, and what else there is, is whole.
// Takes all away afterwards. What the killed process had sent may still come: a server reads it
// when it likes.
inline void expect_what_was_told(const std::string& url, const NumberedBlobs& blobs, int n_told) {
  const std::unique_ptr<store::Backend> store = backend_at(url);
  const std::set<std::string> keys = expect_only_whole_values(*store);
  for (int i = 0; i < n_told; ++i) {
    const std::string key = blobs.key(i);
    EXPECT_TRUE(keys.contains(key)) << key;
    const auto value = store->get(key);
    ASSERT_TRUE(value.ok()) << value.error().message;
    EXPECT_TRUE(value->has_value() && **value == NumberedBlobs::value(key)) << key;
  }
  for (const std::string& key : keys) EXPECT_TRUE(store->remove(key).ok()) << key;
}

}  // namespace tqcache::test
