#include "cli/cache_io.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "cli/common_flags.h"
#include "cli/console.h"
#include "cli/foreign_input.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "migrations/migrate_file.h"
#include "migrations/v1_file.h"
#include "migrations/v1_to_v2.h"
#include "tqcache/base/posix.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/header.h"
#include "tqcache/format/manifest.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::cli {

namespace {

void warn_of_age(const std::string& name, const std::vector<std::string>& notes) {
  warn(name, "version 1 (class_path) is deprecated and read-only; tqcache migrate upgrades it");
  for (const std::string& note : notes) warn(name, note);
}

V1Summary summary_of(migrations::V1File& file, std::vector<std::string> notes) {
  V1Summary summary;
  for (migrations::V1Entry& entry : file.entries) {
    summary.class_paths.push_back(std::move(entry.class_path));
  }
  summary.metadata = std::move(file.metadata);
  summary.notes = std::move(notes);
  return summary;
}

Result<void> stop_if_interrupted() {
  if (interrupted()) return interrupted_error();
  return {};
}

Result<V1Input> migrate_in_memory(const ByteSource& file, const MemoryBudget& memory,
                                  unsigned n_threads, bool compare) {
  TQC_TRY_ASSIGN(migrations::V1File old, migrations::read_v1(file, memory));
  TQC_TRY(stop_if_interrupted());
  TQC_TRY_ASSIGN(migrations::Migration migration, migrations::v1_to_v2(old, memory));
  TQC_TRY(stop_if_interrupted());
  if (compare) TQC_TRY(migrations::check_migrated(old, migration.cache, n_threads));
  V1Input input{summary_of(old, std::move(migration.notes)), nullptr};
  old = {};  // frees memory before writing
  format::WriteOptions options;
  options.compression = format::Compression::kNone;
  options.n_threads = n_threads;
  const auto go_on = [](std::uint64_t, std::uint64_t) { return !interrupted(); };
  TQC_TRY_ASSIGN(Bytes bytes, format::write_cache_bytes(migration.cache, options, go_on));
  input.source = memory_source(std::move(bytes));
  return input;
}

}  // namespace

Error v1_is_read_only() {
  return {ErrorCode::kUnsupported, "version 1 is read-only; tqcache migrate upgrades it"};
}

Result<V1Input> read_v1_input(const Console& console, const ByteSource& file,
                              const std::string& name, unsigned n_threads, bool compare) {
  TQC_TRY_ASSIGN(V1Input input,
                 in_file(name, migrate_in_memory(file, console.access.memory, n_threads, compare)));
  warn_of_age(name, input.summary.notes);
  return input;
}

namespace {

constexpr std::uint64_t kMaxPipedCacheBytes = std::uint64_t{64} << 30;

Result<std::uint64_t> save_to_stdout(const Console& console, const cache::Cache& cache,
                                     const format::WriteOptions& options) {
  ProgressBar bar(console, "writing", Unit::kBytes);
  TQC_TRY_ASSIGN(
      const Bytes bytes,
      in_file("standard output", format::write_cache_bytes(cache, options, bar.callback())));
  TQC_TRY(print_bytes(bytes));
  return std::uint64_t{bytes.size()};
}

// A damaged header slot may have been the newer one. The reader reports other damage.
void warn_of_lost_state(const std::string& name, const ByteSource& source) {
  const Result<format::Header> header = format::read_header(source);
  if (!header) return;
  for (const std::string& damage : header->damage) {
    warn(name, damage + "; an older state may have been read");
  }
}

}  // namespace

namespace {

struct Magic {
  std::string_view bytes;
  std::string_view name;
};
constexpr Magic kOtherFiles[] = {{"GGUF", "a GGUF model (--model takes it)"},
                                 {"\x7f"
                                  "ELF",
                                  "a program"},
                                 {"\x28\xb5\x2f\xfd", "data compressed by zstd"},
                                 {"\x1f\x8b", "data compressed by gzip"},
                                 {"PK\x03\x04", "a ZIP archive"},
                                 {"%PDF", "a PDF document"}};

bool is_text(std::string_view bytes) {
  return std::ranges::none_of(bytes, [](char c) {
    return static_cast<unsigned char>(c) < 0x20 &&
           std::string_view("\t\n\r\f\x1b").find(c) == std::string_view::npos;
  });
}

// A file that is clearly something else is not a damaged cache.
Result<void> refuse_other(const ByteSource& source) {
  if (source.size() == 0) return {};
  std::string head(static_cast<std::size_t>(std::min<std::uint64_t>(source.size(), 512)), '\0');
  TQC_TRY(source.read_at(0, std::as_writable_bytes(std::span(head))));
  for (const Magic& each : kOtherFiles) {
    if (!head.starts_with(each.bytes)) continue;
    return Error{ErrorCode::kUnsupported, fmt::format("this is {}, not a cache", each.name)};
  }
  if (is_text(head)) return Error{ErrorCode::kUnsupported, "this is text, not a cache"};
  return {};
}

}  // namespace

