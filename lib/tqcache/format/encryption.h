#pragma once
// format/encryption.h: encryption of the sections and the manifest of a .tqkv file. Safe for
// untrusted input.
//
// Each write, that of a new file and each append, draws 32 random bytes, its salt, before it
// encrypts anything. Its key is derived from the master key, the file's id and this salt, and its
// messages are numbered, so no nonce is used twice with one key: not when an append is interrupted
// and repeated, and not when two copies of a file are appended to.
//
// Spec: docs/reference/format.md §15.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tqcache/access.h"
#include "tqcache/base/cipher.h"
#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/format/header.h"
#include "tqcache/tqkv.h"

namespace tqcache::format {

// The fields of the clear bytes before an encrypted manifest: what is needed to find the key, and
// the tag of the manifest.
struct Envelope {
  KeyId key_id{};
  Salt file_id{};
  Salt write{};
  Tag tag{};
};

// Errors: kCorrupt, kUnsupported (another scheme).
Result<Envelope> parse_envelope(ByteView manifest);

// The keys of one file: of the write in progress, and of the earlier ones. Threads: any number may
// use one at once.
class FileCipher {
 public:
  // For a new file: the first key of the ring, and a random file id. Requires: !keys.empty().
  // Errors:  kIo (no random numbers).
  static Result<std::shared_ptr<const FileCipher>> make(const KeyRing& keys);

  // For a file with this envelope, of which only the newest write is known.
  // Errors: kNoKey: the ring does not have its key.
  static Result<std::shared_ptr<const FileCipher>> find(const KeyRing& keys,
                                                        const Envelope& envelope);

  // The same file with all its writes, whose salts the manifest lists.
  std::shared_ptr<const FileCipher> with_writes(const std::vector<Salt>& writes) const;

  // For an append to the file: the given writes, then a new one with a random salt.
  // Errors: kIo (no random numbers).
  Result<std::shared_ptr<const FileCipher>> for_append(std::vector<Salt> kept_writes) const;

  const Encryption& description() const { return description_; }

  // Encrypts the stored bytes of a section with the newest write, fills in its seal and replaces
  // its checksum. `number` differs for all sections of a write. `out` may be `stored` itself.
  //
  // Requires: at most kMaxSealedBytes.
  void seal_section(std::uint32_t number, ByteView stored, std::span<std::byte> out,
                    SectionInfo& section) const;

  // Decrypts the stored bytes of a section in place.
  // Errors: kCorrupt, and the bytes are zeros then.
  Result<void> unseal_section(const SectionInfo& section, std::span<std::byte> stored) const;

  // The envelope and the encrypted manifest. `slot` is the header slot that will refer to it.
  Bytes seal_manifest(const HeaderSlot& slot, ByteView manifest) const;

  // The manifest of these bytes. Requires: the cipher was found by their envelope.
  // Errors: kCorrupt.
  Result<AlignedBytes> unseal_manifest(const HeaderSlot& slot, ByteView sealed) const;

 private:
  FileCipher(std::shared_ptr<const SecretKey> master, Encryption description);

  std::shared_ptr<const SecretKey> master_;
  Encryption description_;
  std::vector<SecretKey> keys_;  // of the writes
};

// Drops the writes that no section refers to, and renumbers the others. The sections
// `new_sections`, in ascending order, are not yet written and refer to none. Returns the writes
// that stay.
std::vector<Salt> prune_writes(const std::vector<Salt>& writes,
                               const std::vector<std::size_t>& new_sections,
                               std::vector<SectionInfo>& sections);

}  // namespace tqcache::format
