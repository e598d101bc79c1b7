#pragma once
// format/manifest_rules.h: what a manifest has to fulfil before a single section is read.
//
// The writer holds its own manifest against the same rules, so that no file is written that
// would not be read.
//
// Spec: docs/format.md §4 and §Limits.

#include <cstdint>

#include "tqcache/base/result.h"
#include "tqcache/format/manifest.h"

namespace tqcache::format {

// Limits, known names, and fields that have to agree: all but the section table.
//
// Errors: kTooLarge, kUnsupported (a name that this reader does not know), kCorrupt.
Result<void> check_contents(const Manifest& manifest);

// The section table: it names exactly the sections that the layers have, in their order and with
// the sizes that the shapes say, and they tile the file from the header up to the manifest.
//
// Requires: check_contents(manifest).
// Errors:   kCorrupt.
Result<void> check_sections(const Manifest& manifest, std::uint64_t manifest_offset);

// Bytes of memory that the whole cache takes when loaded.
// Requires: check_sections(manifest).
std::uint64_t total_memory_bytes(const Manifest& manifest);

}  // namespace tqcache::format
