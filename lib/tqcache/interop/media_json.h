#pragma once
// interop/media_json.h: images, sounds and videos of a cache as a JSON list.
//
// Spec: docs/reference/interop.md, "Media".

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "tqcache/description.h"
#include "tqcache/error.h"

namespace tqcache::interop {

// [{"kind": "image", "begin": 5, "n_tokens": 64, "id": "sha256:...", "coordinates": [...],
// "next_position": 13, "placeholder": 151655}, ...]
nlohmann::ordered_json media_json(std::span<const cache::MediaSpan> media);

// The inverse, safe for untrusted input: ranges of numbers alone. "coordinates", "next_position"
// and "placeholder" may be absent; without the second, positions count on by one. Errors: kCorrupt,
// kTooLarge.
Result<std::vector<cache::MediaSpan>> parse_media(std::string_view text);

}  // namespace tqcache::interop
