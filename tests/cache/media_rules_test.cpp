// Images, sounds and videos among the tokens of a cache: ids, positions, and what is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "support/cache_builder.h"
#include "support/matchers.h"
#include "support/media.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {
namespace media_rules_test {

using test::CacheBuilder;
using test::image_of;
using test::must;
using test::with_media;
using testing::Each;
using testing::HasSubstr;
using testing::Lt;

Cache two_media() {
  return with_media(CacheBuilder(40).dense({1, 8}).build(),
                    {image_of(3, 2, 5, 3, "sha256:a"), {MediaKind::kAudio, 20, 6, "b"}});
}

TEST(MediaTokens, AreThoseOfTheirContent) {
  const MediaSpan span = image_of(10, 3, 4, 10, "x");
  const auto ids = media_tokens(span, 10, 100);
  ASSERT_EQ(ids.size(), 12u);
  EXPECT_THAT(ids, Each(Lt(kUnknownToken)));
  // Not of the place, and not of the placeholder.
  MediaSpan moved = image_of(50, 3, 4, 30, "x");
  moved.placeholder = 99;
  EXPECT_EQ(media_tokens(moved, 30, 100), ids);
  for (const auto& change : std::vector<std::function<void(MediaSpan&)>>{
           [](MediaSpan& each) { each.id = "y"; },
           [](MediaSpan& each) { each.kind = MediaKind::kVideo; },
           [](MediaSpan& each) { ++each.coordinates[5]; },
           [](MediaSpan& each) { ++each.next_position; },
           [](MediaSpan& each) { each.coordinates.clear(); }}) {
    MediaSpan other = span;
    change(other);
    const auto of_other = media_tokens(other, 10, 100);
    for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_NE(of_other[i], ids[i]) << i;
  }
}

TEST(MediaPositions, FollowThoseOfMedia) {
  const Cache cache = two_media();  // 10 tokens that take 5 positions, then 6 that take 6
  EXPECT_EQ(position_of(cache.media, 0), 0);
  EXPECT_EQ(position_of(cache.media, 3), 3);
  EXPECT_EQ(position_of(cache.media, 13), 8);
  EXPECT_EQ(position_of(cache.media, 20), 15);
  EXPECT_EQ(position_of(cache.media, 26), 21);
  EXPECT_EQ(position_of(cache.media, 40), 35);
  EXPECT_EQ(position_of({}, 40), 40);
  const auto all = all_positions(cache.media, 40);
  ASSERT_EQ(all.size(), 40u);
  for (const std::int64_t text : {0, 2, 13, 19, 26, 39}) {
    EXPECT_EQ(all[static_cast<std::size_t>(text)], position_of(cache.media, text)) << text;
  }
  EXPECT_EQ(all[3], 3);  // an image has the time of its first token
  EXPECT_EQ(all[12], 3);
  EXPECT_EQ(all[22], 17);  // a sound counts on
  EXPECT_EQ(all_positions(cache.media, 5), (std::vector<std::int32_t>{0, 1, 2, 3, 3}));
}

TEST(Media, AreCutWithTheTokens) {
  const Cache cache = two_media();
  must(validate(cache));
  for (const auto& [n_tokens, n_media] :
       {std::pair{40, 2}, {26, 2}, {22, 2}, {21, 2}, {20, 1}, {5, 1}, {3, 0}}) {
    const Cache cut = must(truncate(cache, n_tokens));
    EXPECT_EQ(std::ssize(cut.media), n_media) << n_tokens;
    must(validate(cut));
    EXPECT_EQ(describe(cut).media, cut.media);
  }
}

TEST(Media, StayWhenACacheIsQuantized) {
  const Cache cache = with_media(CacheBuilder(300).dense({1, 32}).build(),
                                 {image_of(250, 4, 4, 250, "over-a-border")});
  const auto quantized =
      must(quantize(reader_of(cache), must(parse_configuration("turbo4")).options));
  EXPECT_EQ(quantized->description().media, cache.media);
  EXPECT_EQ(must(load(*quantized)).media, cache.media);
}

TEST(Media, LoseTheirIdsWhenTokensAreHidden) {
  Cache cache = two_media();
  const std::vector<std::int32_t> tokens = cache.tokens;
  hide_tokens(cache);
  must(validate(cache));
  EXPECT_EQ(cache.media[0].id + cache.media[1].id, "");
  EXPECT_EQ(*cache.hidden_tokens, hash_tokens(tokens));
  EXPECT_EQ(reveal_tokens(cache, tokens).error().code, ErrorCode::kUnsupported);
}

TEST(MediaRules, RefuseWhatDoesNotAgree) {
  struct Case {
    std::string part;
    std::function<void(Cache&)> spoil;
  };
  const auto first = [](Cache& cache) -> MediaSpan& { return cache.media[0]; };
  for (const Case& each : std::vector<Case>{
           {"token ids are not those", [](Cache& cache) { ++cache.tokens[4]; }},
           {"token ids are not those", [&](Cache& cache) { first(cache).id = "sha256:b"; }},
           {"a token id below 0", [](Cache& cache) { cache.tokens[0] = -5; }},
           {"a token id below 0", [](Cache& cache) { cache.tokens[39] = -1; }},
           {"a token id below 0", [](Cache& cache) { cache.media.clear(); }},
           {"begins at token", [](Cache& cache) { cache.media[1].begin = 40; }},
           {"begins at token", [](Cache& cache) { cache.media[1].begin = 12; }},
           {"no id", [&](Cache& cache) { first(cache).id.clear(); }},
           {"printable", [&](Cache& cache) { first(cache).id = "a b"; }},
           {"printable", [&](Cache& cache) { first(cache).id = std::string(257, 'a'); }},
           {"coordinates for", [&](Cache& cache) { first(cache).coordinates.pop_back(); }},
           {"out of range", [&](Cache& cache) { first(cache).coordinates[0] = -1; }},
           {"position", [&](Cache& cache) { first(cache).next_position = -1; }},
           {"position", [](Cache& cache) { ++cache.media[1].next_position; }},
           {"placeholder", [&](Cache& cache) { first(cache).placeholder = -2; }},
           {"0 tokens", [&](Cache& cache) { first(cache).n_tokens = 0; }},
           {"others follow",
            [&](Cache& cache) {
              first(cache).n_tokens = 100;
              first(cache).coordinates.resize(300);
            }},
           {"unknown kind",
            [&](Cache& cache) { first(cache).kind = static_cast<MediaKind>(3); }}}) {
    Cache cache = two_media();
    each.spoil(cache);
    EXPECT_THAT(validate(cache), test::FailsWith(ErrorCode::kCorrupt, HasSubstr(each.part)));
  }
}

TEST(MediaPlaceholders, TakeThePlaceOfIds) {
  const Cache cache = two_media();
  const auto ids = with_placeholders(cache.tokens, cache.media);
  for (std::int64_t i = 0; i < 40; ++i) {
    const std::int32_t expected = i >= 3 && i < 13    ? 7
                                  : i >= 20 && i < 26 ? kUnknownToken
                                                      : cache.tokens[static_cast<std::size_t>(i)];
    EXPECT_EQ(ids[static_cast<std::size_t>(i)], expected) << i;
  }
}

}  // namespace media_rules_test
}  // namespace tqcache::cache
