#pragma once
// format/content_name.h: the name of a cache's content: equal for equal content, however a file
// compresses it and whatever program wrote it.
//
// Spec: docs/reference/format.md §7.

#include "tqcache/format/manifest.h"
#include "tqcache/hash.h"

namespace tqcache::format {

// SHA-256 over everything in the manifest that is content; the values count by the SHA-256 of
// each section before compression.
Sha256 content_name(const Manifest& manifest);
Sha256 content_name(const Manifest& manifest, WindowTokens window_tokens);

}  // namespace tqcache::format