Result<std::optional<FileKind>> known_kind(const ByteSource& source) {
  TQC_TRY_ASSIGN(const std::optional<FileKind> kind, interop::detect_kind(source));
  if (!kind) TQC_TRY(refuse_other(source));
  return kind;
}

Result<FileKind> kind_of_cache(const ByteSource& source) {
  TQC_TRY_ASSIGN(const std::optional<FileKind> kind, known_kind(source));
  return kind.value_or(FileKind::kTqkv);
}

Result<FileKind> own_kind(const ByteSource& source) {
  TQC_TRY_ASSIGN(const FileKind kind, kind_of_cache(source));
  if (kind == FileKind::kTqkv || kind == FileKind::kTqkvVersion1) return kind;
  return Error{ErrorCode::kUnsupported,
               fmt::format("this is a {}; use tqcache convert first", name_of(kind))};
}

std::string display_name(const std::string& path, std::string_view dash_means) {
  return path == "-" ? std::string(dash_means) : path;
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code absent;
  return a == b || std::filesystem::equivalent(a, b, absent);
}

namespace {

// Calls take(bytes) with all bytes that come from a descriptor.
template <class Take>
Result<void> read_stream(int fd, std::uint64_t max_bytes, Take take) {
  std::vector<std::byte> piece(std::size_t{1} << 18);
  for (std::uint64_t n_bytes = 0;;) {
    if (!wait_readable(fd)) return interrupted_error();
    const ssize_t n = posix::read(fd, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error{ErrorCode::kIo, std::generic_category().message(errno)};
    if (n == 0) return {};
    n_bytes += static_cast<std::uint64_t>(n);
    if (n_bytes > max_bytes) {
      return Error{ErrorCode::kTooLarge, fmt::format("more than {} bytes", grouped(max_bytes))};
    }
    TQC_TRY(take(ByteView(piece).first(static_cast<std::size_t>(n))));
  }
}

// The same for standard input ("-") or the file of this name.
template <class Take>
Result<void> read_special_file(const std::string& path, std::uint64_t max_bytes, Take take) {
  if (path == "-") return read_stream(STDIN_FILENO, max_bytes, take);
  const int fd = posix::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == EINTR) return interrupted_error();
  if (fd < 0) return Error{ErrorCode::kIo, std::generic_category().message(errno)};
  Result<void> done = read_stream(fd, max_bytes, take);
  posix::close(fd);
  return done;
}

Result<Bytes> read_to_memory(const std::string& path, std::uint64_t max_bytes) {
  Bytes bytes;
  TQC_TRY(read_special_file(path, max_bytes, [&](ByteView piece) -> Result<void> {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
    return {};
  }));
  return bytes;
}

// What comes from a pipe, to be read by position: large inputs are kept in a temporary file.
Result<std::unique_ptr<ByteSource>> read_pipe(const std::string& path, std::uint64_t max_bytes) {
  constexpr std::size_t kMostInMemory = std::size_t{16} << 20;
  Bytes bytes;
  std::unique_ptr<ScratchFile> file;
  TQC_TRY(read_special_file(path, max_bytes, [&](ByteView piece) -> Result<void> {
    if (file == nullptr && bytes.size() + piece.size() > kMostInMemory) {
      TQC_TRY_ASSIGN(file, ScratchFile::create());
      TQC_TRY(file->append(bytes));
      bytes = {};
    }
    if (file != nullptr) return file->append(piece);
    bytes.insert(bytes.end(), piece.begin(), piece.end());
    return {};
  }));
  if (file == nullptr) return memory_source(std::move(bytes));
  return std::unique_ptr<ByteSource>(std::move(file));
}

std::filesystem::file_type type_of(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::status(path, ignored).type();
}

}  // namespace

Result<Bytes> read_stdin(std::uint64_t max_bytes) { return read_to_memory("-", max_bytes); }

