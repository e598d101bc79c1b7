// Files of caches with images, sounds and videos.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "append_fixture.h"
#include "python_reader.h"
#include "support/media.h"

namespace tqcache::test {
namespace media_file_test {

using testing::HasSubstr;
using testing::IsEmpty;

cache::Cache cache_with_media(std::int64_t n_tokens = 600) {
  return with_media(CacheBuilder(n_tokens).turbo({1, 32}, 4, 3).dense({1, 4}).build(),
                    {image_of(3, 4, 6, 3, "sha256:0123"),
                     {cache::MediaKind::kVideo, 250, 40, "over-a-border"},
                     {cache::MediaKind::kAudio, 520, 10, "c"}});
}

TEST(MediaFile, ComesBackAsItWas) {
  const cache::Cache cache = cache_with_media();
  const Bytes file = file_of(cache);
  const CacheFileInfo info = info_of(file);
  EXPECT_EQ(info.required_features, format::kFeatureMedia);
  EXPECT_EQ(info.media, cache.media);
  EXPECT_THAT(damage_of(file), IsEmpty());
  const cache::Cache loaded = must(load(file));
  EXPECT_EQ(loaded.media, cache.media);
  EXPECT_EQ(loaded.tokens, cache.tokens);
  EXPECT_EQ(file_of(loaded), file);
}

TEST(MediaFile, IsRefusedByNameByOlderReaders) {
  // An older reader knows bits 0 to 6: this is what it does with bit 7.
  Bytes file = file_of(CacheBuilder(3).dense({2, 4}).build());
  format::HeaderSlot slot = header_of(file).slot;
  slot.required_features |= 1u << 8;
  put_slot(file, slot);
  EXPECT_EQ(load(file).error().code, ErrorCode::kUnsupported);
  // And what this one does without the bit.
  file = file_of(cache_with_media());
  slot = header_of(file).slot;
  slot.required_features = 0;
  put_slot(file, slot);
  EXPECT_EQ(load(file).error().code, ErrorCode::kCorrupt);
}

TEST(MediaFile, CanBeCutAndAppendedTo) {
  const cache::Cache cache = cache_with_media();
  for (const std::int64_t n_tokens : {2, 5, 256, 270, 512, 525}) {
    const cache::Cache cut = must(load(file_of(cache), {.first_tokens = n_tokens}));
    EXPECT_EQ(file_of(cut), file_of(must(cache::truncate(cache, n_tokens)))) << n_tokens;
  }
  const CacheOnDisk file(cache);
  const cache::Cache longer = grown(cache, 20);
  must(file.append(longer));
  EXPECT_EQ(info_of(file.bytes()).media, cache.media);
  EXPECT_THAT(damage_of(file.bytes()), IsEmpty());
  // A cache of the same text that has shown something else.
  cache::Cache other = CacheBuilder(600).turbo({1, 32}, 4, 3).dense({1, 4}).build();
  other = with_media(other, {image_of(3, 4, 6, 3, "sha256:other"), cache.media[1], cache.media[2]});
  EXPECT_EQ(file.append(other).error().code, ErrorCode::kMismatch);
}

TEST(MediaFile, HidesWhatWasShown) {
  const Bytes hidden = must(format::write_cache_bytes(cache_with_media(), {.hide_tokens = true}));
  const CacheFileInfo info = info_of(hidden);
  EXPECT_EQ(info.media.size(), 3u);
  for (const cache::MediaSpan& span : info.media) EXPECT_EQ(span.id, "");
  EXPECT_THAT(damage_of(hidden), IsEmpty());
}

// The other program makes the token ids by itself.
TEST(MediaFile, IsReadByAnotherProgram) {
  if (!have_python()) GTEST_SKIP() << "no python3";
  const TempDir dir;
  const cache::Cache cache = cache_with_media();
  for (const bool hides : {false, true}) {
    const std::string path = (dir / "a.tqkv").string();
    must(format::write_cache_file(cache, path,
                                  {.overwrite = Overwrite::kAllow, .hide_tokens = hides}));
    const ReaderOutcome outcome = run_reader("'" + path + "'");
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    const auto told = nlohmann::json::parse(outcome.output)["media"];
    ASSERT_EQ(told.size(), cache.media.size());
    for (std::size_t i = 0; i < told.size(); ++i) {
      EXPECT_EQ(told[i]["kind"], static_cast<int>(cache.media[i].kind));
      EXPECT_EQ(told[i]["begin"], cache.media[i].begin);
      EXPECT_EQ(told[i]["n_tokens"], cache.media[i].n_tokens);
      EXPECT_EQ(told[i]["id"], hides ? "" : cache.media[i].id);
      EXPECT_EQ(told[i]["coordinates"], cache.media[i].coordinates);
      EXPECT_EQ(told[i]["next_position"], cache.media[i].next_position);
      EXPECT_EQ(told[i]["placeholder"], cache.media[i].placeholder);
    }
  }
}

}  // namespace media_file_test
}  // namespace tqcache::test
