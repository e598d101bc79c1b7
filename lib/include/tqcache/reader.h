#pragma once
// tqcache/reader.h: a cache that is read block by block from any source: a file of tqcache or of
// another program, a store, memory, or a view that quantizes or dequantizes another reader.
//
//   TQC_TRY_ASSIGN(auto opened, interop::open_any("in.safetensors"));
//   TQC_TRY_ASSIGN(const auto quantized, cache::quantize(std::move(opened.cache), options));
//   TQC_TRY(format::write_cache_file(*quantized, "out.tqkv", {}));
//
// Views (quantize(), dequantize(), first_tokens(), with_identity()) read from another reader and
// hold no values of their own. Sinks (load(), format::write_cache_file(), exporters, a store's
// put()) take any reader. So memory does not grow with the cache.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tqcache/access.h"
#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/hash.h"
#include "tqcache/progress.h"

namespace tqcache::cache {

// What a block contains. The numbers are those in files.
enum class TensorKind : std::uint8_t {
  kKeys = 0,
  kValues = 1,
  kArray = 2  // recurrent state, or "keys" and "values" of a dense sliding window
};

struct BlockKey {
  std::int64_t layer = 0;
  TensorKind tensor = TensorKind::kKeys;
  std::int64_t block = 0;  // token block, or the index of the array

  auto operator<=>(const BlockKey&) const = default;  // not the order of blocks()
};

// A token block of K or V of a layer, or an array: what a reader delivers per call.
struct BlockInfo {
  std::int64_t layer = 0;
  TensorKind tensor = TensorKind::kKeys;
  std::int64_t block = 0;          // token block, or the index of the array
  bool packed = false;             // quantized codes; otherwise dense values or an array
  std::uint64_t raw_bytes = 0;     // before compression
  std::uint64_t stored_bytes = 0;  // in the source file or store; 0: unknown
};

inline BlockKey key_of(const BlockInfo& block) { return {block.layer, block.tensor, block.block}; }

// The name of a block in messages, such as "section 12 (layer 3 k, block 0)" for block 12.
std::string block_place(std::size_t index, const BlockInfo& block);

// The compression of a stored block: none, one zstd frame, byte planes, trellis symbols, or the
// residual of a prediction. Only dense blocks and arrays can have planes; only dense blocks of
// attention layers are predicted. The numbers are those in files.
enum class Compression : std::uint8_t {
  kNone = 0,
  kZstd = 1,
  kPlanes = 2,
  kSymbols = 3,
  kPredicted = 4
};

// How predicted blocks were made (docs/reference/format.md §6.7).
struct Prediction {
  Sha256 profile{};          // digest of the profile that is needed to read them
  float step = 0;            // of the quantization
  std::int64_t n_sinks = 0;  // first tokens of the cache that are stored as they are
};

// What a file or a store says of the bytes that it has of a block.
struct StoredBlock {
  Compression compression = Compression::kNone;
  Checksum128 checksum;  // of the stored bytes
  Sha256 raw_sha256{};   // of the bytes before compression
};

// Memory for this many bytes, which the caller owns.
using Room = std::function<std::span<std::byte>(std::size_t n_bytes)>;

class CacheReader;

// A context checkpoint: an earlier state of the layers that cannot go back to fewer tokens, sliding
// windows and recurrent state (docs/reference/format.md §4.7). Together with the first keys and
// values of the other layers it is the whole cache at that number of tokens: first_tokens().
struct Checkpoint {
  // A cache of its own, with these layers alone, in the cache's order, and hidden tokens without
  // hashes. It holds as many tokens as the cache did. Its last layer may be an opaque one, which is
  // no layer of the cache.
  std::shared_ptr<const CacheReader> state;
  // The first position that the program which made the checkpoint still held, for its own use.
  std::int64_t first_position = 0;

  std::int64_t n_tokens() const;
};

// Threads: any number may read at once.
class CacheReader {
 public:
  CacheReader() = default;
  CacheReader(const CacheReader&) = delete;
  CacheReader& operator=(const CacheReader&) = delete;
  CacheReader(CacheReader&&) = default;
  CacheReader& operator=(CacheReader&&) = default;
  virtual ~CacheReader() = default;

