#pragma once
// store/backends/s3_listing.h: parsers of the XML answers of S3: lists of objects, and errors.
//
// Safe for untrusted input: read by expat, without document types or entities of its own, and with
// bounds for depth and lengths.
//
// Only for the sources of store. Source: Amazon S3 API reference, ListObjectsV2 and "Error
// responses".

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"

namespace tqcache::store {

struct S3Object {
  std::string name;
  std::uint64_t bytes = 0;
  std::int64_t modified = 0;  // seconds since 1970
};

struct S3Listing {
  std::vector<S3Object> objects;
  std::string next;  // the continuation token; empty after the last page
};

// Errors: kCorrupt, with stars in the place of secrets.
Result<S3Listing> parse_s3_listing(ByteView xml, std::span<const std::string_view> secrets = {});

// "NoSuchBucket", as the service wrote it; empty if the answer is not an error document.
std::string parse_s3_error(ByteView xml);

// "2026-11-22T14:55:12.000Z", as S3 writes it, in seconds since 1970; nullopt for anything else.
std::optional<std::int64_t> parse_s3_time(const std::string& text);

}  // namespace tqcache::store
