#include "fuzz/store_calls.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/fuzz.h"

namespace tqcache::fuzz {
namespace {

const std::vector<std::string> kKeys = {"b/0123/4567", "p/89ab", "n/cd.ef-_x"};

template <class T>
void check(const Result<T>& result) {
  if (!result) check_error(result.error());
}

void get_all(store::Backend& backend) {
  std::size_t n = 0;
  const auto sink = [&](std::size_t i, std::optional<ByteView> value) -> Result<void> {
    require(i == n++, "values come in the order of their keys");
    require(!value || value->size() <= kMostValueBytes, "a value is within the limit");
    return {};
  };
  const Result<void> done = backend.get(kKeys, sink);
  require(!done || n == kKeys.size(), "every key has its answer");
  check(done);
}

void put_all(store::Backend& backend) {
  static const Bytes value(100, std::byte{7});
  std::vector<store::Blob> blobs;
  for (const std::string& key : kKeys) blobs.push_back({key, value});
  const auto outcomes = backend.put(blobs);
  require(!outcomes || outcomes->size() == blobs.size(), "every blob has its outcome");
  check(outcomes);
}

void list(store::Backend& backend, const std::string& prefix) {
  const auto sink = [&](const store::Entry& entry) -> Result<void> {
    require(store::check_key(entry.key).ok(), "what is listed is a key");
    require(entry.key.starts_with(prefix), "and has the prefix");
    require(!entry.idle || entry.idle->count() >= 0, "and no negative age");
    return {};
  };
  check(backend.list(prefix, sink));
}

}  // namespace

store::BackendOptions small_limits() {
  store::BackendOptions options;
  options.connect_timeout = std::chrono::milliseconds(1000);
  options.idle_timeout = std::chrono::milliseconds(50);  // so that S3 is not asked again
  options.max_value_bytes = kMostValueBytes;
  options.max_listed_keys = 64;
  options.max_list_pages = 4;
  return options;
}

void check_error(const Error& error) {
  require(!error.message.empty(), "an error has a message");
  require(error.message.find(kSecret) == std::string::npos, "no message has the secret");
  require(std::ranges::all_of(error.message, [](char c) { return c >= ' ' && c <= '~'; }),
          "a message is printable");
}

void call(store::Backend& backend, unsigned choice) {
  const std::string& key = kKeys.front();
  static const Bytes value(100, std::byte{7});
  switch (choice % 10) {
    case 0:
      return check(backend.get(key));
    case 1:
      return get_all(backend);
    case 2:
      return check(backend.put(key, value));
    case 3:
      return put_all(backend);
    case 4: {
      const auto found = backend.exists(kKeys);
      require(!found || found->size() == kKeys.size(), "every key has its answer");
      return check(found);
    }
    case 5:
      return check(backend.remove(key));
    case 6:
      return check(backend.remove_if_same(key, value));
    case 7:
      return list(backend, "");
    case 8:
      return list(backend, "b/01");
    default:
      return check(backend.touch(kKeys));
  }
}

}  // namespace tqcache::fuzz
