#pragma once
// store/chain_writer.h: puts a prompt block by block, as its blocks become final.
//
// Parameters first, then blocks in their order, then the state behind them, then the record: so
// whatever a reader finds, what it needs is there, too.
//
// Spec: docs/store.md, "Putting".

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/blob.h"
#include "tqcache/store/keys.h"

namespace tqcache::store {

// Threads: one at a time.
class ChainWriter {
 public:
  // Finds these parameters in the slots of the first block, or takes a slot for them.
  // Requires: parameters.tokens are the first block's; means are fixed.
  // Errors:   those of the backend; kTooLarge when all slots are taken by others.
  static Result<ChainWriter> open(Backend& backend, std::string_view salt, Parameters parameters);

  // Blocks that were put or found, from the first one on.
  std::int64_t n_blocks() const { return static_cast<std::int64_t>(chain_.size()); }
  const std::vector<Sha256>& chain() const { return chain_; }
  const std::string& parameters_key() const { return parameters_key_; }
  const Sha256& scope() const { return scope_; }
  std::int64_t new_blocks() const { return new_blocks_; }
  std::uint64_t bytes() const {
    return bytes_;
  }  // of all blobs of this chain that were put or found here
  std::uint64_t new_bytes() const { return new_bytes_; }  // of those that were put

  // Which of the next blocks of `tokens` (from n_blocks() on) the store has, in one batch.
  Result<std::vector<bool>> has(std::span<const std::int32_t> tokens);

  // Passes over the next block: the store has it.
  void pass(std::span<const std::int32_t> block_tokens);

  // Puts the next block. Requires: 256 tokens; all of its sections, in their order.
  Result<void> put_block(std::span<const std::int32_t> block_tokens,
                         std::vector<StoredSection> sections);

  // Puts what stands behind the last block: tail and arrays. Fills in the keys. Gives the state's
  // key; a state of the same tokens that is there already is taken instead.
  // Requires: n_blocks() == final_blocks(state.n_tokens) > 0.
  Result<std::string> put_state(State& state, std::vector<StoredSection> sections);

 private:
  ChainWriter(Backend& backend, Sha256 scope, Sha256 root, std::string parameters_key)
      : backend_(&backend),
        scope_(scope),
        root_(root),
        parameters_key_(std::move(parameters_key)) {}

  Backend* backend_;
  Sha256 scope_, root_;
  std::string parameters_key_;
  std::vector<Sha256> chain_;
  std::int64_t new_blocks_ = 0;
  std::uint64_t bytes_ = 0, new_bytes_ = 0;
};

}  // namespace tqcache::store
