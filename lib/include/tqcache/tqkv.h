#pragma once
// tqcache/tqkv.h: .tqkv files, version 2: writing, reading, mapping, verifying, appending and
// compacting.
//
//   TQC_TRY(tqcache::format::write_cache_file(cache, "book.tqkv", {}));
//   TQC_TRY_ASSIGN(const auto file, tqcache::open_file("book.tqkv"));
//   TQC_TRY_ASSIGN(const auto report, tqcache::format::verify_cache(*file));
//
// Reading is safe for untrusted input. A load is all or nothing. No size is used before the
// checksum that covers it, and nothing is allocated before a limit is checked.
//
// Spec: docs/reference/format.md.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tqcache/access.h"
#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/hash.h"
#include "tqcache/predict.h"
#include "tqcache/progress.h"
#include "tqcache/quantize.h"
#include "tqcache/reader.h"

namespace tqcache::format {

// --- The manifest: everything but the values of the cache (docs/reference/format.md §4)

using cache::BlockKey;
using cache::Compression;
using cache::Prediction;
using cache::TensorKind;

// 32 random bytes.
using Salt = std::array<std::byte, 32>;

// The authentication of a section of an encrypted file.
struct Seal {
  std::uint32_t write = 0;          // index into Encryption::writes
  std::uint32_t number = 0;         // of the section within this write
  std::array<std::byte, 16> tag{};  // of AES-256-GCM
};

// One row of the section table: a block of the cache and its place in the file.
struct SectionInfo : cache::BlockInfo {
  Compression compression = Compression::kNone;
  std::uint64_t file_offset = 0;
  Checksum128 checksum;  // of the stored bytes
  Sha256 raw_sha256{};   // of the bytes before compression
  Seal seal = {};        // in encrypted files
};

// Dead space in a file that was appended to: an old manifest, or a section that was replaced.
struct GapInfo {
  std::uint64_t file_offset = 0;
  std::uint64_t bytes = 0;
  Checksum128 checksum;
};

// The encryption of a file (docs/reference/format.md §15).
struct Encryption {
  KeyId key_id{};
  Salt file_id{};
  std::vector<Salt> writes;  // one for each write, the newest last, whose sections are in the file
};

class PredictedBlocks;  // not for users of the library

// The description of a cache, and the fields that only a file has.
struct Manifest : cache::CacheDesc {
  std::string writer;  // program and version that wrote the file
  // First those of the cache, then those of its checkpoints. Sections of checkpoint c have layer
  // numbers from layers.size() + c * checkpoints[c].layers.size() on: layer_of().
  std::vector<SectionInfo> sections;
  std::vector<GapInfo> gaps = {};  // ascending
  Sha256 content_name{};           // docs/reference/format.md §Content name; gaps do not count
  std::optional<Encryption> encryption = {};            // nullopt: a plain file
  std::vector<cache::CheckpointDesc> checkpoints = {};  // ascending numbers of tokens
  std::optional<Prediction> prediction = {};            // present exactly if a section is predicted
  std::shared_ptr<PredictedBlocks> predicted = {};      // decoded blocks of the file that is read
};

// The layer that a section belongs to, and the number of tokens at which its state was kept.
const cache::LayerDesc& layer_of(const Manifest& manifest, const cache::BlockInfo& section);
std::int64_t tokens_of(const Manifest& manifest, const cache::BlockInfo& section);

// Number of sections of the cache itself, without its checkpoints.
std::size_t count_cache_sections(const Manifest& manifest);

// --- Writing and reading

// What opens files.
struct Access {
  KeyRing keys = {};                // of encrypted files
  MemoryBudget memory = {};         // files whose values would take more are refused: kTooLarge
  predict::Profiles profiles = {};  // that predicted archives need
};

struct WriteOptions {
  // A section that does not shrink is stored uncompressed. kPlanes separates the bytes of dense
  // values; packed sections then become zstd frames.
  Compression compression = Compression::kZstd;
  // Blocks that the reader has stored (CacheReader::stored()) stay as they are stored, predicted
  // ones too. Otherwise all are compressed anew, and predicted blocks become dense.
  bool keep_stored = false;
  int zstd_level = 1;      // 1 to 19; packed codes gain nothing above 1
  unsigned n_threads = 0;  // 0: all processors
  // Maximum bytes, before compression, of sections held in memory between being made and being
  // written; a single larger section is allowed.
  std::uint64_t window_bytes = std::uint64_t{64} << 20;
  Overwrite overwrite = Overwrite::kRefuse;
  std::string writer = {};  // program and version, for display; empty: this library
  // Writes hashes of the tokens instead of their ids (tqcache/cache.h).
  bool hide_tokens = false;
  // Encrypts a new file with the first of these keys; without keys it is plain.
  KeyRing keys = {};
};

// Writes `cache` to `path`, whole or not at all (tqcache/file.h, AtomicFile). Needs memory for a
// few sections besides the cache; a stream (/dev/stdout) gets it when everything is computed, from
// a temporary file.
//
// Progress: bytes of sections before compression.
// Errors:   kInvalidArgument (level; the file exists), kTooLarge (a limit of
//           docs/reference/format.md), kIo, kInterrupted, and those of the reader or of
//           cache::validate.
// Bytes:    the same cache and options give the same bytes for any number of threads; across
//           zstd releases only with Compression::kNone. An encrypted file has random bytes.
Result<void> write_cache_file(const cache::CacheReader& cache, const std::filesystem::path& path,
                              const WriteOptions& options, const Progress& progress = {});
Result<void> write_cache_file(const cache::Cache& cache, const std::filesystem::path& path,
                              const WriteOptions& options, const Progress& progress = {});

// The same, into a file that the caller commits and may inspect before.
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
  // If given, loads only this many first tokens, without reading blocks of later ones. A packed
  // token block that is cut becomes the dense tail, as in cache::truncate(). Errors as there when
  // the file has fewer tokens, or state that cannot be cut.
  std::optional<std::int64_t> first_tokens = {};
  // For sections that map_cache() leaves in the file. Everything that is copied to memory is
  // checked in any case.
  bool verify_checksums = true;
  // Called with the description of the file before its values take memory, to check that they are
  // wanted. An error ends the reading. May be empty.
  std::function<Result<void>(const cache::CacheDesc& description)> accept = {};
  // Compares the content of every section that is read with its SHA-256, too, so that the cache is
  // the one that the content digest names. Checksums alone show damage, not forgery.
  bool verify_digests = false;
  Access access = {};
};

