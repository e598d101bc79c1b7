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
  AlignedBytes raw;
  TQC_TRY(read_section(source, section, decompressor, raw));
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
  std::vector<std::vector<std::string>> found(slot_count(options.n_threads));
  const auto check = [&](std::size_t i, std::size_t slot) -> Result<void> {
    found[slot] = section_damage(source, manifest, i, decompressor);
    return {};
  };
  const auto report_section = [&](std::size_t i, std::size_t slot) -> Result<void> {
    report.damage.insert(report.damage.end(), found[slot].begin(), found[slot].end());
    done += manifest.sections[i].raw_bytes;
    if (!progress || progress(done, total)) return {};
    return Error{ErrorCode::kInterrupted, "interrupted"};
  };
  TQC_TRY(run_in_order({manifest.sections.size(), check, report_section}, options.n_threads));
  report.sections_checked = manifest.sections.size();
  report.bytes_checked = report.info.file_bytes;
  return report;
}

}  // namespace tqcache::format
