#pragma once
// store/library/chain_writer.h: puts a prompt block by block, as its blocks become final.
//
// Parameters first, then blocks in their order, then the state behind them, then the record: so
// whatever a reader finds, what it needs is there, too.
//
// Spec: docs/reference/store.md, "Putting".

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/keys.h"

namespace tqcache::store {

// Blobs are put many at a time, by a thread of its own: those of several blocks are held, up to
// twice 32 MiB and a block, until flush() or put_state(), which also give the errors of what was
// put meanwhile.
//
// Threads: one at a time. Several writers of one chain, in any processes, do each other no harm.
class ChainWriter {
 public:
  // Finds these parameters in the slots of the first block, or takes a slot for them. What is bad
  // there is told to `on_trouble` and removed.
  // Requires: parameters.tokens are the first block's, or all of a prompt that has no whole one;
  //           means are fixed if there is a final block. `backend` must outlive this.
  // Errors:   those of the backend; kTooLarge when all slots are taken by others.
  static Result<ChainWriter> open(Backend& backend, std::string_view salt, Parameters parameters,
                                  OnTrouble on_trouble = {});

  ChainWriter(ChainWriter&&) noexcept;
  ChainWriter& operator=(ChainWriter&&) noexcept;
  ~ChainWriter();

  // Blocks that were put, found or passed over, from the first one on.
  std::int64_t n_blocks() const { return static_cast<std::int64_t>(chain().size()); }
  const std::vector<Sha256>& chain() const;
  const std::string& parameters_key() const;
  const Sha256& scope() const;
  const Sha256& root() const;

  // Blocks that were not there before, as far as flush() has brought them.
  std::int64_t new_blocks() const;
  // Bytes of all blobs that were put or found here; of those that were not there before.
  std::uint64_t bytes() const;
  std::uint64_t new_bytes() const;

  // Keys of all parts of the whole token blocks of `tokens`, [block][part], from n_blocks() on.
  // Requires: the first n_blocks() blocks of `tokens` are those of the chain.
  std::vector<std::vector<std::string>> keys(std::span<const std::int32_t> tokens) const;

  // Which of these blocks the store has, all of their parts, in one batch.
  Result<std::vector<bool>> has(std::span<const std::int32_t> tokens);

  // Passes over the next block: the store has it, in blobs of so many bytes as far as is known.
  void pass(std::span<const std::int32_t> block_tokens, std::uint64_t bytes = 0);

  // Puts the next block.
  // Requires: 256 tokens.
  // Errors:   kInvalidArgument when these are not all of its sections, in their order, and as the
  //           parameters say; those of the backend.
  Result<void> put_block(std::span<const std::int32_t> block_tokens,
                         std::vector<StoredSection> sections);

  // Returns when all that was put is acknowledged.
  Result<void> flush();

  // Puts sections of a state into data blobs and fills in state.data_keys and data_bytes. Those
  // that are there are not sent again.
  Result<void> put_data(State& state, std::vector<StoredSection> sections);

  // Puts what no block has: tail, windows and arrays. Gives the key of a state with this
  // tail, "" when all slots behind the block hold other ones: it is then found by no prefix.
  // One of the same tail that is there already, with all its data, takes the place of `state` if
  // that has no content name; otherwise the state stays what it is, and only the slot is shared.
  // Requires: n_blocks() == final_blocks(state.n_tokens) > 0.
  Result<std::string> put_state(State& state, std::vector<StoredSection> sections);

 private:
  struct Chain;
  explicit ChainWriter(std::unique_ptr<Chain> chain);
  std::unique_ptr<Chain> chain_;
};

}  // namespace tqcache::store