// Reads a whole cache and checks the checksum of every section.
//
// Progress: bytes of sections before compression.
// Errors:   kTruncated, kCorrupt, kUnsupported (version, feature, cache_type_id), kTooLarge, kIo,
//           kNoKey (an encrypted file whose key is not given), kInterrupted. The message names the
//           section.
Result<cache::Cache> read_cache(const ByteSource& source, const ReadOptions& options = {},
                                const Progress& progress = {});

// The same cache without copying its packed token blocks: uncompressed ones of a plain file are
// used in the mapped file, which stays mapped while any copy of the cache lives. Everything else is
// copied. So a long cache written with Compression::kNone opens in the time of its checksums;
// without verify_checksums, in the time of its manifest, and pages are loaded on use.
//
// Use it for your own files. If another process truncates the mapped file, this process ends with
// SIGBUS, and writes to it change the cache after it was checked. Replacing the file with tqcache
// is safe: that makes a new file under the old name. Use read_cache() for files of unknown origin.
//
// Progress: as read_cache. Errors: as read_cache, and kNotFound.
Result<cache::Cache> map_cache(const std::filesystem::path& path, const ReadOptions& options = {},
                               const Progress& progress = {});

// Whether the first bytes are those of a .tqkv file, damaged or not. For format detection.
bool looks_like_cache_file(const ByteSource& source);

// The metadata of a file, read without any section.
struct CacheFileInfo : Manifest {
  std::uint32_t version = 0;
  std::uint32_t generation = 0;  // of the header slot in use
  std::uint32_t required_features = 0;
  std::uint32_t optional_features = 0;
  std::uint64_t file_bytes = 0;  // of the state in use
  std::uint64_t manifest_bytes = 0;
  std::uint64_t gap_bytes = 0;           // dead space, until the file is compacted
  std::uint64_t trailing_bytes = 0;      // after file_bytes, from an append that did not finish
  std::vector<std::string> damage = {};  // in the unused header slot, which may be a newer state
  std::uint64_t padding_bytes = 0;       // between sections, and before the manifest
};

