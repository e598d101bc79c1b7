#pragma once
// tests/fuzz/fake_network.h: servers that are nothing but the bytes they send.
//
// The functions of the C library that make connections are replaced (fake_network.cpp). No byte
// leaves the process, and nothing waits: a server sends all its bytes at once and then closes its
// side.

#include <string>
#include <vector>

#include "tqcache/bytes.h"

namespace tqcache::fuzz {

// The border between the parts of an input.
inline constexpr std::byte kBorder{0x1e};

// The parts of an input, at most `most`; the last one has all that is left.
std::vector<ByteView> parts_of(ByteView input, std::size_t most);

// What connect() does while this exists: the first connection gets the first stream, and so on.
// Later ones are refused. One at a time.
class FakeNetwork {
 public:
  // The streams have to outlive it.
  explicit FakeNetwork(std::vector<ByteView> streams);
  ~FakeNetwork();
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;

  struct Connection {
    std::string address;  // "127.0.0.1:6379"
    std::string sent;     // by the client
  };
  // All so far.
  std::vector<Connection> connections() const;
};

}  // namespace tqcache::fuzz
