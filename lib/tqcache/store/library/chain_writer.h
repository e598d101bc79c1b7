#pragma once
// store/library/chain_writer.h: the writer of a block-hash chain, block by block.
//
// The order is: parameters, blocks, the snapshot after them, the record. So everything that a
// reader finds is complete.
//
// Spec: docs/reference/store.md, "Putting".

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/store.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_keys.h"

namespace tqcache::store {

// Blobs are put many at a time, by another thread. Up to twice 32 MiB and one block are held until
// flush() or put_snapshot(), which also return the errors of earlier puts.
//
// Threads: one at a time. Several writers of one chain may work at once, also in several processes.
class ChainWriter {
 public:
  // Finds these parameters in a slot of their first block, or puts them into a free one. If other
  // parameters take all slots, or if their identity was not checked, they get a key that only
  // records name. Bad blobs there are reported to `on_warning` and removed.
  // Requires: parameters.tokens are the first block, or all tokens of a shorter prompt; means are
  //           fixed if there is a final block. `backend` must outlive this.
  // Errors:   those of the backend.
  static Result<ChainWriter> open(Backend& backend, std::string_view salt, Parameters parameters,
                                  OnWarning on_warning = {});

  ChainWriter(ChainWriter&&) noexcept;
  ChainWriter& operator=(ChainWriter&&) noexcept;
  ~ChainWriter();

  // The number of blocks that were put or skipped.
  std::int64_t n_blocks() const { return static_cast<std::int64_t>(chain().size()); }
  const std::vector<Sha256>& chain() const;
  const std::string& parameters_key() const;
  // Whether readers find the chain by its tokens, not only by a record.
  bool is_findable() const;
  const Sha256& name_space() const;
  const Sha256& root() const;

  // The number of flushed blocks that did not exist before.
  std::int64_t new_blocks() const;
  // The size of all blobs that were put or found, and of those that did not exist before. What
  // put_nexts() has put is in the second one alone: other prompts share it.
  std::uint64_t bytes() const;
  std::uint64_t new_bytes() const;
  std::uint64_t next_bytes() const;  // that put_nexts() has put

  // Keys of all parts of the complete token blocks of `tokens` from block n_blocks() on:
  // [block][part].
  // Requires: the first n_blocks() blocks of `tokens` are those of the chain.
  std::vector<std::vector<std::string>> keys(std::span<const std::int32_t> tokens) const;

  // Whether the store held blocks with other bytes than those that were put. They stay, as far as
  // they are whole and have the SHA-256 that they state.
  bool has_met_others() const;

  // Whether the store has each of these blocks with all parts, in one batch. They are not read.
  Result<std::vector<bool>> has(std::span<const std::int32_t> tokens);

  // Skips the next block because the store has it. `bytes`: the size of its blobs, if known.
  // Errors: those of the backend.
  Result<void> skip_block(std::span<const std::int32_t> block_tokens, std::uint64_t bytes = 0);

  // Puts the next block. `media`: the spans that begin in it.
  // Requires: 256 tokens.
  // Errors:   kInvalidArgument if these are not exactly the sections of the block, in their order;
  //           those of the backend.
  Result<void> put_block(std::span<const std::int32_t> block_tokens,
                         std::vector<StoredSection> sections,
                         std::vector<cache::MediaSpan> media = {});

  // Returns when all blobs are acknowledged.
  Result<void> flush();

  // Notes which blocks were put behind which, so that prompts that part within one find it. Nothing
  // if the cache cannot be truncated.
  // Requires: flush(); `tokens` are those of all n_blocks() blocks.
  Result<void> put_nexts(std::span<const std::int32_t> tokens);

  // Puts the sections of a snapshot as data blobs, and sets its data_keys and data_bytes. Existing
  // blobs are compared, and not sent again if they are whole.
  Result<void> put_data(Snapshot& snapshot, std::vector<StoredSection> sections);

  // Puts the snapshot: tail, windows and arrays. Returns the key of a snapshot with this tail, or
  // "" if other snapshots take all slots after the block: then no prefix ends with this one. If a
  // complete snapshot with the same tail exists, it replaces `snapshot`, unless that has a content
  // digest; then only the slot is shared.
  // Requires: n_blocks() == final_blocks(snapshot.n_tokens) > 0.
  Result<std::string> put_snapshot(Snapshot& snapshot, std::vector<StoredSection> sections);

 private:
  struct Chain;
  explicit ChainWriter(std::unique_ptr<Chain> chain);
  std::unique_ptr<Chain> chain_;
};

}  // namespace tqcache::store
