// Any bytes as answers of an S3 service: as a list of objects, an error or a date, as HTTP to one
// call of a backend, and as part of a URL with a password. The first byte chooses.

#include <cstdlib>
#include <limits>
#include <string>

#include "fuzz/fake_network.h"
#include "fuzz/fuzz.h"
#include "fuzz/store_calls.h"
#include "tqcache/store/backends/s3_listing.h"

namespace tqcache {
namespace {

using fuzz::require;

constexpr std::size_t kMostConnections = 6;

std::string text_of(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void read_xml(ByteView xml) {
  const std::string_view secrets[] = {fuzz::kSecret};
  if (const auto listing = store::parse_s3_listing(xml, secrets)) {
    require(listing->objects.size() <= xml.size(), "an object takes bytes");
    for (const store::S3Object& object : listing->objects) {
      require(object.name.size() <= xml.size(), "a name is in the list");
    }
  } else {
    fuzz::check_error(listing.error());
  }
  require(store::parse_s3_error(xml).size() <= xml.size(), "an error's name is in the answer");
}

void read_time(const std::string& text) {
  const auto time = store::parse_s3_time(text);
  if (!time) return;
  constexpr std::int64_t kYear = 366 * 86400;
  require(*time > -2000 * kYear && *time < 8000 * kYear, "a time of four digits for the year");
}

void call_backend(unsigned choice, ByteView answers) {
  const fuzz::FakeNetwork network(fuzz::parts_of(answers, kMostConnections));
  const char* const url = choice % 2 == 0
                              ? "s3://bucket/some/where?endpoint=http://127.0.0.1:9000"
                              : "s3://bucket?endpoint=http://127.0.0.1:9000&conditional=off";
  const auto backend =
      fuzz::must(store::open_backend(url, fuzz::small_limits()), "the URL is a good one");
  fuzz::call(*backend, choice / 2);
}

// The bytes stand before and after the password. What is before the last '@' is never shown.
void open_url(bool is_redis, ByteView bytes) {
  const std::string text = text_of(bytes);
  const std::string scheme = is_redis ? "redis://u:" : "s3://bucket?endpoint=http://u:";
  const std::string before = text.substr(0, text.size() / 2);
  const std::string after = text.substr(text.size() / 2);
  const std::string url = scheme + before + std::string(fuzz::kSecret) + after + "@127.0.0.1";
  const auto backend = store::open_backend(url, fuzz::small_limits());
  if (!backend) return fuzz::check_error(backend.error());
  require((*backend)->name().find(fuzz::kSecret) == std::string::npos, "no name has the password");
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tqcache;
  fuzz::Input input(fuzz::view_of(data, size));
  const unsigned choice = input.take<std::uint8_t>();
  if (choice < 64) {
    read_xml(input.rest());
  } else if (choice < 96) {
    read_time(text_of(input.rest()));
  } else if (choice < 128) {
    open_url(choice % 2 == 0, input.rest());
  } else {
    call_backend(choice - 128, input.rest());
  }
  return 0;
}
