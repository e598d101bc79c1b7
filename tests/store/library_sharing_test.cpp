// Many conversations over one long prompt keep it once.

#include <gtest/gtest.h>

#include <map>

#include "store/library_fixture.h"
#include "tqcache/cache.h"
#include "tqcache/store/blobs/blob_keys.h"

namespace tqcache::test {
namespace library_sharing_test {

constexpr std::int64_t kSystemTokens = 8192;
constexpr cache::HeadShape kShape{4, 64};

// Goes on with `n` tokens of random state, as a decoder does.
cache::Cache continued(cache::Cache cache, std::int64_t n, std::uint64_t seed) {
  Random random(seed);
  const auto width = static_cast<std::size_t>(kShape.n_kv_heads * kShape.head_dim);
  for (std::int64_t left = n; left > 0;) {
    const std::int64_t n_tokens = cache.n_tokens();
    const std::int64_t some = std::min(left, cache::kTokenBlock - n_tokens % cache::kTokenBlock);
    for (cache::Layer& layer : cache.layers) {
      auto& attention = std::get<cache::AttentionLayer>(layer);
      for (cache::Tensor* tensor : {&attention.k, &attention.v}) {
        std::vector<float> rows(static_cast<std::size_t>(some) * width);
        for (float& value : rows) value = random.bell();
        must(cache::pack_full_tail(*tensor, n_tokens, 1));
        cache::append(*tensor, kShape, n_tokens, rows);
      }
    }
    for (std::int64_t i = 0; i < some; ++i) {
      cache.tokens.push_back(static_cast<std::int32_t>(random.below(150000)));
    }
    left -= some;
  }
  return cache;
}

std::uint64_t bytes_of(store::Backend& backend) {
  std::uint64_t bytes = 0;
  must(backend.list("", [&](const store::Entry& entry) -> Result<void> {
    bytes += entry.bytes;
    return {};
  }));
  return bytes;
}

// Bytes of all different sections.
std::uint64_t unique_bytes(store::Backend& backend) {
  std::map<Sha256, std::uint64_t> sections;
  for (const char* prefix : {"b/", "d/"}) {
    for (const std::string& key : all_keys(backend, prefix)) {
      const Bytes value = must(backend.get(key)).value();
      const SharedBytes blob(AlignedBytes(value.begin(), value.end()));
      const store::Content content = must(store::decode_blob(key, blob));
      const auto* block = std::get_if<store::Block>(&content);
      for (const auto& [info, stored] :
           block ? block->sections : std::get<store::Data>(content).sections) {
        sections[info.raw_sha256] = stored.size();
      }
    }
  }
  std::uint64_t bytes = 0;
  for (const auto& [digest, size] : sections) bytes += size;
  return bytes;
}

void expect_sharing(const cache::Cache& system, const char* what) {
  const auto backend = open_store();
  ToldLibrary library(*backend);
  (void)must(library->put_cache(system, "system"));
  std::int64_t n_blocks = 31;
  for (int i = 0; i < 100; ++i) {
    const std::string name = "conversation " + std::to_string(i);
    const auto seed = static_cast<std::uint64_t>(1000 + i);
    const cache::Cache cache = continued(system, 700, seed);
    const auto report = must(library->put_cache(cache, name));
    EXPECT_EQ(report.other_blocks, 0);
    // The system prompt's last block has become final with the first of them.
    EXPECT_EQ(report.new_blocks, i == 0 ? 3 : 2);
    n_blocks += report.new_blocks;
  }
  EXPECT_EQ(static_cast<std::int64_t>(all_keys(*backend, "b/").size()), n_blocks);
  const double ratio =
      static_cast<double>(bytes_of(*backend)) / static_cast<double>(unique_bytes(*backend));
  testing::Test::RecordProperty(what, std::to_string(ratio));
  EXPECT_LT(ratio, 1.02) << what;
  EXPECT_TRUE(library.told.empty());
}

TEST(Sharing, AHundredConversationsKeepADenseSystemPromptOnce) {
  expect_sharing(CacheBuilder(kSystemTokens).dense(kShape).build(), "dense");
}

TEST(Sharing, AHundredConversationsKeepAPackedSystemPromptOnce) {
  expect_sharing(CacheBuilder(kSystemTokens)
                     .center(cache::Centering::kPostRope)
                     .turbo(kShape, 8, 8)
                     .turbo(kShape, 8, 8)
                     .build(),
                 "turbo");
}

// A cache as tqcache convert writes it.
Bytes converted(const cache::Cache& dense, const cache::ConvertOptions& options) {
  const TempDir folder;
  must(format::convert_file(*cache::reader_of(dense), folder / "x.tqkv", options, {}));
  return read_all(folder / "x.tqkv");
}

// Two prompts of which nine tenths are common, each converted for itself.
TEST(Sharing, PromptsThatWereConvertedApartKeepTheirCommonBlocksOnce) {
  const cache::Cache system = CacheBuilder(36 * 256).dense(kShape).dense(kShape).build();
  const auto options = must(cache::parse_configuration(cache::kDefaultPreset)).options;
  const auto backend = open_store();
  ToldLibrary library(*backend);
  std::vector<std::uint64_t> new_bytes;
  for (const std::uint64_t seed : {1u, 2u}) {
    const Bytes file = converted(continued(system, 4 * 256, seed), options);
    new_bytes.push_back(put(library.library, file, "prompt " + std::to_string(seed)).new_bytes);
  }
  const double part = static_cast<double>(new_bytes[1]) / static_cast<double>(new_bytes[0]);
  testing::Test::RecordProperty("second", std::to_string(part));
  EXPECT_LT(part, .15);
  EXPECT_EQ(all_keys(*backend, "p/").size(), 1u);
  EXPECT_TRUE(library.told.empty());
}

// The last bits of a computation depend on the processor, so the means of a first block do, too.
TEST(Sharing, PromptsThatWereComputedElsewhereAreQuantizedWithTheCodecOfTheStore) {
  const cache::Cache system = CacheBuilder(8 * 256 + 100).dense(kShape).build();
  const auto backend = open_store();
  ToldLibrary library(*backend);
  store::PutOptions options;
  options.quantization = must(cache::preset("turbo4"));
  for (int i = 0; i < 2 * store::kCandidateSlots; ++i) {
    cache::Cache other = system;
    auto& keys = std::get<cache::DenseTensor>(std::get<cache::AttentionLayer>(other.layers[0]).k);
    keys.blocks[0][static_cast<std::size_t>(2 * i)] ^= std::byte{1};
    other.tokens.back() = i;
    const auto report = must(library->put_cache(other, "", {}, options));
    EXPECT_EQ(report.new_blocks, i == 0 ? 8 : 0) << i;
    const store::Prefix found = must(library->find(other.identity, and_more(other)));
    EXPECT_EQ(found.n_tokens, other.n_tokens()) << i;
  }
  EXPECT_EQ(all_keys(*backend, "p/").size(), 1u);
  // Other settings are another chain.
  options.quantization = must(cache::preset("turbo3"));
  EXPECT_EQ(must(library->put_cache(system, "", {}, options)).new_blocks, 8);
  EXPECT_EQ(all_keys(*backend, "p/").size(), 2u);
  // And a file that is quantized with another codec keeps that.
  const Bytes file = converted(continued(system, 300, 9),
                               must(cache::parse_configuration("turbo3,fit=prompt")).options);
  options.quantization = must(cache::preset("turbo3"));
  (void)put(library.library, file, "own codec", options);
  EXPECT_EQ(all_keys(*backend, "p/").size(), 3u);
  EXPECT_EQ(
      difference(load(*must(library->fetch(record_of(library.library, "own codec")))), load(file)),
      "");
}

}  // namespace library_sharing_test
}  // namespace tqcache::test
