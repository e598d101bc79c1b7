#pragma once
// format/content_name.h: the content digest of a cache: equal for equal content, whatever the
// compression and the program that wrote the file.
//
// Spec: docs/reference/format.md §7.

#include "tqcache/format/manifest.h"
#include "tqcache/hash.h"

namespace tqcache::format {

// SHA-256 over all content in the manifest. Values are represented by the SHA-256 of each section
// before compression.
Sha256 content_name(const Manifest& manifest);
Sha256 content_name(const Manifest& manifest, WindowTokens window_tokens);

}  // namespace tqcache::format
