#include <algorithm>
#include <utility>

#include "tqcache/base/threads.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/cache/checkpoint_views.h"
#include "tqcache/error.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/format/open_container.h"
#include "tqcache/format/predicted_blocks.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/format/sections/section_checks.h"
#include "tqcache/hash.h"
#include "tqcache/kv_codec.h"
#include "tqcache/tqkv.h"

namespace tqcache::format {
namespace {

// Reports the first problem of one section's content, since one problem causes others.
Result<void> check_section(const ByteSource& source, const Manifest& manifest,
                           const SectionInfo& section, const FileCipher* cipher,
                           const Decompressor& decompressor) {
  AlignedBytes raw;
  TQC_TRY(read_section(source, manifest, section, cipher, decompressor, raw));
  TQC_TRY(check_digest(section, raw));
  return check_values(layer_of(manifest, section), section, raw);
}

std::vector<std::string> section_damage(const ByteSource& source, const Manifest& manifest,
                                        std::size_t index, const FileCipher* cipher,
                                        const Decompressor& decompressor) {
  const SectionInfo& section = manifest.sections[index];
  const std::string place = block_place(index, section);
  std::vector<std::string> damage;
  if (auto checked = check_section(source, manifest, section, cipher, decompressor); !checked) {
    damage.push_back(in_context(place, std::move(checked).error()).message);
  }
  if (auto padding = check_padding(source, manifest, index); !padding) {
    damage.push_back(in_context(place, std::move(padding).error()).message);
  }
  return damage;
}

// Gaps are never read, so only their checksum matters.
Result<void> check_gap(const ByteSource& source, const GapInfo& gap) {
  AlignedBytes bytes(align_section(gap.bytes));
  TQC_TRY(source.read_at(gap.file_offset, bytes));
  const ByteView view = bytes;
  if (xxh3_128(view.first(gap.bytes)) != gap.checksum) {
    return Error{ErrorCode::kCorrupt, "checksum mismatch"};
  }
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  if (std::ranges::all_of(view.subspan(gap.bytes), is_zero)) return {};
  return Error{ErrorCode::kCorrupt, "padding behind it is not zero"};
}

std::vector<std::string> gap_damage(const ByteSource& source, const Manifest& manifest,
                                    std::size_t index) {
  auto checked = check_gap(source, manifest.gaps[index]);
  if (checked) return {};
  return {in_context(gap_place(index), std::move(checked).error()).message};
}

// A gap is read as a whole.
Result<void> check_gaps(const Manifest& manifest, const MemoryBudget& memory) {
  for (std::size_t i = 0; i < manifest.gaps.size(); ++i) {
    TQC_TRY(memory.check(manifest.gaps[i].bytes, gap_place(i)));
  }
  return {};
}

}  // namespace

Result<VerifyReport> verify_cache(const ByteSource& source, const ReadOptions& options,
                                  const Progress& progress) {
  TQC_TRY_ASSIGN(OpenContainer container, open_container(source, options.access));
  VerifyReport report{std::move(container.info), 0, 0, std::move(container.header.damage)};
  const Manifest& manifest = report.info;
  const FileCipher* const cipher = container.cipher.get();
  TQC_TRY(check_memory(report.info, options.access.memory));
  TQC_TRY(check_gaps(manifest, options.access.memory));
  if (manifest.prediction) TQC_TRY(manifest.predicted->predictor(manifest));
  if (auto name = check_content_name(manifest); !name)
    report.damage.push_back(name.error().message);

  // The manifest's rules do not detect codebooks and transforms that cannot decode.
  if (auto codecs = cache::make_codecs(manifest.layers, manifest.identity.rope); !codecs) {
    report.damage.push_back(codecs.error().message);
  }
  for (std::size_t i = 0; i < manifest.checkpoints.size(); ++i) {
    auto codecs = cache::make_codecs(manifest.checkpoints[i].layers, manifest.identity.rope);
    if (codecs) continue;
    report.damage.push_back(
        in_context(cache::checkpoint_place(i), std::move(codecs).error()).message);
  }

  const Decompressor decompressor;
  const std::size_t n_sections = manifest.sections.size();
  const std::uint64_t total = cache::total_raw_bytes(manifest.sections);
  std::uint64_t done = 0;
  std::vector<std::vector<std::string>> found(slot_count(options.n_threads));
  const auto check = [&](std::size_t i, std::size_t slot) -> Result<void> {
    found[slot] = i < n_sections ? section_damage(source, manifest, i, cipher, decompressor)
                                 : gap_damage(source, manifest, i - n_sections);
    return {};
  };
  const auto tell = [&](std::size_t i, std::size_t slot) -> Result<void> {
    report.damage.insert(report.damage.end(), found[slot].begin(), found[slot].end());
    if (i < n_sections) done += manifest.sections[i].raw_bytes;
    if (!progress || progress(done, total)) return {};
    return interrupted_error();
  };
  TQC_TRY(run_in_order({n_sections + manifest.gaps.size(), check, tell}, options.n_threads));
  report.sections_checked = n_sections;
  report.bytes_checked = report.info.file_bytes;
  return report;
}

}  // namespace tqcache::format
