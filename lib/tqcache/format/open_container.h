#pragma once
// format/open_container.h: header and manifest of a .tqkv file, read and held against the rules.
// Safe for untrusted input.
//
// Spec: docs/reference/format.md §2.

#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/format/header.h"
#include "tqcache/tqkv.h"

namespace tqcache::format {

struct OpenContainer {
  CacheFileInfo info;
  Header header;
};

// Reads everything but the sections, whose table can be relied on afterwards.
//
// Errors: as read_cache_info.
Result<OpenContainer> open_container(const ByteSource& source);

// What a file of this header and manifest says of itself.
CacheFileInfo make_info(const Header& header, Manifest manifest);

// Whether the content name is the one that the manifest makes.
// Errors: kCorrupt.
Result<void> check_content_name(const Manifest& manifest);

}  // namespace tqcache::format
