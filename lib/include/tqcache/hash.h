#pragma once
// tqcache/hash.h: XXH3 and SHA-256.
//
//   std::string name = tqcache::to_hex(tqcache::sha256(bytes));
//
// XXH3-128 detects damage, at memory speed; SHA-256 identifies content and models. Neither is a
// signature: anyone who can write a file can also write its digests.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tqcache/bytes.h"

namespace tqcache {

struct Checksum128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const Checksum128&) const = default;
};

std::uint64_t xxh3_64(ByteView bytes);
Checksum128 xxh3_128(ByteView bytes);

using Sha256 = std::array<std::byte, 32>;

// Incremental SHA-256.
class Sha256Hasher {
 public:
  Sha256Hasher();
  ~Sha256Hasher();
  Sha256Hasher(Sha256Hasher&&) noexcept;
  Sha256Hasher& operator=(Sha256Hasher&&) noexcept;

  void update(ByteView bytes);
  // Requires: called once, and no call after it.
  Sha256 finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Sha256 sha256(ByteView bytes);

// Lower-case hexadecimal, most significant byte first.
std::string to_hex(ByteView bytes);
std::string to_hex(const Checksum128& checksum);

}  // namespace tqcache
