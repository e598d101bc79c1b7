#pragma once
// format/manifest_rules.h: the rules that a manifest must satisfy before any section is read.
//
// The writer checks its own manifest against the same rules, so that it never writes a file that
// cannot be read.
//
// Spec: docs/reference/format.md §4 and §Limits.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tqcache/cache/blocks.h"
#include "tqcache/error.h"
#include "tqcache/format/manifest.h"

namespace tqcache::format {

// Limits, known names, and fields that must agree: everything except the section table.
//
// Errors: kTooLarge, kUnsupported (a name that this reader does not know), kCorrupt.
Result<void> check_contents(const Manifest& manifest);

// Checks one row of the section table of a cache with these layers and tokens: it is the section
// `expected`, in an allowed form, with the size that the shapes imply. Its place in the file is not
// checked.
//
// Requires: cache::validate_layers(); `expected` is one of plan_blocks().
// Errors:   kCorrupt.
Result<void> check_section(const std::vector<cache::LayerDesc>& layers, std::int64_t n_tokens,
                           const SectionInfo& section, const BlockKey& expected);

// The section table without places: it lists exactly the sections that the layers have, in order
// and with the sizes that the shapes imply.
//
// Requires: check_contents(manifest).
// Errors:   kCorrupt.
Result<void> check_section_table(const Manifest& manifest);

// The section table: it lists exactly the sections that the layers have, in order and with the
// sizes that the shapes imply, and sections and gaps cover the file from the header to the
// manifest.
//
// Requires: check_contents(manifest).
// Errors:   kCorrupt.
Result<void> check_sections(const Manifest& manifest, std::uint64_t manifest_offset);

// The feature bits that the header slot of this manifest must have; no others are allowed.
std::uint32_t required_features(const Manifest& manifest);

// The name of a gap in messages: "gap 3".
inline std::string gap_place(std::size_t index) { return "gap " + std::to_string(index); }

}  // namespace tqcache::format
