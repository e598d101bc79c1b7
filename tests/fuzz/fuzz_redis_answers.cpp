// Any bytes as the answers of Redis servers to one call of a backend. The first byte chooses the
// call, the second how the store is named; each part of the rest is what one connection receives.
// So the parser, MOVED and ASK, CLUSTER SLOTS and connections that break are reached.

#include <string>

#include "fuzz/fake_network.h"
#include "fuzz/fuzz.h"
#include "fuzz/store_calls.h"

namespace tqcache {
namespace {

using fuzz::require;

constexpr std::string_view kSeed = "127.0.0.1:6379";
constexpr std::size_t kMostConnections = 6;

// A server that has sent no array has sent no map of its cluster. Then nobody but itself may get
// the password.
void check_password(const fuzz::FakeNetwork& network, ByteView answers) {
  if (std::ranges::find(answers, std::byte{'*'}) != answers.end()) return;
  for (const auto& connection : network.connections()) {
    require(connection.address == kSeed || connection.sent.find(fuzz::kSecret) == std::string::npos,
            "the password goes to the seed and its cluster only");
  }
}

bool has_password(unsigned choice) { return (choice & 1) != 0; }

std::string url(unsigned choice) {
  std::string login;
  if (has_password(choice)) {
    login = ((choice & 2) != 0 ? "user:" : ":") + std::string(fuzz::kSecret) + "@";
  }
  std::string text = "redis://" + login + std::string(kSeed);
  if ((choice & 4) != 0) text += "/3";
  if ((choice & 8) != 0) text += "?prefix=some.where/&ttl=60";
  return text;
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tqcache;
  fuzz::Input input(fuzz::view_of(data, size));
  const unsigned choice = input.take<std::uint8_t>();
  const unsigned login = input.take<std::uint8_t>();
  const std::string name = url(login);
  const ByteView answers = input.rest();
  const fuzz::FakeNetwork network(fuzz::parts_of(answers, kMostConnections));
  const auto backend =
      fuzz::must(store::open_backend(name, fuzz::small_limits()), "the URL is a good one");
  fuzz::call(*backend, choice, has_password(login) ? fuzz::kSecret : "");
  check_password(network, answers);
  return 0;
}
