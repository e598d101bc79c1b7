#include <algorithm>
#include <utility>

#include "tqcache/base/threads.h"
#include "tqcache/format/cache_file.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/open_container.h"
#include "tqcache/format/section_checks.h"
#include "tqcache/format/section_reader.h"

namespace tqcache::format {
namespace {

// What is wrong with the content of one section; one fact, since one leads to the next.
Result<void> check_section(const ByteSource& source, const Manifest& manifest,
                           const SectionInfo& section, const Decompressor& decompressor) {
  TQC_TRY_ASSIGN(const AlignedBytes raw, read_section(source, section, decompressor));
  if (sha256(raw) != section.raw_sha256) {
    return Error{ErrorCode::kCorrupt, "SHA-256 of the content mismatch"};
  }
  return check_values(manifest.layers[static_cast<std::size_t>(section.layer)], section, raw);
}

std::vector<std::string> section_damage(const ByteSource& source, const Manifest& manifest,
                                        std::size_t index, const Decompressor& decompressor) {
  const SectionInfo& section = manifest.sections[index];
  const std::string place = section_place(index, section);
  std::vector<std::string> damage;
  if (auto checked = check_section(source, manifest, section, decompressor); !checked) {
    damage.push_back(in_context(place, std::move(checked).error()).message);
  }
  if (auto padding = check_padding(source, manifest, index); !padding) {
    damage.push_back(in_context(place, std::move(padding).error()).message);
  }
  return damage;
}

// One section is in memory for every thread, so a hostile file can ask for no more than the
// largest section times their number.
Result<void> check_largest(const Manifest& manifest, std::uint64_t max_bytes) {
  for (std::size_t i = 0; i < manifest.sections.size(); ++i) {
    const SectionInfo& section = manifest.sections[i];
    if (section.raw_bytes <= max_bytes) continue;
    return Error{ErrorCode::kTooLarge, section_place(i, section) + ": " +
                                           std::to_string(section.raw_bytes) + " bytes, " +
                                           std::to_string(max_bytes) + " are allowed"};
  }
  return {};
}

}  // namespace

Result<VerifyReport> verify_cache(const ByteSource& source, const ReadOptions& options,
                                  const Progress& progress) {
  TQC_TRY_ASSIGN(OpenContainer container, open_container(source));
  VerifyReport report{std::move(container.info), 0, 0, std::move(container.damage)};
  const Manifest& manifest = report.info;
  TQC_TRY(check_largest(manifest, options.max_payload_bytes));
  if (auto name = check_content_name(manifest); !name)
    report.damage.push_back(name.error().message);
  report.bytes_checked = kHeaderBytes + report.info.manifest_bytes;

  const Decompressor decompressor;
  const std::uint64_t total = total_raw_bytes(manifest);
  std::uint64_t done = 0;
  for (std::size_t first = 0; first < manifest.sections.size();) {
    const std::size_t end = batch_end(manifest, first);
    std::vector<std::vector<std::string>> found(end - first);
    parallel_for(end - first, options.n_threads, [&](std::size_t i) {
      found[i] = section_damage(source, manifest, first + i, decompressor);
    });
    for (const std::vector<std::string>& lines : found) {
      report.damage.insert(report.damage.end(), lines.begin(), lines.end());
    }
    for (; first < end; ++first) done += manifest.sections[first].raw_bytes;
    if (progress && !progress(done, total)) return Error{ErrorCode::kInterrupted, "interrupted"};
  }
  report.sections_checked = manifest.sections.size();
  report.bytes_checked = report.info.file_bytes;
  return report;
}

}  // namespace tqcache::format
