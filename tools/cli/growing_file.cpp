#include "cli/growing_file.h"

#include <fmt/format.h>

#include "migrations/v1_file.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "cli/v1_input.h"

namespace tqcache::cli {

Outcome<GrowingFile> GrowingFile::open(const std::string& path) {
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, in_file(path, open_file(path)));
  if (migrations::looks_like_v1(*source)) return Failure{v1_is_read_only(), path, false};
  TQC_TRY_ASSIGN(format::CacheAppender appender, in_file(path, format::CacheAppender::open(path)));
  for (const std::string& damage : appender.info().damage) {
    warn(path, damage + "; what is read may be an older state");
  }
  return GrowingFile(path, std::move(appender));
}

Outcome<cache::Cache> GrowingFile::read(const Console& console, unsigned n_threads) {
  ProgressBar bar(console, "reading", Unit::kBytes);
  format::ReadOptions options;
  options.n_threads = n_threads;
  return in_file(path_, appender_.read(options, bar.callback()));
}

Outcome<format::AppendReport> GrowingFile::append(const Console& console, const cache::Cache& cache,
                                                  const CompressionFlags& flags,
                                                  unsigned n_threads) {
  TQC_TRY_ASSIGN(format::WriteOptions options, write_options(flags, n_threads, false));
  if (!flags.is_given) options.compression = format::compression_of(appender_.info());
  ProgressBar bar(console, "writing", Unit::kBytes);
  return in_file(path_, appender_.append(cache, options, bar.callback()));
}

std::string append_text(const std::string& path, const format::AppendReport& report) {
  if (report.bytes_written == 0) {
    return fmt::format("{}: {} tokens, nothing to add", path, report.n_tokens);
  }
  return fmt::format("{}: {} -> {} tokens, {} bytes added", path, report.n_tokens_before,
                     report.n_tokens, grouped(report.bytes_written));
}

Json append_json(const std::string& path, const format::AppendReport& report) {
  Json json;
  json["file"] = path;
  json["tokens_before"] = report.n_tokens_before;
  json["tokens"] = report.n_tokens;
  json["bytes_written"] = report.bytes_written;
  json["file_bytes"] = report.file_bytes;
  json["dead_bytes"] = report.gap_bytes;
  return json;
}

}  // namespace tqcache::cli
