#pragma once
// format/sections/section_checks.h: checks of section values that a checksum cannot make.
//
// For verify_cache; a load does not need it to be safe.
//
// Spec: docs/reference/format.md §6.

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/format/manifest.h"

namespace tqcache::format {

// Checks that dense values, scales and biases are finite, and that the unused bits of the packed
// layout are zero, as are codes, scales and biases of sink tokens. Arrays are stored bit for bit
// and may hold anything.
//
// Requires: raw has the size that the manifest says.
// Errors:   kCorrupt; the message names the head, and for a value the token in the block.
Result<void> check_values(const cache::LayerDesc& layer, const SectionInfo& section, ByteView raw);

}  // namespace tqcache::format
