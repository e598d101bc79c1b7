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

class Calls {
 public:
  Calls(store::Backend& backend, std::string_view password)
      : backend_(backend), password_(password) {}

  void run(unsigned choice);

 private:
  template <class T>
  void check(const Result<T>& result) const {
    if (!result) check_error(result.error(), password_);
  }
  void get_all();
  void put_all();
  void list(const std::string& prefix);

  store::Backend& backend_;
  const std::string_view password_;
};

void Calls::get_all() {
  std::size_t n = 0;
  const auto sink = [&](std::size_t i, std::optional<ByteView> value) -> Result<void> {
    require(i == n++, "values come in the order of their keys");
    require(!value || value->size() <= kMostValueBytes, "a value is within the limit");
    return {};
  };
  const Result<void> done = backend_.get(kKeys, sink);
  require(!done || n == kKeys.size(), "every key has its answer");
  check(done);
}

void Calls::put_all() {
  static const Bytes value(100, std::byte{7});
  std::vector<store::Blob> blobs;
  for (const std::string& key : kKeys) blobs.push_back({key, value});
  const auto outcomes = backend_.put(blobs);
  require(!outcomes || outcomes->size() == blobs.size(), "every blob has its outcome");
  check(outcomes);
}

void Calls::list(const std::string& prefix) {
  const auto sink = [&](const store::Entry& entry) -> Result<void> {
    require(store::check_key(entry.key).ok(), "what is listed is a key");
    require(entry.key.starts_with(prefix), "and has the prefix");
    require(!entry.idle || entry.idle->count() >= 0, "and no negative age");
    return {};
  };
  check(backend_.list(prefix, sink));
}

void Calls::run(unsigned choice) {
  const std::string& key = kKeys.front();
  static const Bytes value(100, std::byte{7});
  switch (choice % 10) {
    case 0:
      return check(backend_.get(key));
    case 1:
      return get_all();
    case 2:
      return check(backend_.put(key, value));
    case 3:
      return put_all();
    case 4: {
      const auto found = backend_.exists(kKeys);
      require(!found || found->size() == kKeys.size(), "every key has its answer");
      return check(found);
    }
    case 5:
      return check(backend_.remove(key));
    case 6:
      return check(backend_.remove_if_same(key, value));
    case 7:
      return list("");
    case 8:
      return list("b/01");
    default:
      return check(backend_.touch(kKeys));
  }
}

}  // namespace

store::BackendOptions small_limits() {
  store::BackendOptions options;
  options.connect_timeout = std::chrono::milliseconds(1000);
  options.idle_timeout = std::chrono::milliseconds(50);  // so that S3 is not asked again
  options.max_value_bytes = kMostValueBytes;
  options.max_listed_keys = 64;
  options.max_list_pages = 4;
  options.credentials = {.s3_access_key = "AKIDEXAMPLE", .s3_secret_key = std::string(kSecret)};
  return options;
}

void check_error(const Error& error, std::string_view password) {
  require(!error.message.empty(), "an error has a message");
  require(password.empty() || error.message.find(password) == std::string::npos,
          "no message has the password");
  require(std::ranges::all_of(error.message, [](char c) { return c >= ' ' && c <= '~'; }),
          "a message is printable");
}

void call(store::Backend& backend, unsigned choice, std::string_view password) {
  Calls(backend, password).run(choice);
}

}  // namespace tqcache::fuzz
