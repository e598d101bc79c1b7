#pragma once
// tqcache/keys.h: secret keys, with which .tqkv files and stores are encrypted.
//
//   TQC_TRY_ASSIGN(const auto keys, tqcache::KeyRing::read_file("cache.key"));
//   TQC_TRY(tqcache::format::write_cache_file(cache, "book.tqkv", {.keys = keys}));
//
// A key is 32 random bytes, as from `openssl rand -hex 32`. It never encrypts anything itself:
// every file gets keys of its own, which are derived from it. A file names its key by the key's id,
// which reveals nothing of the key.
//
// Spec: docs/reference/format.md §15.

#include <array>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"

namespace tqcache {

// Identifies a key in messages, and in the files that are encrypted with it.
using KeyId = std::array<std::byte, 16>;

class SecretKey;  // tqcache/base/cipher.h

// Keys by their ids. The first one encrypts what is new; each of them decrypts what names it. So a
// ring of a new key before an old one rotates keys. Copies share their keys, whose memory is
// overwritten when the last copy ends.
//
// Threads: any number may use one at once.
class KeyRing {
 public:
  KeyRing() = default;  // no keys: nothing is encrypted

  // Reads a key file: exactly 32 bytes are one key. Otherwise each line is one, in 64 hexadecimal
  // digits; empty lines are ignored.
  // Errors: kNotFound, kIo; kInvalidArgument (others than its owner may read the file, no keys,
  //         too many keys, another text). No message contains a part of the file.
  static Result<KeyRing> read_file(const std::filesystem::path& path);

  // The keys of a key file with these bytes. Errors: kInvalidArgument.
  static Result<KeyRing> parse(ByteView file);

  bool empty() const { return keys_.empty(); }
  std::vector<KeyId> ids() const;

  // A ring of the key with this id; empty if there is none.
  KeyRing only(const KeyId& id) const;
  // These keys, then `others`.
  KeyRing with(const KeyRing& others) const;

  // Null if there is none.
  std::shared_ptr<const SecretKey> find(const KeyId& id) const;
  // The key that encrypts. Requires: !empty().
  const KeyId& first_id() const;

 private:
  struct Key {
    KeyId id;
    std::shared_ptr<const SecretKey> secret;
  };
  std::vector<Key> keys_;
};

}  // namespace tqcache
