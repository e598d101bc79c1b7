#include "tqcache/store/blobs/blob_header.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "tqcache/base/result.h"
#include "tqcache/format/checksum_bytes.h"
#include "tqcache/format/container_format.h"

namespace tqcache::store {
namespace {

constexpr std::size_t kChecksumAt = kBlobHeaderBytes - sizeof(std::uint64_t);

// Magic and checksum stand where they are in every version to come.
Result<void> check_whole(ByteView blob) {
  const std::size_t n_magic = std::min(blob.size(), kBlobMagic.size());
  if (!std::ranges::equal(blob.first(n_magic), ByteView(kBlobMagic).first(n_magic))) {
    return corrupt("not a blob of a store");
  }
  if (blob.size() < kBlobHeaderBytes) {
    return Error{ErrorCode::kTruncated, "the blob ends after " + std::to_string(blob.size()) +
                                            " bytes, within the header"};
  }
  const auto stored = number_at<std::uint64_t>(blob, kChecksumAt);
  if (stored != xxh3_64(blob.first(kChecksumAt))) return corrupt("header: checksum mismatch");
  return {};
}

Result<void> check_version(std::uint32_t version) {
  if (version == kBlobVersion) return {};
  const std::string what = "version " + std::to_string(version);
  if (version < kBlobVersion) return corrupt(what);
  return Error{ErrorCode::kUnsupported,
               what + " is newer than version " + std::to_string(kBlobVersion)};
}

Result<void> check_sizes(const BlobHeader& header, std::uint64_t size) {
  if (size < header.blob_bytes) {
    return Error{ErrorCode::kTruncated, "the blob ends after " + std::to_string(size) + " of " +
                                            std::to_string(header.blob_bytes) + " bytes"};
  }
  if (size > header.blob_bytes) {
    return corrupt(std::to_string(size - header.blob_bytes) + " bytes behind the end");
  }
  if (header.description_bytes > kMaxDescriptionBytes) {
    return Error{ErrorCode::kTooLarge,
                 "a description of " + std::to_string(header.description_bytes) + " bytes"};
  }
  if (sections_at(header) > size) return corrupt("the description reaches behind the end");
  return {};
}

}  // namespace

std::uint64_t sections_at(const BlobHeader& header) {
  return format::align_section(kBlobHeaderBytes + header.description_bytes);
}

Bytes encode_blob_header(const BlobHeader& header) {
  ByteWriter out;
  out.append(kBlobMagic);
  out.write(kBlobVersion);
  out.write(static_cast<std::uint32_t>(header.kind) + 1);
  out.write(header.blob_bytes);
  out.write(header.description_bytes);
  out.append(format::to_bytes(header.description_checksum));
  out.write(std::uint64_t{0});
  assert(out.bytes().size() == kChecksumAt);
  out.write(xxh3_64(out.bytes()));
  return std::move(out).take();
}

Result<BlobHeader> read_blob_header(ByteView blob) {
  TQC_TRY(check_whole(blob));
  TQC_TRY(check_version(number_at<std::uint32_t>(blob, 8)));
  const auto kind = number_at<std::uint32_t>(blob, 12);
  if (kind == 0 || kind > kBlobKinds) return corrupt("kind " + std::to_string(kind));
  if (number_at<std::uint64_t>(blob, 48) != 0) return corrupt("header: reserved bytes");
  BlobHeader header;
  header.kind = static_cast<BlobKind>(kind - 1);
  header.blob_bytes = number_at<std::uint64_t>(blob, 16);
  header.description_bytes = number_at<std::uint64_t>(blob, 24);
  header.description_checksum =
      format::checksum_from_bytes(blob.subspan(32).first<sizeof(format::ChecksumBytes)>());
  TQC_TRY(check_sizes(header, blob.size()));
  return header;
}

}  // namespace tqcache::store
