#pragma once
// base/cipher.h: AES-256-GCM, HKDF-SHA256 and random bytes.
//
// Spec: docs/reference/format.md §15.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tqcache/bytes.h"
#include "tqcache/error.h"

namespace tqcache {

// 32 secret bytes, overwritten when the object ends. It can be moved, but not copied.
class SecretKey {
 public:
  static constexpr std::size_t kBytes = 32;

  SecretKey() = default;
  // Requires: kBytes bytes.
  explicit SecretKey(ByteView bytes);
  SecretKey(SecretKey&& other) noexcept;
  SecretKey& operator=(SecretKey&& other) noexcept;
  ~SecretKey();

  ByteView bytes() const { return bytes_; }

 private:
  friend SecretKey derive_key(const SecretKey& secret, ByteView salt, std::string_view label);
  void wipe();
  std::array<std::byte, kBytes> bytes_{};
};

// Overwrites memory that held a secret; the compiler cannot leave it out.
void wipe_bytes(std::span<std::byte> bytes);

// HKDF-SHA256 (RFC 5869) with the label as info. Keys with different salts or labels reveal nothing
// about each other or about the secret.
SecretKey derive_key(const SecretKey& secret, ByteView salt, std::string_view label);

// Fills it with random bytes that nobody can predict. Errors: kIo.
Result<void> fill_random(std::span<std::byte> bytes);

using Nonce = std::array<std::byte, 12>;
using Tag = std::array<std::byte, 16>;

// The longest message of GCM, 2^36 - 32 bytes.
inline constexpr std::uint64_t kMaxSealedBytes = (std::uint64_t{1} << 36) - 32;

// Encrypts `plain` into `out`, of the same size, which may be the same memory, and returns the tag
// over it and over `associated`.
//
// Requires: no other message was ever encrypted with this key and nonce; at most kMaxSealedBytes.
Tag seal(const SecretKey& key, const Nonce& nonce, ByteView associated, ByteView plain,
         std::span<std::byte> out);

// Decrypts in place. False if the tag does not match; the bytes are then overwritten with zeros, so
// that nothing unauthenticated is used.
[[nodiscard]] bool unseal(const SecretKey& key, const Nonce& nonce, ByteView associated,
                          const Tag& tag, std::span<std::byte> bytes);

}  // namespace tqcache
