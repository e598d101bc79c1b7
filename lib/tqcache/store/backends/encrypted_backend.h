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

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/keys.h"
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

// For a command that found nothing: with another key, prompts have other names. Looks at the
// parameters of one prompt, which are small. In Redis it may have to look at every key.
// Errors: kNoKey if their key is not given, or if they are plain and a key is given; the message
//         begins with the blob. Those of the backend.
Result<void> check_store_key(Backend& backend);

}  // namespace tqcache::store
