#pragma once
// tqcache/access.h: what a caller gives to open files and stores: secret keys, and a limit of
// memory.
//
//   TQC_TRY_ASSIGN(const auto keys, tqcache::KeyRing::read_file("cache.key"));
//   TQC_TRY(tqcache::format::write_cache_file(cache, "book.tqkv", {.keys = keys}));
//   const auto memory = tqcache::MemoryBudget::of_user(std::uint64_t{8} << 30);
//
// A key is 32 random bytes, as from `openssl rand -hex 32`. It never encrypts anything itself:
// every file gets keys of its own, which are derived from it. A file names its key by the key's id,
// which reveals nothing of the key.
//
// Spec: docs/reference/format.md §15.

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
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

// The limit of memory for values of files and stores. Small files can describe large values, so
// nothing large is allocated before it has been compared with the model, with the bytes that are
// stored, or with this limit.
class MemoryBudget {
 public:
  MemoryBudget() : MemoryBudget(of_machine()) {}

  // Three quarters of the memory of this machine, of its control group or of the process's limit,
  // whichever is least: as they were when it was first asked for.
  static MemoryBudget of_machine();
  // A limit that the user has set. It also allows values that compress extremely well.
  static MemoryBudget of_user(std::uint64_t bytes) { return {bytes, true}; }
  // The same rules with at most this many bytes.
  MemoryBudget at_most(std::uint64_t bytes) const;

  std::uint64_t bytes() const { return bytes_; }

  // The limit for values that are stored in `stored` bytes: 64 times as much, but at least `least`.
  // Values of real caches compress to a half or a third; zeros compress to a ten-thousandth.
  std::uint64_t limit(std::uint64_t stored, std::uint64_t least) const;

  // Errors: kTooLarge; the message begins with `what` and names the limit.
  Result<void> check(std::uint64_t bytes, std::string_view what) const;
  Result<void> check(std::uint64_t bytes, std::string_view what, std::uint64_t stored,
                     std::uint64_t least) const;
  // For values that are not in memory all at once: only their proportion to what is stored.
  Result<void> check_proportion(std::uint64_t bytes, std::string_view what, std::uint64_t stored,
                                std::uint64_t least) const;

 private:
  MemoryBudget(std::uint64_t bytes, bool is_of_user) : bytes_(bytes), is_of_user_(is_of_user) {}

  std::uint64_t bytes_;
  bool is_of_user_;
};

// What a section and a whole file may take however few bytes they are stored in. Each thread may
// hold a section and a second buffer for it.
inline constexpr std::uint64_t kSmallSectionBytes = std::uint64_t{16} << 20;
inline constexpr std::uint64_t kSmallFileBytes = std::uint64_t{256} << 20;

}  // namespace tqcache
