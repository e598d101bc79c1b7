#pragma once
// cache/pack_side.h: packs what is full of one side. Not for users of the library:
// cache/convert.h is.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/cache/layer.h"
#include "tqcache/cache/plan.h"

namespace tqcache::cache {

// One side, in token blocks, that is turbo or shall be.
struct PackJob {
  std::string name;  // "layer 3 k"
  Side* side;
  HeadShape shape;
  SidePlan plan;
  codec::BlockOrder order;
  std::int64_t begin = 0;  // of a window: the first token that it still holds
};

// Both sides of a layer, as far as they have a plan. `plans` are [2]: keys, values.
std::vector<PackJob> pack_jobs(Layer& layer, std::size_t index, std::span<const SidePlan> plans,
                               std::int64_t n_tokens);

// Called with the number of head vectors that were packed since the last call. An error ends the
// work.
using PackProgress = std::function<Result<void>(std::uint64_t n_vectors)>;

// Head vectors that are to be packed.
std::uint64_t vectors_to_pack(const PackJob& job, std::int64_t n_tokens);

// Gives memory of dense blocks back as they are packed.
// Errors: as make_codec() and KvCodec::encode(), with the token block's number; those of
// `progress`.
Result<void> pack_side(const PackJob& job, std::int64_t n_tokens, unsigned n_threads,
                       KvTables tables, const PackProgress& progress);

}  // namespace tqcache::cache