Result<Bytes> read_input(const std::string& path, std::uint64_t max_bytes) {
  if (path == "-") return read_stdin(max_bytes);
  const std::filesystem::file_type type = type_of(path);
  const bool is_special =
      type == std::filesystem::file_type::fifo || type == std::filesystem::file_type::character;
  return is_special ? read_to_memory(path, max_bytes) : read_file(path, max_bytes);
}

Result<std::unique_ptr<ByteSource>> open_source(const std::string& path) {
  if (path != "-" && type_of(path) != std::filesystem::file_type::fifo) {
    return in_file(path, open_file(path));
  }
  return in_file(display_name(path, "standard input"), read_pipe(path, kMaxPipedCacheBytes));
}

Result<void> check_encrypted(const Console& console, const std::string& name,
                             const ByteSource& source) {
  if (console.access.keys.empty()) return {};
  const Result<format::Header> header = format::read_header(source);
  if (header && (header->slot.required_features & format::kFeatureEncrypted) != 0) return {};
  if (!header && format::has_magic(source)) return {};  // the reader refuses it, and says why
  if (console.require_encrypted) {
    return Error{ErrorCode::kNoKey, "not encrypted, and --require-encrypted is given", name};
  }
  if (header || migrations::looks_like_v1(source)) {
    warn(name,
         "not encrypted, though a key is given: it may stand in the place of an encrypted file. "
         "--require-encrypted refuses such files");
  }
  return {};
}

Result<CacheInput> open_cache(const Console& console, const std::string& path, unsigned n_threads) {
  TQC_TRY_ASSIGN(std::unique_ptr<ByteSource> source, open_source(path));
  const std::string name = display_name(path, "standard input");
  TQC_TRY_ASSIGN(const FileKind kind, in_file(name, own_kind(*source)));
  return cache_input(console, name, kind, std::move(source), n_threads);
}

Result<CacheInput> cache_input(const Console& console, std::string name, FileKind kind,
                               std::shared_ptr<const ByteSource> source, unsigned n_threads) {
  CacheInput input{std::move(name), 0, std::move(source), {}};
  TQC_TRY(check_encrypted(console, input.name, *input.source));
  input.file_bytes = input.source->size();
  if (kind == FileKind::kTqkvVersion1) {
    TQC_TRY_ASSIGN(V1Input old, read_v1_input(console, *input.source, input.name, n_threads));
    input.source = std::move(old.source);
    input.v1 = std::move(old.summary);
    return input;
  }
  warn_of_lost_state(input.name, *input.source);
  return input;
}

Result<cache::Cache> load_cache(const Console& console, const std::string& path,
                                const format::ReadOptions& options) {
  TQC_TRY_ASSIGN(const CacheInput input, open_cache(console, path, options.n_threads));
  ProgressBar bar(console, "reading", Unit::kBytes);
  format::ReadOptions read = options;
  read.access = console.access;
  return in_file(input.name, format::read_cache(*input.source, read, bar.callback()));
}

Result<cache::Cache> map_cache(const Console& console, const std::string& path,
                               const format::ReadOptions& options) {
  // An encrypted file is never mapped; and this opens the file a second time.
  if (path == "-" || console.require_encrypted) return load_cache(console, path, options);
  {
    TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, open_source(path));
    TQC_TRY_ASSIGN(const FileKind kind, in_file(path, own_kind(*source)));
    if (kind == FileKind::kTqkvVersion1) return load_cache(console, path, options);
    TQC_TRY(check_encrypted(console, path, *source));
    warn_of_lost_state(path, *source);
  }
  ProgressBar bar(console, "checking", Unit::kBytes);
  format::ReadOptions read = options;
  read.access = console.access;
  return in_file(path, format::map_cache(path, read, bar.callback()));
}

Result<std::optional<cache::Cache>> load_state_before(const Console& console,
                                                      const std::string& path,
                                                      std::int64_t n_tokens,
                                                      const format::ReadOptions& options) {
  using State = std::optional<cache::Cache>;
  if (path == "-") return State();
  TQC_TRY_ASSIGN(const CacheInput input, open_cache(console, path, options.n_threads));
  format::ReadOptions read = options;
  {
    TQC_TRY_ASSIGN(const auto reader,
                   in_file(path, format::SectionReader::open(*input.source, console.access)));
    read.first_tokens = cache::last_state_before(reader, n_tokens);
  }
  if (*read.first_tokens == 0) return State();
  read.access = console.access;
  ProgressBar bar(console, "reading", Unit::kBytes);
  TQC_TRY_ASSIGN(cache::Cache cache,
                 in_file(path, format::read_cache(*input.source, read, bar.callback())));
  return State(std::move(cache));
}

