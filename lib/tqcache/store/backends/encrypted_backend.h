#pragma once
// store/backends/encrypted_backend.h: a backend whose values are encrypted before another backend
// gets them. Safe for untrusted input.
//
// Each value has a key of its own, derived from the master key and 32 random bytes, and is bound to
// the key that it is stored under. A value that is not encrypted, whose key is not given, or that
// does not authenticate is replaced by a few bytes that decode_blob() refuses with the reason. So
// nothing unauthenticated is ever used.
//
// Spec: docs/reference/store.md, "Encryption".

#include <memory>
#include <string>

#include "tqcache/access.h"
#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/store.h"

namespace tqcache::store {

// Requires: !keys.empty().
std::unique_ptr<Backend> encrypted_backend(std::unique_ptr<Backend> inner, const KeyRing& keys,
                                           const BackendOptions& options);

// The encrypted value of `key`. Errors: kIo (no random numbers), kTooLarge.
Result<Bytes> seal_value(const KeyRing& keys, std::string_view key, ByteView value);

// The error for a header that is not of version 1: of a sealed value, or of what stands for one
// that cannot be used. Requires: a header with the right magic and checksum.
Error sealed_value_error(ByteView header);

// The value that stands under this key of a store whose list() looks at every key. It is not one of
// a prompt's blobs, and programs before it leave it alone.
inline constexpr std::string_view kKeyCheck = "k/check";

enum class BeforePut { kNo, kYes };

// Whether the keys of this backend, or none, are those of the store: with another key, prompts have
// other names, so that a store looks empty, and what is put hides from those who have its key.
// Looks at the parameters of one prompt, which are small. Where list() looks at every key, reads
// kKeyCheck instead; if that is missing or damaged, lists, and with kYes puts it, once for a store.
// Errors: kNoKey if the key is not given, or if values are plain and a key is given; the message
//         begins with the blob. Those of the backend: with kYes only kUnsupported and kInterrupted,
//         because the put that follows tells the others.
Result<void> check_store_key(Backend& backend, BeforePut before_put);

}  // namespace tqcache::store
