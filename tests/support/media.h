#pragma once
// support/media.h: caches some of whose tokens are images, sounds or videos.

#include <algorithm>
#include <utility>
#include <vector>

#include "tqcache/cache.h"

namespace tqcache::test {

// The same cache with these spans, in ascending order. Without coordinates next_position is set.
inline cache::Cache with_media(cache::Cache cache, std::vector<cache::MediaSpan> media) {
  for (cache::MediaSpan& span : media) {
    const std::int64_t position = cache::position_of(cache.media, span.begin);
    if (span.coordinates.empty()) span.next_position = position + span.n_tokens;
    std::ranges::copy(cache::media_tokens(span, position, cache.n_tokens()),
                      cache.tokens.begin() + span.begin);
    cache.media.push_back(std::move(span));
  }
  return cache;
}

// An image of `rows` by `columns` tokens for M-RoPE, which begins at this position.
inline cache::MediaSpan image_of(std::int64_t begin, int rows, int columns, int position,
                                 std::string id) {
  cache::MediaSpan span{cache::MediaKind::kImage, begin, std::int64_t{rows} * columns,
                        std::move(id)};
  for (int axis = 0; axis < 3; ++axis) {
    for (int i = 0; i < rows * columns; ++i) {
      const int offset = axis == 0 ? 0 : axis == 1 ? i / columns : i % columns;
      span.coordinates.push_back(position + offset);
    }
  }
  span.next_position = position + std::max(rows, columns);
  span.placeholder = 7;
  return span;
}

}  // namespace tqcache::test
