#pragma once
// format/manifest_rules.h: what a manifest has to fulfil before a single section is read.
//
// The writer holds its own manifest against the same rules, so that no file is written that
// would not be read.
//
// Spec: docs/reference/format.md §4 and §Limits.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/format/manifest.h"

namespace tqcache::format {

// Limits, known names, and fields that have to agree: all but the section table.
//
// Errors: kTooLarge, kUnsupported (a name that this reader does not know), kCorrupt.
Result<void> check_contents(const Manifest& manifest);

// One row of the section table of a cache with these layers and so many tokens: it is the section
// `expected`, in a form that it may have, of the size that the shapes say. Where it stands is not
// looked at.
//
// Requires: cache::validate_layers(); `expected` is one of plan_blocks().
// Errors:   kCorrupt.
Result<void> check_section(const std::vector<cache::LayerDesc>& layers, std::int64_t n_tokens,
                           const SectionInfo& section, const BlockKey& expected);

// The section table but for places: it names exactly the sections that the layers have, in their
// order and with the sizes that the shapes say.
//
// Requires: check_contents(manifest).
// Errors:   kCorrupt.
Result<void> check_section_table(const Manifest& manifest);

// The section table: it names exactly the sections that the layers have, in their order and with
// the sizes that the shapes say, and they and the gaps tile the file from the header up to the
// manifest.
//
// Requires: check_contents(manifest).
// Errors:   kCorrupt.
Result<void> check_sections(const Manifest& manifest, std::uint64_t manifest_offset);

// The feature bits that the header slot of this manifest has to have, and no others.
std::uint32_t required_features(const Manifest& manifest);

// "gap 3", as messages name one.
inline std::string gap_place(std::size_t index) { return "gap " + std::to_string(index); }

}  // namespace tqcache::format
