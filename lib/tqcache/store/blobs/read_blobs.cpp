#include "tqcache/store/blobs/read_blobs.h"

namespace tqcache::store {

Result<void> read_blobs(Backend& backend, std::span<const std::string> keys, const BlobSink& sink) {
  return backend.get(keys, [&](std::size_t i, std::optional<ByteView> value) -> Result<void> {
    if (!value) return sink(i, std::nullopt);
    return sink(i, ReadBlob{*value, decode_blob(keys[i], SharedBytes(nullptr, *value))});
  });
}

}  // namespace tqcache::store
