// Maps of kv heads in a file (docs/format.md §4.3).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "archive_fixture.h"

namespace tqcache::test {
namespace {

cache::Cache fitted_cache(std::int64_t n_tokens = 600) {
  cache::SidePlan plan = archive_plan(0.3f, 2);
  plan.fit_maps = true;
  return CacheBuilder(n_tokens)
      .sides({2, 64}, Dtype::kF16, plan, Dtype::kBF16, plan)
      .center(cache::Centring::kPreRope)
      .sides({1, 40}, Dtype::kF32, plan, Dtype::kF16, archive_plan(0.5f))
      .build();
}

TEST(Maps, ComeBackAsTheyWere) {
  for (const Compression compression : {Compression::kNone, Compression::kZstd}) {
    const cache::Cache cache = fitted_cache();
    const Bytes file = file_of(cache, compression);
    EXPECT_EQ(difference(must(load(file)), cache), "");
    EXPECT_THAT(damage_of(file), testing::IsEmpty());
  }
  EXPECT_EQ(difference(must(load(file_of(mapped_cache()))), mapped_cache()), "");
}

TEST(Maps, CountInTheContentName) {
  const Bytes file = file_of(mapped_cache());
  const Bytes changed =
      change_manifest(file, [](Manifest& manifest) { manifest.layers[0].v.maps[77] ^= 1; });
  EXPECT_NE(info_of(file).content_name, info_of(changed).content_name);
}

TEST(Maps, CountAsMemoryWhereKeysStandDecoded) {
  const CacheFileInfo info = info_of(file_of(fitted_cache()));
  const auto needs = [&](std::uint64_t bytes) {
    return load(file_of(fitted_cache()), {.max_payload_bytes = bytes}).ok();
  };
  const std::uint64_t total = format::total_memory_bytes(info);
  EXPECT_TRUE(needs(total));
  EXPECT_FALSE(needs(total - 1));
}

void expect_changed_refused(void (*change)(Manifest&), std::string_view part) {
  expect_refused(change_manifest(file_of(mapped_cache()), change), ErrorCode::kCorrupt, part);
}

TEST(Maps, AreForModeTrellisAlone) {
  const Bytes file = file_of(CacheBuilder(256).turbo({2, 40}, 8, 8).build());
  const Bytes changed = change_manifest(
      file, [](Manifest& manifest) { manifest.layers[0].k.maps.assign(2 * 40 * 40, 1); });
  expect_refused(changed, ErrorCode::kCorrupt, "maps of a codec that has none");
}

TEST(Maps, HaveRowsThatAreNotOfEachOther) {
  const auto change = [](Manifest& manifest) {
    std::fill_n(manifest.layers[0].v.maps.begin() + 40, 80, std::int8_t{5});
  };
  const Bytes file = change_manifest(file_of(mapped_cache()), change);
  const auto loaded = load(file);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(damage_of(file),
              testing::ElementsAre("map of head 0: its rows depend on each other"));
}

TEST(Maps, AreOfAsManyEntriesAsHeadsHave) {
  expect_changed_refused([](Manifest& manifest) { manifest.layers[0].k.maps.pop_back(); }, "maps");
}

TEST(Maps, StayWhenAConversationGoesOn) {
  const cache::Cache cache = fitted_cache(600);
  const cache::Cache longer = fitted_cache(600);
  EXPECT_EQ(difference(cache, longer), "");
  EXPECT_EQ(must(load(file_of(cache), {.first_tokens = 300})).n_tokens(), 300);
}

}  // namespace
}  // namespace tqcache::test