// Errors: as read_cache, except for damage inside sections.
Result<CacheFileInfo> read_cache_info(const ByteSource& source, const KeyRing& keys = {});

struct VerifyReport {
  CacheFileInfo info;
  std::uint64_t sections_checked = 0;
  std::uint64_t bytes_checked = 0;  // of the file
  std::vector<std::string> damage;  // one line each; empty: the file is whole
};

// Checks a whole file: both header slots, padding, checksums, SHA-256 of the content, the rules of
// docs/reference/format.md, and that every packed scale and dense value is finite. Continues
// after a damaged section, so that the report names all of them.
//
// Progress: bytes of sections before compression.
// Errors:   as read_cache_info, when the sections cannot be listed; kTooLarge, kInterrupted.
Result<VerifyReport> verify_cache(const ByteSource& source, const ReadOptions& options = {},
                                  const Progress& progress = {});

// --- Appending
//
// New sections and a new manifest are written after the old end; then one header slot of 64 bytes
// switches from the old state to the new one. A reader always finds one complete state, old or
// new, even after a crash. Spec: docs/reference/format.md, "Appending".

struct AppendReport {
  std::int64_t n_tokens_before = 0;
  std::int64_t n_tokens = 0;
  std::uint64_t bytes_written = 0;  // 0: the file already held everything
  std::uint64_t file_bytes = 0;
  std::uint64_t gap_bytes = 0;  // dead space in the file now
};

// A file that only this process may write to. Threads: one at a time.
class CacheAppender {
 public:
  // Locks the file and reads its manifest.
  // Errors: kNotFound, kBusy, kIo, and those of read_cache_info().
  static Result<CacheAppender> open(const std::filesystem::path& path, const Access& access = {});

  CacheAppender(CacheAppender&&) noexcept;
  CacheAppender& operator=(CacheAppender&&) noexcept;
  ~CacheAppender();

  // The current metadata of the file.
  const CacheFileInfo& info() const;

  // Reads the cache from the file, always with verify_digests. A later append() assumes that the
  // token blocks before the last one have not changed since; the blocks of a cache that was not
  // read here are compared with the file. options.access is ignored. Errors: as read_cache().
  Result<cache::Cache> read(const ReadOptions& options = {}, const Progress& progress = {});

  // Extends the file to `cache`, which is its content with tokens added. First removes what an
  // interrupted append left. A later append() does not compare the token blocks before the last one
  // again, as after read().
  //
  // options.overwrite and writer are ignored. A file with hidden tokens keeps them hidden and needs
  // a cache with known tokens; a file with token ids cannot hide them any more. An encrypted file
  // stays encrypted with its own key; options.keys for a plain one is an error.
  // Progress: bytes of new sections before compression.
  // Errors:   kMismatch when the cache is not the file's content with tokens added (other tokens,
  //           identity, layers, or fewer tokens); kCorrupt when a section that stays is not the one
  //           of its SHA-256; kUnsupported when hidden tokens cannot be compared; kInvalidArgument
  //           (level, hide_tokens, keys); kTooLarge, kIo, kInterrupted, and those of
  //           cache::validate. The file is then unchanged and can be appended to again; only if the
  //           very last flush fails (kIo), it may already hold the new state.
  // Durable:  once this returns, the new state survives a power loss.
  Result<AppendReport> append(const cache::Cache& cache, const WriteOptions& options,
                              const Progress& progress = {});