Result<void> check_output(const std::string& path, bool force) {
  if (path.empty()) return usage_error("the output file name is empty");
  if (path == "-") {
    if (is_terminal(STDOUT_FILENO))
      return usage_error("refusing to write a cache to a terminal; name an output file");
    return {};
  }
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::symlink_status(path, ignored);
  // Opening and closing a pipe would end the input of its reader.
  if (status.type() == std::filesystem::file_type::fifo) return {};
  const Overwrite overwrite = force ? Overwrite::kAllow : Overwrite::kRefuse;
  const Result<AtomicFile> file = AtomicFile::create(path, overwrite);
  if (!file) {
    Error error = file.error();
    if (error.message.starts_with("exists")) error.message += "; -f overwrites it";
    return in_file(path, std::move(error));
  }
  return {};
}

std::uint64_t size_on_disk(const std::string& path) {
  std::error_code no_size;
  const std::uintmax_t size = std::filesystem::file_size(path, no_size);
  return no_size ? std::uint64_t{0} : std::uint64_t{size};
}

Result<std::uint64_t> save_cache(const Console& console, const cache::Cache& cache,
                                 const std::string& path, const format::WriteOptions& options) {
  format::WriteOptions write = options;
  write.keys = console.access.keys;
  if (path == "-") return save_to_stdout(console, cache, write);
  {
    ProgressBar bar(console, "writing", Unit::kBytes);
    TQC_TRY(in_file(path, format::write_cache_file(cache, path, write, bar.callback())));
  }
  return size_on_disk(path);
}

Result<GrowingFile> GrowingFile::open(const Console& console, const std::string& path) {
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, in_file(path, open_file(path)));
  TQC_TRY_ASSIGN(const FileKind kind, in_file(path, own_kind(*source)));
  if (kind == FileKind::kTqkvVersion1) return in_file(path, v1_is_read_only());
  // With a key this refuses a plain file.
  TQC_TRY_ASSIGN(format::CacheAppender appender,
                 in_file(path, format::CacheAppender::open(path, console.access)));
  for (const std::string& damage : appender.info().damage) {
    warn(path, damage + "; an older state may have been read");
  }
  return GrowingFile(path, std::move(appender));
}

Result<cache::Cache> GrowingFile::read(const Console& console, const format::ReadOptions& options) {
  ProgressBar bar(console, "reading", Unit::kBytes);
  return in_file(path_, appender_.read(options, bar.callback()));
}

Result<format::AppendReport> GrowingFile::append(const Console& console, const cache::Cache& cache,
                                                 const CompressionFlags& flags,
                                                 unsigned n_threads) {
  TQC_TRY_ASSIGN(format::WriteOptions options, write_options(flags, n_threads, false));
  if (!flags.is_given) options.compression = format::compression_of(appender_.info());
  options.keys = console.access.keys;
  ProgressBar bar(console, "writing", Unit::kBytes);
  return in_file(path_, appender_.append(cache, options, bar.callback()));
}

std::string append_text(const std::string& path, const format::AppendReport& report) {
  if (report.bytes_written == 0) {
    return fmt::format("{}: {}, no new ones", path, counted(report.n_tokens, "token"));
  }
  return fmt::format("{}: {} -> {}, {} bytes added", path,
                     grouped(static_cast<std::uint64_t>(report.n_tokens_before)),
                     counted(report.n_tokens, "token"), grouped(report.bytes_written));
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

void add_cache_pair_flags(FlagSet& app, CachePairFlags& flags) {
  app.add("a", flags.a, "Reference cache")->type_name("")->file()->required();
  app.add("b", flags.b, "Cache to compare with it")->type_name("")->file()->required();
  add_first_tokens_flag(app, flags.first_tokens);
  add_resource_flags(app, flags.n_threads);
}

Result<CachePair> load_cache_pair(const Console& console, const CachePairFlags& flags) {
  if (flags.a == "-" && flags.b == "-")
    return usage_error("only one of the two caches can be standard input");
  format::ReadOptions read;
  read.n_threads = flags.n_threads;
  read.first_tokens = flags.first_tokens;
  read.verify_digests = true;
  CachePair pair;
  TQC_TRY_ASSIGN(pair.a, load_cache(console, flags.a, read));
  TQC_TRY_ASSIGN(pair.b, load_cache(console, flags.b, read));
  TQC_TRY_ASSIGN(pair.diff, in_file(flags.b, cache::diff(pair.a, pair.b, flags.n_threads)));
  return pair;
}

}  // namespace tqcache::cli
