#include "tqcache/format/manifest_rules.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/cache/blocks.h"
#include "tqcache/error.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/predicted_blocks.h"
#include "tqcache/format/sections/symbol_section.h"

namespace tqcache::format {
namespace {

// Checks that everything needed to decode a packed section is present.
Result<void> check_fixed(const cache::QuantSpec& quant) {
  if (quant.centering != cache::Centering::kNone && quant.mean.empty()) {
    return corrupt("packed, but without its mean");
  }
  if (quant.mode == codec::Mode::kMixed && quant.outliers.empty()) {
    return corrupt("packed, but without its outlier channels");
  }
  return {};
}

// A quantized tensor packs every token block but the last, which stays dense until it is full.
Result<void> check_form(const cache::LayerDesc& layer, std::int64_t n_tokens,
                        const SectionInfo& section) {
  if (section.tensor == TensorKind::kArray || !tensor_of(layer, section.tensor).quant) {
    if (section.packed) return corrupt("packed, of a tensor that is not turbo");
    return {};
  }
  const bool is_full = cache::tokens_in_block(n_tokens, section.block) == cache::kTokenBlock;
  const bool is_last = section.block + 1 == cache::block_count(n_tokens);
  if (section.packed && !is_full) return corrupt("packed, but not full");
  if (section.packed) return check_fixed(*tensor_of(layer, section.tensor).quant);
  if (!is_last) return corrupt("a token block before the last is not packed");
  return {};
}

Result<void> check_sizes(const cache::LayerDesc& layer, std::int64_t n_tokens,
                         const SectionInfo& section) {
  const std::uint64_t expected = raw_bytes(layer, key_of(section), section.packed, n_tokens);
  if (section.raw_bytes != expected) {
    return corrupt("raw size " + std::to_string(section.raw_bytes) + " where the shape says " +
                   std::to_string(expected));
  }
  const bool is_stored = section.compression == Compression::kNone;
  if (section.packed && section.compression == Compression::kPlanes) {
    return corrupt("planes, but packed");
  }
  if (section.compression == Compression::kSymbols &&
      !(section.packed && has_symbols(tensor_of(layer, section.tensor)))) {
    return corrupt("symbols, but not of mode trellis");
  }
  if (section.compression == Compression::kPredicted) {
    const auto* const attention = std::get_if<cache::AttentionDesc>(&layer);
    if (attention == nullptr || attention->k.quant || attention->v.quant ||
        attention->value_dim != 0) {
      return corrupt("predicted, but not of a layer with dense full attention");
    }
  }
  const bool fits = is_stored
                        ? section.stored_bytes == section.raw_bytes
                        : section.stored_bytes > 0 && section.stored_bytes < section.raw_bytes;
  if (!fits) {
    return corrupt("stored size " + std::to_string(section.stored_bytes) + " for raw size " +
                   std::to_string(section.raw_bytes));
  }
  return {};
}

// A range of the file that belongs to a section or a gap.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  std::size_t index = 0;  // in the section table, or in the list of gaps
  bool is_gap = false;
};

std::string range_place(const Manifest& manifest, const Range& range) {
  return range.is_gap ? gap_place(range.index)
                      : block_place(range.index, manifest.sections[range.index]);
}

// The ranges in file order. Without appends this is the table's own order; an empty section comes
// before a range with the same offset.
std::vector<Range> ranges_in_order(const Manifest& manifest) {
  std::vector<Range> ranges;
  ranges.reserve(manifest.sections.size() + manifest.gaps.size());
  for (const SectionInfo& section : manifest.sections) {
    ranges.push_back({section.file_offset, section.stored_bytes, ranges.size(), false});
  }
  if (manifest.gaps.empty()) return ranges;
  for (std::size_t i = 0; i < manifest.gaps.size(); ++i) {
    ranges.push_back({manifest.gaps[i].file_offset, manifest.gaps[i].bytes, i, true});
  }
  std::ranges::stable_sort(ranges, {},
                           [](const Range& range) { return std::pair(range.begin, range.bytes); });
  return ranges;
}

// Returns the end of the range.
Result<std::uint64_t> check_place(const Range& range, std::uint64_t previous_end,
                                  std::uint64_t manifest_offset) {
  if (range.begin != align_section(previous_end)) {
    return corrupt("file offset " + std::to_string(range.begin) + " where " +
                   std::to_string(align_section(previous_end)) + " follows");
  }
  if (range.begin > manifest_offset || range.bytes > manifest_offset - range.begin) {
    return corrupt("reaches into the manifest");
  }
  return range.begin + range.bytes;
}

// Checks that sections and gaps are adjacent from the header to the manifest, so that every byte of
// the file belongs to exactly one of them.
Result<void> check_tiling(const Manifest& manifest, std::uint64_t manifest_offset) {
  std::uint64_t end = kHeaderBytes;
  for (const Range& range : ranges_in_order(manifest)) {
    auto checked = check_place(range, end, manifest_offset);
    if (!checked) return in_context(range_place(manifest, range), std::move(checked).error());
    end = *checked;
  }
  if (align_section(end) == manifest_offset) return {};
  return corrupt("manifest: at " + std::to_string(manifest_offset) + ", but the sections end at " +
                 std::to_string(end));
}

Result<void> check_gaps(const std::vector<GapInfo>& gaps) {
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    if (gaps[i].bytes == 0) return corrupt(gap_place(i) + ": of no bytes");
    if (i > 0 && gaps[i].file_offset <= gaps[i - 1].file_offset) {
      return corrupt(gap_place(i) + ": not behind the one before");
    }
  }
  return {};
}

}  // namespace

