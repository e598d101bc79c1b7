#pragma once
// migrations/v1_expected.h: the head vectors of a file of version 1, straight from its tensors.
//
// The second opinion on a migration: each component is looked up where the definition says that it
// stands. Only the linear maps, the codebooks and the reading of JSON are shared with the way that
// v1_to_v2() takes.
//
// Spec: docs/reference/format.md, "Version 1".

#include <cstdint>
#include <functional>
#include <span>

#include "migrations/v1_context.h"
#include "migrations/v1_file.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/token_block.h"

namespace tqcache::migrations {

// What an ExpectedRow gives for a vector that stands in the file as it is.
inline constexpr double kExact = -1;

// Fills x with a head vector, and gives the length that a difference to it may have, or kExact.
// Threads: any number at once.
using ExpectedRow =
    std::function<double(std::int64_t head, std::int64_t token, std::span<float> x)>;

struct ExpectedLayer {
  cache::HeadShape shape;
  std::int64_t n_tokens = 0;
  ExpectedRow k;
  ExpectedRow v;
};

// Of a layer whose class has keys and values of all tokens. The entry must outlive the result.
//
// Requires: v1_to_v2() has accepted the file.
// Errors:   kCorrupt when it has not, after all; kTooLarge.
Result<ExpectedLayer> expected_layer(const V1Entry& entry, CodecPool& maps);

// The row of a ring that holds a position, of those that its window holds.
struct RingPlace {
  std::int64_t keep = 0;
  std::int64_t n_rows = 0;
  std::int64_t offset = 0;
  std::int64_t next = 0;

  std::int64_t row_of(std::int64_t position) const {
    if (position < keep) return position;
    const std::int64_t row = next - (offset - position);  // the newest stands before `next`
    return row < keep ? row + n_rows - keep : row;
  }
};

}  // namespace tqcache::migrations
