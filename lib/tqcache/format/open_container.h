#pragma once
// format/open_container.h: header and manifest of a .tqkv file, read and checked against the rules.
// Safe for untrusted input.
//
// Spec: docs/reference/format.md §2.

#include <memory>

#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/format/encryption.h"
#include "tqcache/format/header.h"
#include "tqcache/tqkv.h"

namespace tqcache::format {

struct OpenContainer {
  CacheFileInfo info;
  Header header;
  std::shared_ptr<const FileCipher> cipher;  // null: a plain file
};

// Reads everything except the sections. The section table is valid afterwards.
//
// Errors: as read_cache_info.
Result<OpenContainer> open_container(const ByteSource& source, const Access& access = {});

// The metadata of a file with this header and manifest.
CacheFileInfo make_info(const Header& header, Manifest manifest);

// Checks that the content digest matches the manifest.
// Errors: kCorrupt.
Result<void> check_content_name(const Manifest& manifest);

}  // namespace tqcache::format
