#pragma once
// tools/cli/cache_io.h: cache files of every version, by name; "-" is standard input or output.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/common_flags.h"
#include "cli/console.h"
#include "cli/flags.h"
#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/interop.h"
#include "tqcache/tqkv.h"

namespace tqcache::cli {

using interop::FileKind;

// Metadata of a file of version 1.
struct V1Summary {
  std::vector<std::string> class_paths;  // of every layer, in order
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<std::string> notes;  // on what version 2 stores in another way
};

struct V1Input {
  V1Summary summary;
  std::unique_ptr<ByteSource> source;  // in version 2, in memory
};

// "version 1 is read only; ...", for verbs that change a file in place.
Error v1_is_read_only();

// Reads a file of version 1 and warns about its version. Messages use `name`. With `compare`, every
// value of the result is compared with the file.
//
// Memory: the file, decompressed, and its copy in version 2.
Result<V1Input> read_v1_input(const Console& console, const ByteSource& file,
                              const std::string& name, unsigned n_threads, bool compare = false);

// The name of a path in messages.
std::string display_name(const std::string& path, std::string_view dash_means);

// Whether two names refer to one file. False if either does not exist, unless the names are equal.
bool same_file(const std::string& a, const std::string& b);

// All of standard input. Errors: kIo, kTooLarge, kInterrupted.
Result<Bytes> read_stdin(std::uint64_t max_bytes);

// A text file, a pipe such as <(command), a device, or "-".
// Errors: those of read_file() and read_stdin().
Result<Bytes> read_input(const std::string& path, std::uint64_t max_bytes);

// A file of any kind with random access; standard input and pipes are first read completely.
Result<std::unique_ptr<ByteSource>> open_source(const std::string& path);

// The kind of a cache file of any program, by its content; nullopt: unknown.
// Errors: kUnsupported for what is clearly no cache; those of interop::detect_kind().
Result<std::optional<FileKind>> known_kind(const ByteSource& source);

// The same, where a file of unknown content counts as a .tqkv file, whose reader says what is
// wrong.
Result<FileKind> kind_of_cache(const ByteSource& source);

// The same where only .tqkv files are read: kTqkv or kTqkvVersion1.
// Errors: also kUnsupported for a cache of another program; the message names the verb that reads
//         it.
Result<FileKind> own_kind(const ByteSource& source);

// Tells of a file that is not encrypted though a key is given: whoever could write it could put it
// in the place of an encrypted one. To be called for every cache file that a verb reads, with the
// source that it reads, so that it is the same file. Without keys it does nothing.
// Errors: kNoKey with --require-encrypted, for files of other programs too, which get no warning.
Result<void> check_encrypted(const Console& console, const std::string& name,
                             const ByteSource& source);

// A cache file of any version.
struct CacheInput {
  std::string name;              // for messages
  std::uint64_t file_bytes = 0;  // of the original file
  // In version 2; older versions are migrated in memory.
  std::shared_ptr<const ByteSource> source;
  std::optional<V1Summary> v1;  // of a file of version 1
};

// Opens a cache file, with a warning if it is of an older version or if a newer state may be lost.
// Errors: kUnsupported for a file of another program, which `tqcache convert` reads; those of
//         check_encrypted().
Result<CacheInput> open_cache(const Console& console, const std::string& path, unsigned n_threads);
// As above, for an open file whose kind is known.
Result<CacheInput> cache_input(const Console& console, std::string name, FileKind kind,
                               std::shared_ptr<const ByteSource> source, unsigned n_threads);

// Reads a cache with the keys of the console. options.access is ignored.
Result<cache::Cache> load_cache(const Console& console, const std::string& path,
                                const format::ReadOptions& options);

// As above without copying uncompressed sections: format::map_cache() says which files allow it.
// Standard input and older versions are copied.
Result<cache::Cache> map_cache(const Console& console, const std::string& path,
                               const format::ReadOptions& options);

// The last state of the file of at most `n_tokens` tokens: a context checkpoint, if its layers
// cannot go back otherwise. nullopt: there is none, or the file is standard input.
// options.first_tokens and keys are ignored. Errors: as load_cache().
Result<std::optional<cache::Cache>> load_state_before(const Console& console,
                                                      const std::string& path,
                                                      std::int64_t n_tokens,
                                                      const format::ReadOptions& options);

// Rejects an output that cannot be written, before hours are spent on its content.
Result<void> check_output(const std::string& path, bool force);

// Bytes of a file; 0 for a device, which has none.
std::uint64_t size_on_disk(const std::string& path);

// Writes a cache with the keys of the console; options.keys is ignored. Returns the bytes written.
Result<std::uint64_t> save_cache(const Console& console, const cache::Cache& cache,
                                 const std::string& path, const format::WriteOptions& options);

// The file stays locked as long as this lives; other writers are rejected.
class GrowingFile {
 public:
  // Errors: kBusy; kUnsupported for version 1; those of format::CacheAppender::open().
  static Result<GrowingFile> open(const Console& console, const std::string& path);

  const std::string& path() const { return path_; }

  Result<cache::Cache> read(const Console& console, const format::ReadOptions& options);

  // By default, new sections are compressed like the old ones: an uncompressed file, which can be
  // mapped, stays uncompressed. Errors: those of format::CacheAppender::append(); kInvalidArgument
  // (flags).
  Result<format::AppendReport> append(const Console& console, const cache::Cache& cache,
                                      const CompressionFlags& flags, unsigned n_threads);

 private:
  GrowingFile(std::string path, format::CacheAppender appender)
      : path_(std::move(path)), appender_(std::move(appender)) {}

  std::string path_;
  format::CacheAppender appender_;
};

// "talk.tqkv: 512 -> 640 tokens, 12,345 bytes added"
std::string append_text(const std::string& path, const format::AppendReport& report);

Json append_json(const std::string& path, const format::AppendReport& report);

struct CachePairFlags {
  std::string a;  // the reference
  std::string b;
  std::optional<std::int64_t> first_tokens;
  unsigned n_threads = 0;
};

void add_cache_pair_flags(FlagSet& app, CachePairFlags& flags);

struct CachePair {
  cache::Cache a;
  cache::Cache b;
  cache::CacheDifference diff;
};

// Errors: kInvalidArgument if both are standard input; those of reading, and of cache::diff.
Result<CachePair> load_cache_pair(const Console& console, const CachePairFlags& flags);

}  // namespace tqcache::cli
