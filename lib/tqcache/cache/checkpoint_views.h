#pragma once
// cache/checkpoint_views.h: readers of context checkpoints, and of a cache at one of them.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/reader.h"

namespace tqcache::cache {

// The name of a checkpoint in messages: "checkpoint 3".
inline std::string checkpoint_place(std::size_t index) {
  return "checkpoint " + std::to_string(index);
}

CheckpointDesc describe(const Checkpoint& checkpoint);

// The blocks of a reader, then those of its checkpoints, whose layers are numbered after those of
// the cache and of earlier checkpoints: the order in a file (docs/reference/format.md §4.7).
std::vector<BlockInfo> all_blocks(const CacheReader& reader);

// share() and stored() of one of all_blocks().
Result<SharedBytes> share_any(const CacheReader& reader, std::size_t block);
Result<std::optional<StoredBlock>> stored_any(const CacheReader& reader, std::size_t block,
                                              const Room& room);

// The whole cache as it was at a checkpoint. Earlier checkpoints remain.
// Errors: as first_tokens().
Result<std::shared_ptr<const CacheReader>> at_checkpoint(std::shared_ptr<const CacheReader> source,
                                                         std::size_t number);

// Some layers of a reader, without its checkpoints.
std::shared_ptr<const CacheReader> some_layers(std::shared_ptr<const CacheReader> source,
                                               const std::vector<std::size_t>& layers);

// The checkpoints of `source`, each as view(state) makes it.
template <class View>
Result<std::vector<Checkpoint>> map_checkpoints(const CacheReader& source, View view) {
  std::vector<Checkpoint> checkpoints;
  const auto all = source.checkpoints();
  for (std::size_t i = 0; i < all.size(); ++i) {
    Result<std::shared_ptr<const CacheReader>> state = view(all[i].state);
    if (!state) return in_context(checkpoint_place(i), std::move(state).error());
    checkpoints.push_back({std::move(state).value(), all[i].first_position});
  }
  return checkpoints;
}

}  // namespace tqcache::cache
