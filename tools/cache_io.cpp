#include "cache_io.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "interrupt.h"
#include "progress.h"
#include "terminal.h"

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

}  // namespace

std::string display_name(const std::string& path, std::string_view dash_means) {
  return path == "-" ? std::string(dash_means) : path;
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

Outcome<std::unique_ptr<ByteSource>> open_cache(const std::string& path) {
  if (path != "-") return in_file(path, open_file(path));
  TQC_TRY_ASSIGN(Bytes bytes, in_file("standard input", read_stdin(kMaxPipedCacheBytes)));
  return memory_source(std::move(bytes));
}

Outcome<cache::Cache> load_cache(const Console& console, const std::string& path,
                                 unsigned n_threads) {
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, open_cache(path));
  ProgressBar bar(console, "reading", Unit::kBytes);
  format::ReadOptions options;
  options.n_threads = n_threads;
  return in_file(display_name(path, "standard input"),
                 format::read_cache(*source, options, bar.callback()));
}

Outcome<cache::Cache> map_cache(const Console& console, const std::string& path,
                                unsigned n_threads) {
  if (path == "-") return load_cache(console, path, n_threads);
  ProgressBar bar(console, "checking", Unit::kBytes);
  format::ReadOptions options;
  options.n_threads = n_threads;
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
