#pragma once
// store/blobs/blob_write.h: the bytes of a blob, of content that keeps to the rules.
//
// Spec: docs/reference/store.md, "Blobs".

#include <string_view>

#include "tqcache/base/bytes.h"
#include "tqcache/base/result.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_memory.h"

namespace tqcache::store {

// As encode_blob(), without a look at what it is given.
// Requires: check_content(key, content) (blob_rules.h); otherwise nobody will read it.
// Errors:   kTooLarge.
Result<Bytes> make_blob(std::string_view key, const Content& content);
// The same in memory for large ones.
Result<SharedBytes> make_blob(std::string_view key, const Content& content, BlobMemory& memory);

}  // namespace tqcache::store
