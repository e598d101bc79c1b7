#pragma once
// format/cache_file.h: writes a cache as a .tqkv file, version 2, and reads it back. Reading is
// safe for untrusted input.
//
// A load is all or nothing. No size is used before the checksum that covers it, and nothing is
// allocated before a limit is checked.
//
// Spec: docs/reference/format.md.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tqcache/base/file.h"
#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/cache/reader.h"
#include "tqcache/format/manifest.h"

namespace tqcache::format {

struct WriteOptions {
  // A section that does not shrink is stored. kPlanes is for dense sections, whose values it takes
  // apart; packed ones become zstd frames then.
  Compression compression = Compression::kZstd;
  int zstd_level = 1;      // 1 to 19; packed codes gain nothing above 1
  unsigned n_threads = 0;  // 0: all processors
  // Sections are held in memory between being made and being written, but no more of them than
  // this, before compression, or a single one.
  std::uint64_t window_bytes = std::uint64_t{64} << 20;
  Overwrite overwrite = Overwrite::kRefuse;
  std::string writer = {};  // program and version, for people; empty: this library
  // Writes hashes of the tokens in the place of their ids (cache/token_hashes.h).
  bool hide_tokens = false;
};

// Writes `cache` to `path`, whole or not at all (base/file.h, AtomicFile). Besides the cache it
// takes the memory of a few sections; a stream (/dev/stdout) is written once all is computed, and
// so takes that of the whole file.
//
// Progress: bytes of sections before compression.
// Errors:   kInvalidArgument (level; the file exists), kTooLarge (a limit of
//           docs/reference/format.md), kIo, kInterrupted, and those of the reader or of
//           cache::validate.
// Bytes:    the same cache and options give the same bytes for any number of threads; across
//           zstd releases only with Compression::kNone.
Result<void> write_cache_file(const cache::CacheReader& cache, const std::filesystem::path& path,
                              const WriteOptions& options, const Progress& progress = {});
Result<void> write_cache_file(const cache::Cache& cache, const std::filesystem::path& path,
                              const WriteOptions& options, const Progress& progress = {});

// The same, into a file that the caller commits: it may look at it before.
Result<void> write_cache(const cache::CacheReader& cache, AtomicFile& file,
                         const WriteOptions& options, const Progress& progress = {});
Result<void> write_cache(const cache::Cache& cache, AtomicFile& file, const WriteOptions& options,
                         const Progress& progress = {});

// The same bytes in memory.
Result<Bytes> write_cache_bytes(const cache::CacheReader& cache, const WriteOptions& options,
                                const Progress& progress = {});
Result<Bytes> write_cache_bytes(const cache::Cache& cache, const WriteOptions& options,
                                const Progress& progress = {});

struct ReadOptions {
  unsigned n_threads = 0;
  // Only so many tokens from the first one on, without reading what belongs to the others alone. A
  // packed token block that is cut becomes the dense tail, as by cache::truncate(). Refused as
  // there when the file has fewer, or has state that cannot be cut.
  std::optional<std::int64_t> first_tokens = {};
  // Refused with kTooLarge when the values would take more memory than this.
  std::uint64_t max_payload_bytes = std::uint64_t{64} << 30;
  // Of sections that map_cache() leaves in the file. Everything that is copied to memory is held
  // against its checksum in any case.
  bool verify_checksums = true;
};

// Reads a whole cache, with every section's checksum.
//
// Progress: bytes of sections before compression.
// Errors:   kTruncated, kCorrupt, kUnsupported (version, feature, cache_type_id), kTooLarge, kIo,
//           kInterrupted. The message names the section.
Result<cache::Cache> read_cache(const ByteSource& source, const ReadOptions& options = {},
                                const Progress& progress = {});

// The same cache without a copy of its packed token blocks: those that stand in the file
// uncompressed are used where they are, mapped, for as long as any copy of the cache lives. All
// else is read and copied. So a long cache that was written with Compression::kNone opens in the
// time that its checksums take; without verify_checksums, in that of its manifest, and pages come
// as they are used.
//
// It is for the user's own files. Whoever cuts the file while it is mapped ends this process with
// SIGBUS, and whoever writes into it changes the cache after it was checked; neither can be told
// beforehand. A file that tqcache replaces is safe: that is a new file under the old name. What
// comes from anywhere is for read_cache().
//
// Progress: as read_cache. Errors: as read_cache, and kNotFound.
Result<cache::Cache> map_cache(const std::filesystem::path& path, const ReadOptions& options = {},
                               const Progress& progress = {});

// Whether the first bytes are those of a .tqkv file, damaged or not: for telling formats apart.
bool looks_like_cache_file(const ByteSource& source);

// All that the file says of itself, without reading a single section.
struct CacheFileInfo : Manifest {
  std::uint32_t version = 0;
  std::uint32_t generation = 0;  // of the header slot in use
  std::uint32_t required_features = 0;
  std::uint32_t optional_features = 0;
  std::uint64_t file_bytes = 0;  // of the state in use
  std::uint64_t manifest_bytes = 0;
  std::uint64_t gap_bytes = 0;       // dead, until the file is compacted
  std::uint64_t trailing_bytes = 0;  // behind file_bytes, of an append that did not come to its end
  std::vector<std::string> damage = {};  // of the header slot not in use: perhaps of a newer state
  std::uint64_t padding_bytes = 0;       // between sections, and before the manifest
};

// Errors: as read_cache, but for what only reading the sections shows.
Result<CacheFileInfo> read_cache_info(const ByteSource& source);

struct VerifyReport {
  CacheFileInfo info;
  std::uint64_t sections_checked = 0;
  std::uint64_t bytes_checked = 0;  // of the file
  std::vector<std::string> damage;  // one line each; empty: the file is whole
};

// Checks everything a file says of itself: both header slots, padding, checksums, SHA-256 of the
// content, the rules of docs/reference/format.md, and that every packed scale and dense value is
// finite. Goes on after a damaged section, so that the report names all of them.
//
// Progress: bytes of sections before compression.
// Errors:   as read_cache_info, when the file cannot even be listed; kTooLarge, kInterrupted.
Result<VerifyReport> verify_cache(const ByteSource& source, const ReadOptions& options = {},
                                  const Progress& progress = {});

}  // namespace tqcache::format