Result<void> check_section(const std::vector<cache::LayerDesc>& layers, std::int64_t n_tokens,
                           const SectionInfo& section, const BlockKey& expected) {
  if (key_of(section) != expected) return corrupt("not the section that follows here");
  const cache::LayerDesc& layer = layers[static_cast<std::size_t>(section.layer)];
  TQC_TRY(check_form(layer, n_tokens, section));
  return check_sizes(layer, n_tokens, section);
}

namespace {

// The first token blocks are predicted with all layers, the others with none.
Result<void> check_prediction(const Manifest& manifest) {
  const std::size_t n_of_cache = count_cache_sections(manifest);
  for (std::size_t i = n_of_cache; i < manifest.sections.size(); ++i) {
    if (manifest.sections[i].compression != Compression::kPredicted) continue;
    return in_context(block_place(i, manifest.sections[i]), corrupt("predicted, in a checkpoint"));
  }
  const std::int64_t n_blocks = predicted_block_count(manifest);
  if (!manifest.prediction && n_blocks == 0) return {};
  if (!manifest.prediction) return corrupt("predicted sections, but no prediction");
  if (n_blocks == 0) return corrupt("a prediction, but no predicted sections");
  if (manifest.hidden_tokens) return corrupt("predicted sections, but hidden tokens");
  if (!manifest.media.empty()) return corrupt("predicted sections, but media");
  for (std::size_t i = 0; i < n_of_cache; ++i) {
    const SectionInfo& section = manifest.sections[i];
    const bool is_predicted = section.compression == Compression::kPredicted;
    if (is_predicted == (section.tensor != TensorKind::kArray && section.block < n_blocks))
      continue;
    return in_context(block_place(i, section),
                      corrupt("not predicted, among token blocks that are predicted"));
  }
  return {};
}

}  // namespace

Result<void> check_section_table(const Manifest& manifest) {
  std::uint64_t expected = count_blocks(manifest.layers, manifest.n_tokens());
  for (const cache::CheckpointDesc& checkpoint : manifest.checkpoints) {
    expected += count_blocks(checkpoint.layers, checkpoint.n_tokens);
  }
  if (manifest.sections.size() != expected) {
    return corrupt("section table: " + std::to_string(manifest.sections.size()) +
                   " sections where the layers have " + std::to_string(expected));
  }
  std::size_t first = 0;
  std::int64_t first_layer = 0;
  const auto check_all = [&](const std::vector<cache::LayerDesc>& layers,
                             std::int64_t n_tokens) -> Result<void> {
    const std::vector<BlockKey> plan = plan_blocks(layers, n_tokens);
    for (std::size_t i = 0; i < plan.size(); ++i) {
      SectionInfo section = manifest.sections[first + i];
      section.layer -= first_layer;
      auto checked = check_section(layers, n_tokens, section, plan[i]);
      if (checked) continue;
      return in_context(block_place(first + i, manifest.sections[first + i]),
                        std::move(checked).error());
    }
    first += plan.size();
    first_layer += std::ssize(layers);
    return {};
  };
  TQC_TRY(check_all(manifest.layers, manifest.n_tokens()));
  for (const cache::CheckpointDesc& checkpoint : manifest.checkpoints) {
    TQC_TRY(check_all(checkpoint.layers, checkpoint.n_tokens));
  }
  return check_prediction(manifest);
}

Result<void> check_sections(const Manifest& manifest, std::uint64_t manifest_offset) {
  TQC_TRY(check_section_table(manifest));
  TQC_TRY(check_gaps(manifest.gaps));
  return check_tiling(manifest, manifest_offset);
}

std::uint32_t required_features(const Manifest& manifest) {
  const bool has_planes =
      std::ranges::count(manifest.sections, Compression::kPlanes, &SectionInfo::compression) > 0;
  return (manifest.gaps.empty() ? 0 : kFeatureGaps) |
         (manifest.hidden_tokens ? kFeatureHiddenTokens : 0) | (has_planes ? kFeaturePlanes : 0) |
         (manifest.encryption ? kFeatureEncrypted : 0) |
         (manifest.checkpoints.empty() ? 0 : kFeatureCheckpoints) |
         (manifest.prediction ? kFeaturePredicted : 0) |
         (manifest.media.empty() ? 0 : kFeatureMedia);
}

Result<void> check_contents(const Manifest& manifest) {
  if (manifest.writer.size() > cache::kMaxTextBytes) {
    return too_large("writer of " + std::to_string(manifest.writer.size()) + " bytes");
  }
  if (manifest.gaps.size() > kMaxGaps) {
    return too_large(std::to_string(manifest.gaps.size()) + " gaps");
  }
  TQC_TRY(cache::validate(manifest));
  return cache::validate_checkpoints(manifest, manifest.checkpoints);
}

}  // namespace tqcache::format