 private:
  struct State;
  explicit CacheAppender(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct CompactReport {
  std::uint64_t bytes_before = 0;
  std::uint64_t bytes_after = 0;
  bool rewritten = false;  // false: there was no dead space
};

// Rewrites the file without dead space, and replaces the old one when the new one is complete on
// disk. Sections stay as they are stored. The content digest stays the same. options.overwrite,
// compression, writer, hide_tokens and keys are ignored. An encrypted file stays encrypted with its
// own key, which access.keys has to contain; a plain one stays plain.
//
// Memory:   options.window_bytes and one section per thread.
// Progress: bytes of sections before compression.
// Errors:   as CacheAppender::open(); kCorrupt (a section is damaged), kIo, kInterrupted. The old
// file is then unchanged.
Result<CompactReport> compact_file(const std::filesystem::path& path, const WriteOptions& options,
                                   const Progress& progress = {}, const Access& access = {});

// Writes the cache of the file at `path` to `out`, which may be `path`, encrypted with the first of
// options.keys, or plain if there are none. access.keys has the key of the file, if it has one.
// Everything else is as in compact_file(), but options.overwrite counts if `out` is another file.
// The content digest stays the same.
Result<CompactReport> rekey_file(const std::filesystem::path& path, const Access& access,
                                 const std::filesystem::path& out, const WriteOptions& options,
                                 const Progress& progress = {});

// --- Conversion from file to file, in bounded memory

// Writes to `path`, whole or not at all, exactly the bytes that read_cache(), cache::convert() and
// write_cache_file() would write for `source`. Of `read`, `access` and `first_tokens` count.
//
// Every section is compared with its SHA-256: the result is made of what the content digest names.
// Reads every token block once; with Fit::kPrompt those that codecs are fitted to are read twice.
// `source` may be the file that `path` replaces (write.overwrite): it is replaced at the end.
// options.n_threads is used, write.n_threads is ignored.
//
// Memory:   that of cache::quantize(), then write.window_bytes and one token block per thread.
// Progress: bytes of the source before compression.
// Errors:   as read_cache(), but access.memory applies to each section alone; as cache::convert(),
//           first for windows and then in the order of the file's sections; as write_cache_file().
//           kInterrupted.
Result<void> convert_file(const ByteSource& source, const std::filesystem::path& path,
                          const cache::ConvertOptions& options, const WriteOptions& write,
                          const Progress& progress = {}, const ReadOptions& read = {});

// The same for any reader. If the plans leave every K and V as it is, the cache is written
// unchanged.
//
// Errors: those of the reader in place of read_cache()'s.
Result<void> convert_file(const cache::CacheReader& source, const std::filesystem::path& path,
                          const cache::ConvertOptions& options, const WriteOptions& write,
                          const Progress& progress = {});

// The same into a new file that the caller commits. write.overwrite is ignored.
Result<void> convert_file(const cache::CacheReader& source, AtomicFile& file,
                          const cache::ConvertOptions& options, const WriteOptions& write,
                          const Progress& progress = {});

// --- Archives of a given size
//
// The bits that a quantization step takes depend on the vectors. So some token blocks of K and V of
// every layer are encoded with a few steps, and the step for the whole file is interpolated from
// their sizes. Spec: docs/reference/codec.md §10, "Rate".

// The target of an archive: exactly one of the three.
struct ArchiveTarget {
  // Bits of the whole file per key or value component: sections, means, section table, token ids
  // and everything else. 1 to 8.
  std::optional<double> bits;
  // |x - x^|^2 / |x|^2 of the quantized data, without the mean. 0.0001 to 0.5.
  std::optional<double> mse;
  // The step itself, 1/64 to 8; only the use of transforms is then chosen.
  std::optional<double> step = {};
};

inline constexpr double kMinArchiveBits = 1.0;
inline constexpr double kMaxArchiveBits = 8.0;
inline constexpr double kMinArchiveMse = 0.0001;
inline constexpr double kMaxArchiveMse = 0.5;

// The same options with the steps of keys and values set. Both get one step, which is multiplied by
// the weights of the layers. `fit` becomes Fit::kPrompt: transforms need more vectors than one
// block has, and no other prompt shares the blocks of an archive.
//
// Reads at most 32 token blocks of each K or V that is quantized, one K or V after another, and up
// to 8 of them again for each step that it tries.
// Requires: both plans are of mode trellis, or dense, or keep quantized data.
// Errors:   kInvalidArgument for a target out of range, or one that no step meets: the message
//           gives the file size without the packed sections; for windows that are to be quantized;
//           those of the source; as cache::plan_layers(), as convert_file() for quantized data.
//           kInterrupted.
// Value:    the same for any number of threads.
Result<cache::ConvertOptions> choose_step(const cache::CacheReader& source,
                                          const cache::ConvertOptions& options,
                                          const ArchiveTarget& target,
                                          const Progress& progress = {});

}  // namespace tqcache::format
