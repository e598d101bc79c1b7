// Maps of kv heads in a file (docs/reference/format.md §4.3).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "archive_fixture.h"

namespace tqcache::test {
namespace maps_test {

cache::Cache fitted_cache(std::int64_t n_tokens = 600) {
  cache::TensorPlan plan = archive_plan(0.3f, 2);
  plan.fit_transforms = true;
  return CacheBuilder(n_tokens)
      .tensors({2, 64}, Dtype::kF16, plan, Dtype::kBF16, plan)
      .center(cache::Centering::kPreRope)
      .tensors({1, 40}, Dtype::kF32, plan, Dtype::kF16, archive_plan(0.5f))
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
      change_manifest(file, [](Manifest& manifest) { v_of(manifest, 0).transforms[77] ^= 1; });
  EXPECT_NE(info_of(file).content_name, info_of(changed).content_name);
}

TEST(Maps, CountAsMemoryWhereKeysStandDecoded) {
  const CacheFileInfo info = info_of(file_of(fitted_cache()));
  const auto needs = [&](std::uint64_t bytes) {
    return load(file_of(fitted_cache()), {.access = {.memory = MemoryBudget().at_most(bytes)}})
        .ok();
  };
  const std::uint64_t total = cache::total_memory_bytes(info, info.sections);
  EXPECT_TRUE(needs(total));
  EXPECT_FALSE(needs(total - 1));
}

void expect_changed_refused(void (*change)(Manifest&), std::string_view part) {
  expect_refused(change_manifest(file_of(mapped_cache()), change), ErrorCode::kCorrupt, part);
}

TEST(Maps, AreForModeTrellisAlone) {
  const Bytes file = file_of(CacheBuilder(256).turbo({2, 40}, 8, 8).build());
  const Bytes changed = change_manifest(
      file, [](Manifest& manifest) { k_of(manifest, 0).transforms.assign(2 * 40 * 40, 1); });
  expect_refused(changed, ErrorCode::kCorrupt, "maps of a codec that has none");
}

TEST(Maps, HaveRowsThatAreNotOfEachOther) {
  const auto change = [](Manifest& manifest) {
    std::fill_n(v_of(manifest, 0).transforms.begin() + 40, 80, std::int8_t{5});
  };
  const Bytes file = change_manifest(file_of(mapped_cache()), change);
  const auto loaded = load(file);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(damage_of(file),
              testing::ElementsAre("layer 0 v: map of head 0: its rows depend on each other"));
}

TEST(Maps, AreOfAsManyEntriesAsHeadsHave) {
  expect_changed_refused([](Manifest& manifest) { k_of(manifest, 0).transforms.pop_back(); },
                         "maps");
}

constexpr std::int64_t kBefore = 600;
constexpr std::int64_t kAfter = 768;

// The tokens by which a tensor grows: [kAfter - kBefore, n_kv_heads, head_dim].
std::vector<float> new_rows(cache::HeadShape shape) {
  Random random(4);
  std::vector<float> rows(
      static_cast<std::size_t>((kAfter - kBefore) * shape.n_kv_heads * shape.head_dim));
  for (float& value : rows) value = random.bell();
  return rows;
}

// To the end of the token block, which gets packed.
void grow(cache::Cache& cache) {
  for (cache::Layer& layer : cache.layers) {
    auto& attention = std::get<cache::AttentionLayer>(layer);
    for (cache::Tensor* tensor : {&attention.k, &attention.v}) {
      cache::append(*tensor, attention.shape, kBefore, new_rows(attention.shape));
      must(cache::pack_full_tail(*tensor, kAfter, 1));
      EXPECT_EQ(cache::packed_block_count(*tensor), kAfter / cache::kTokenBlock);
    }
  }
  cache.tokens.resize(kAfter, 1);
}

// What coding left of the energy of the first head's new tokens, as a part of it.
double coded_error(const cache::Tensor& tensor, cache::HeadShape shape) {
  const std::vector<float> rows = new_rows(shape);
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  std::vector<float> block(cache::kTokenBlock * dim);
  cache::read_block(tensor, shape, kAfter, 2, 0, block);
  const std::size_t first = kBefore - 2 * cache::kTokenBlock;
  const std::size_t stride = static_cast<std::size_t>(shape.n_kv_heads) * dim;
  double error = 0, energy = 0;
  for (std::size_t t = 0; t < kAfter - kBefore; ++t) {
    for (std::size_t i = 0; i < dim; ++i) {
      const double value = rows[t * stride + i];
      error += std::pow(block[(first + t) * dim + i] - value, 2);
      energy += value * value;
    }
  }
  return error / energy;
}

const cache::HeadTransforms& maps_of(const cache::Tensor& tensor) {
  return std::get<cache::TurboTensor>(tensor).codec.state().transforms;
}

// A conversation that goes on: what comes later is coded with the same maps.
TEST(Maps, StayWhenAConversationGoesOn) {
  const cache::Cache before = fitted_cache(kBefore);
  cache::Cache in_memory = before;
  cache::Cache from_file = must(load(file_of(before)));
  grow(in_memory);
  grow(from_file);
  EXPECT_EQ(difference(in_memory, from_file), "");
  for (std::size_t i = 0; i < before.layers.size(); ++i) {
    const auto& old_layer = std::get<cache::AttentionLayer>(before.layers[i]);
    const auto& new_layer = std::get<cache::AttentionLayer>(in_memory.layers[i]);
    EXPECT_EQ(maps_of(new_layer.k), maps_of(old_layer.k)) << i;
    EXPECT_EQ(maps_of(new_layer.v), maps_of(old_layer.v)) << i;
    // A step of s leaves .2635 s^2 of the energy (docs/reference/codec.md 10); and a fifth on top.
    const double value_step = i == 0 ? 0.3 : 0.5;
    EXPECT_LT(coded_error(new_layer.k, new_layer.shape), 1.2 * 0.2635 * 0.3 * 0.3) << i;
    EXPECT_LT(coded_error(new_layer.v, new_layer.shape), 1.2 * 0.2635 * value_step * value_step)
        << i;
  }
}

// Whatever stands in the frame: an error, or maps.
TEST(Maps, InADamagedFrameAreRefusedOrOthers) {
  const Bytes file = file_of(fitted_cache());
  const auto manifest =
      file.begin() + static_cast<std::ptrdiff_t>(value_at<std::uint64_t>(file, kManifestOffsetAt));
  constexpr std::array kMagic = {std::byte{0x28}, std::byte{0xb5}, std::byte{0x2f},
                                 std::byte{0xfd}};
  const auto frame = std::search(manifest, file.end(), kMagic.begin(), kMagic.end());
  ASSERT_NE(frame, file.end());
  const auto first = static_cast<std::size_t>(frame - file.begin());
  int refused = 0;
  for (std::size_t at = first; at < std::min(first + 200, file.size()); ++at) {
    for (const int bit : {0, 3, 7}) {
      Bytes changed = file;
      changed[at] ^= std::byte{1} << bit;
      reseal(changed);
      const auto loaded = load(changed);
      if (loaded.ok()) continue;
      EXPECT_EQ(loaded.error().code, ErrorCode::kCorrupt) << at << " " << loaded.error().message;
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace maps_test
}  // namespace tqcache::test
