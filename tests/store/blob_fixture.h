#pragma once
// tests/store/blob_fixture.h: blobs to and from bytes, and blobs changed so that all digests fit.

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "store/blob_samples.h"
#include "support/cache_builder.h"
#include "tqcache/format/checksum_bytes.h"
#include "tqcache/store/blobs/blob_format.h"

namespace tqcache::test {

inline SharedBytes shared(ByteView bytes) {
  return SharedBytes(AlignedBytes(bytes.begin(), bytes.end()));
}

inline Result<store::Content> decode(const std::string& key, ByteView blob) {
  return store::decode_blob(key, shared(blob));
}

template <class T>
T decode_as(const std::string& key, ByteView blob) {
  return std::get<T>(must(decode(key, blob)));
}

template <class T>
void put_number(Bytes& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

// Makes the header's digests fit what they cover.
inline void reseal_blob(Bytes& blob) {
  const auto n = number_at<std::uint64_t>(blob, 24);
  if (n <= blob.size() - store::kBlobHeaderBytes) {
    const auto checksum = format::to_bytes(
        xxh3_128(ByteView(blob).subspan(store::kBlobHeaderBytes, static_cast<std::size_t>(n))));
    std::memcpy(blob.data() + 32, checksum.data(), checksum.size());
  }
  put_number(blob, 56, xxh3_64(ByteView(blob).first(56)));
}

inline const SampleBlob& sample(std::string_view name) {
  static const std::vector<SampleBlob> all = sample_blobs();
  for (const SampleBlob& each : all) {
    if (each.name == name) return each;
  }
  throw std::runtime_error("no such sample");
}

inline Bytes sample_bytes(std::string_view name) {
  return must(store::encode_blob(sample(name).key, sample(name).content));
}

}  // namespace tqcache::test
