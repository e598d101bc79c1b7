#include "cli/cache_io.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "cli/foreign_input.h"
#include "cli/interrupt.h"
#include "migrations/v1_file.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "tqcache/format/header.h"

namespace tqcache::cli {
namespace {

constexpr std::uint64_t kMaxPipedCacheBytes = std::uint64_t{64} << 30;

Outcome<std::uint64_t> save_to_stdout(const Console& console, const cache::Cache& cache,
                                      const format::WriteOptions& options) {
  ProgressBar bar(console, "writing", Unit::kBytes);
  TQC_TRY_ASSIGN(
      const Bytes bytes,
      in_file("standard output", format::write_cache_bytes(cache, options, bar.callback())));
  TQC_TRY(print_bytes(bytes));
  return std::uint64_t{bytes.size()};
}

// A slot that is damaged may have been the newer one. What else is wrong with a file is for whoever
// reads on to tell.
void warn_of_lost_state(const std::string& name, const ByteSource& source) {
  const Result<format::Header> header = format::read_header(source);
  if (!header) return;
  for (const std::string& damage : header->damage) {
    warn(name, damage + "; what is read may be an older state");
  }
}

}  // namespace

Result<void> refuse_foreign(const ByteSource& source) {
  TQC_TRY_ASSIGN(const std::optional<ForeignKind> kind, foreign_kind(source));
  if (!kind) return {};
  return Error{ErrorCode::kUnsupported,
               fmt::format("a {}: tqcache convert makes a .tqkv file of it", name_of(*kind))};
}

std::string display_name(const std::string& path, std::string_view dash_means) {
  return path == "-" ? std::string(dash_means) : path;
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code absent;
  return a == b || std::filesystem::equivalent(a, b, absent);
}

Result<Bytes> read_stdin(std::uint64_t max_bytes) {
  Bytes bytes;
  std::array<std::byte, 1 << 16> piece;
  for (;;) {
    if (!wait_readable(STDIN_FILENO)) return interrupted_error();
    const ssize_t n = ::read(STDIN_FILENO, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error{ErrorCode::kIo, std::generic_category().message(errno)};
    if (n == 0) return bytes;
    bytes.insert(bytes.end(), piece.begin(), piece.begin() + n);
    if (bytes.size() > max_bytes) {
      return Error{ErrorCode::kTooLarge, fmt::format("more than {} bytes", max_bytes)};
    }
  }
}

Outcome<std::unique_ptr<ByteSource>> open_source(const std::string& path) {
  if (path != "-") return in_file(path, open_file(path));
  TQC_TRY_ASSIGN(Bytes bytes, in_file("standard input", read_stdin(kMaxPipedCacheBytes)));
  return memory_source(std::move(bytes));
}

Outcome<CacheInput> open_cache(const std::string& path, unsigned n_threads) {
  TQC_TRY_ASSIGN(std::unique_ptr<ByteSource> source, open_source(path));
  return cache_input(display_name(path, "standard input"), std::move(source), n_threads);
}

Outcome<CacheInput> cache_input(std::string name, std::unique_ptr<ByteSource> source,
                                unsigned n_threads) {
  CacheInput input{std::move(name), 0, std::move(source), {}};
  TQC_TRY(in_file(input.name, refuse_foreign(*input.source)));
  input.file_bytes = input.source->size();
  if (migrations::looks_like_v1(*input.source)) {
    TQC_TRY_ASSIGN(V1Input old, read_v1_input(*input.source, input.name, n_threads));
    input.source = std::move(old.source);
    input.v1 = std::move(old.summary);
  }
  warn_of_lost_state(input.name, *input.source);
  return input;
}

Outcome<cache::Cache> load_cache(const Console& console, const std::string& path,
                                 const format::ReadOptions& options) {
  TQC_TRY_ASSIGN(const CacheInput input, open_cache(path, options.n_threads));
  ProgressBar bar(console, "reading", Unit::kBytes);
  return in_file(input.name, format::read_cache(*input.source, options, bar.callback()));
}

Outcome<cache::Cache> map_cache(const Console& console, const std::string& path,
                                const format::ReadOptions& options) {
  if (path == "-") return load_cache(console, path, options);
  {
    TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, open_source(path));
    if (migrations::looks_like_v1(*source)) return load_cache(console, path, options);
    TQC_TRY(in_file(path, refuse_foreign(*source)));
    warn_of_lost_state(path, *source);
  }
  ProgressBar bar(console, "checking", Unit::kBytes);
  return in_file(path, format::map_cache(path, options, bar.callback()));
}

Outcome<Done> check_output(const std::string& path, bool force) {
  if (path.empty()) return usage_error("the output file has no name");
  if (path == "-") {
    if (is_terminal(STDOUT_FILENO))
      return usage_error("a cache is not for a terminal, use -o FILE");
    return Done{};
  }
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::symlink_status(path, ignored);
  // Opening a pipe just to see whether it can be opened would tell its reader that all is over.
  if (status.type() == std::filesystem::file_type::fifo) return Done{};
  const Overwrite overwrite = force ? Overwrite::kAllow : Overwrite::kRefuse;
  const Result<AtomicFile> file = AtomicFile::create(path, overwrite);
  if (!file) return Failure{file.error(), path, false};
  return Done{};
}

std::uint64_t size_on_disk(const std::string& path) {
  std::error_code no_size;
  const std::uintmax_t size = std::filesystem::file_size(path, no_size);
  return no_size ? std::uint64_t{0} : std::uint64_t{size};
}

Outcome<std::uint64_t> save_cache(const Console& console, const cache::Cache& cache,
                                  const std::string& path, const format::WriteOptions& options) {
  if (path == "-") return save_to_stdout(console, cache, options);
  {
    ProgressBar bar(console, "writing", Unit::kBytes);
    TQC_TRY(in_file(path, format::write_cache_file(cache, path, options, bar.callback())));
  }
  return size_on_disk(path);
}

}  // namespace tqcache::cli