  // Satisfies validate(const CacheDesc&).
  virtual const CacheDesc& description() const = 0;

  // Exactly the blocks that the description implies (docs/reference/format.md §6), in that order:
  // by token block, then by layer, keys before values; then all arrays.
  virtual const std::vector<BlockInfo>& blocks() const = 0;

  // The bytes of a block before compression, as docs/reference/format.md §6 defines them. `raw` is
  // resized to them; its memory is reused if it is large enough.
  //
  // Errors: those of the source. The message names the block.
  virtual Result<void> read(std::size_t block, AlignedBytes& raw) const = 0;

  // The same bytes, shared with the reader if it has them in memory, aligned to 64 bytes.
  virtual Result<SharedBytes> share(std::size_t block) const;

  // A block as the source stores it, so that a copy can keep it as it is: the stored bytes,
  // checked, or for an encrypted source decrypted, go where `room` says. nullopt, without a call of
  // `room`: the source has no stored bytes of it. Predicted ones have prediction().
  //
  // Errors: those of the source, as read().
  virtual Result<std::optional<StoredBlock>> stored(std::size_t block, const Room& room) const;

  // How predicted blocks were made; nullopt: none is predicted.
  virtual std::optional<Prediction> prediction() const { return {}; }

  // Earlier states of the cache, in ascending order of tokens. Satisfy validate_checkpoints(). Most
  // readers have none. They live as long as the reader.
  virtual std::span<const Checkpoint> checkpoints() const { return {}; }

  std::int64_t n_tokens() const { return description().n_tokens(); }
};

inline std::int64_t Checkpoint::n_tokens() const { return state->n_tokens(); }

// A reader that the caller owns and must keep alive.
inline std::shared_ptr<const CacheReader> borrow(const CacheReader& reader) {
  return {std::shared_ptr<const void>(), &reader};
}

// --- Memory

// A cache in memory. Requires: validate(cache).
std::shared_ptr<const CacheReader> reader_of(std::shared_ptr<const Cache> cache);
// `cache` must outlive the reader, and must not be changed while the reader is used.
std::shared_ptr<const CacheReader> reader_of(const Cache& cache);

struct LoadOptions {
  MemoryBudget memory = {};
  unsigned n_threads = 0;  // 0: all processors
};

// Reads a whole cache into memory. Quantized blocks that the reader has in memory stay shared.
//
// Progress: bytes of blocks.
// Errors:   those of the reader; kTooLarge (more memory than that); kCorrupt (transforms with
//           linearly dependent rows); kInterrupted.
Result<Cache> load(const CacheReader& reader, const LoadOptions& options = {},
                   const Progress& progress = {});

// --- Views

// A view with K and V of every layer dense; quantized tensors get the dtype of their dense tail.
// Quantized windows become arrays, as dense ones are.
//
// Errors: kUnsupported, kCorrupt (invalid codecs).
Result<std::shared_ptr<const CacheReader>> dequantize(std::shared_ptr<const CacheReader> source);

// A view of the first `n_tokens` tokens. Blocks of later tokens are never read. A quantized block
// that is cut becomes the dense tail, as in truncate(). Sliding windows and recurrent state go back
// to a checkpoint of exactly `n_tokens` tokens, if there is one; earlier checkpoints remain.
//
// Errors: as truncate(); those of dequantize().
Result<std::shared_ptr<const CacheReader>> first_tokens(std::shared_ptr<const CacheReader> source,
                                                        std::int64_t n_tokens);

// The most tokens, at most `n_tokens`, at which first_tokens() can cut this cache: `n_tokens`
// itself unless a layer cannot go back; otherwise those of the last checkpoint up to there, or all
// tokens of the cache, or 0.
std::int64_t last_state_before(const CacheReader& cache, std::int64_t n_tokens);

// The same values without checkpoints.
std::shared_ptr<const CacheReader> without_checkpoints(std::shared_ptr<const CacheReader> source);

// The same values with another identity, such as that of the model known to have made them.
std::shared_ptr<const CacheReader> with_identity(std::shared_ptr<const CacheReader> source,
                                                 Identity identity);

}  // namespace tqcache::cache
