#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "store/blob_samples.h"
#include "tqcache/store.h"
#include "tqcache/store/blobs/blob_keys.h"

namespace tqcache::test {
namespace keys_test {

using store::Namespace;
using testing::StartsWith;

// All hashes of this file were computed by Python's hashlib, from docs/reference/store.md:
//   def H(*fields): return sha256(b''.join(pack('<Q', len(f)) + f for f in fields)).digest()
constexpr std::string_view kScope =
    "dd4caf3d1dbba3a078beaac5c8fd8909929827947cde520d23c608e96c471d3a";
constexpr std::string_view kEmptyScope =
    "18b117ad30e1e46a3b59c4f41f80c7719ee565cf2a7018214eeed77f372b4295";
constexpr std::string_view kFirst =
    "a97b83b4668dae42a2af834baaa9b5f2744c05b01614ee78ae307ce8faa03e3c";
constexpr std::string_view kRoot =
    "ba744fb2eea503dba4ef946816cca8ab4275f81838429bb0d867bc206470a3f0";
constexpr std::string_view kBlock0 =
    "ad9a1af7c3b04f5a7eaf4cb1c025787148e08a737c93a3d9a02e40fd59ebaeb5";
constexpr std::string_view kBlock1 =
    "1f379e09276315987065b31cb8f64c78dda2e2a61710994e428ed2153fb8394c";
constexpr std::string_view kData =
    "dd0d35db4abf43a966fac39141c29a1c275f9b557fe4b21a87598d9e75be440d";
constexpr std::string_view kTenant = "a68aab401578bc66";
constexpr std::string_view kName =
    "9fdedc4d34bda54f4e67f529f5242d72f728c59a77408fa832021a9396f01e43";

Sha256 sample_scope_hash() { return store::hash_namespace(sample_scope()); }
Sha256 sample_root() { return store::hash_root(sample_scope_hash(), filled_hash(0x55)); }

TEST(Keys, HashesAreThoseOfTheSpec) {
  EXPECT_EQ(to_hex(sample_scope_hash()), kScope);
  EXPECT_EQ(to_hex(store::hash_namespace({})), kEmptyScope);
  EXPECT_EQ(to_hex(store::hash_first(sample_scope_hash(), sample_tokens(256))), kFirst);
  EXPECT_EQ(to_hex(sample_root()), kRoot);
  const std::vector<Sha256> chain = store::hash_chain(sample_root(), sample_tokens());
  ASSERT_EQ(chain.size(), 2U);
  EXPECT_EQ(to_hex(chain[0]), kBlock0);
  EXPECT_EQ(to_hex(chain[1]), kBlock1);
}

TEST(Keys, HaveTheirForms) {
  const Sha256 hash = filled_hash(0xab);
  std::string hex;
  for (int i = 0; i < 32; ++i) hex += "ab";
  EXPECT_EQ(store::parameters_key(hash, 3), "p/" + hex + "/3");
  EXPECT_EQ(store::block_key(hash, 12, 4), "b/000012/" + hex + "/4");
  EXPECT_EQ(store::block_key(hash, 1234567, 0), "b/1234567/" + hex + "/0");
  EXPECT_EQ(store::state_key(hash, 15), "s/" + hex + "/15");
  EXPECT_EQ(store::data_key(sample_scope_hash(), as_bytes("abc")), "d/" + std::string(kData));
  EXPECT_EQ(store::record_prefix("a tenant"), "n/" + std::string(kTenant) + "/");
  EXPECT_EQ(store::record_key("a tenant", "a prompt"),
            "n/" + std::string(kTenant) + "/" + std::string(kName));
  EXPECT_EQ(store::usage_key(hash), "u/" + hex);
}

TEST(Keys, AreValidInEveryBackend) {
  for (const SampleBlob& sample : sample_blobs()) EXPECT_TRUE(store::check_key(sample.key));
}

// Everything that decides what a block holds, or who may find it, changes its scope.
TEST(Keys, EveryFieldOfANamespaceCounts) {
  std::vector<Namespace> scopes(14, sample_scope());
  scopes[1].salt = "another tenant";
  scopes[2].salt.clear();
  scopes[3].identity.architecture = "llama";
  scopes[4].identity.weights_fingerprint[31] ^= std::byte{1};
  scopes[5].identity.tokenizer_fingerprint[0] ^= std::byte{1};
  scopes[6].identity.adapter_fingerprint.reset();
  scopes[7].identity.rope.base = 10001;
  scopes[8].identity.rope.n_dims = 6;
  scopes[9].identity.rope.style = cache::RopeStyle::kInterleaved;
  scopes[10].identity.rope.factors[1] = 2;
  scopes[11].identity.model_fingerprint = {2, {}};
  scopes[12].identity.model_fingerprint = {3, {}};
  scopes[13].identity.model_fingerprint = {2, Sha256{std::byte{1}}};
  std::set<Sha256> hashes;
  for (const Namespace& name_space : scopes) hashes.insert(store::hash_namespace(name_space));
  EXPECT_EQ(hashes.size(), scopes.size());
}

TEST(Keys, NamesForPeopleDoNotCount) {
  Namespace name_space = sample_scope();
  name_space.identity.model_name = "the same under another name";
  name_space.identity.source_format = "mlx-lm";
  EXPECT_EQ(store::hash_namespace(name_space), sample_scope_hash());
}

TEST(Keys, BothZerosOfARopeBaseAreOne) {
  Namespace plus, minus;
  plus.identity.rope.base = 0.0;
  minus.identity.rope.base = -0.0;
  EXPECT_EQ(store::hash_namespace(plus), store::hash_namespace(minus));
}

// Bytes that move from one field to the next are another list of fields.
TEST(Keys, LengthsOfFieldsCount) {
  const auto hash_of = [](std::string_view a, std::string_view b) {
    const ByteView fields[] = {as_bytes(a), as_bytes(b)};
    return store::hash_fields(fields);
  };
  EXPECT_NE(hash_of("ab", "c"), hash_of("a", "bc"));
  EXPECT_NE(hash_of("abc", ""), hash_of("", "abc"));
  const ByteView one[] = {as_bytes("abc")};
  EXPECT_NE(store::hash_fields(one), hash_of("abc", ""));
}

TEST(Keys, AnEarlierTokenChangesAllLaterBlocks) {
  const std::vector<std::int32_t> tokens = sample_tokens(1024);
  const std::vector<Sha256> chain = store::hash_chain(sample_root(), tokens);
  for (std::size_t block = 0; block < 4; ++block) {
    std::vector<std::int32_t> other = tokens;
    other[256 * block + 255] ^= 1;
    const std::vector<Sha256> changed = store::hash_chain(sample_root(), other);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(changed[i] == chain[i], i < block) << i;
  }
}

TEST(Keys, AChainGoesOnFromAnyOfItsHashes) {
  const std::vector<std::int32_t> tokens = sample_tokens(1024);
  const std::vector<Sha256> chain = store::hash_chain(sample_root(), tokens);
  const std::vector<Sha256> rest = store::hash_chain(chain[1], std::span(tokens).subspan(512));
  EXPECT_THAT(rest, testing::ElementsAre(chain[2], chain[3]));
}

TEST(Keys, OtherParametersAndScopesBeginOtherChains) {
  const Sha256 name_space = sample_scope_hash();
  const std::set<Sha256> roots = {store::hash_root(name_space, filled_hash(1)),
                                  store::hash_root(name_space, filled_hash(2)),
                                  store::hash_root(filled_hash(3), filled_hash(1))};
  EXPECT_EQ(roots.size(), 3U);
}

// The last token block is the tail, even if it is full.
TEST(Keys, FinalBlocksLeaveATail) {
  EXPECT_EQ(store::final_blocks(0), 0);
  EXPECT_EQ(store::final_blocks(1), 0);
  EXPECT_EQ(store::final_blocks(256), 0);
  EXPECT_EQ(store::final_blocks(257), 1);
  EXPECT_EQ(store::final_blocks(512), 1);
  EXPECT_EQ(store::final_blocks(513), 2);
}

TEST(Keys, TokensOfATailHaveNoHash) {
  EXPECT_TRUE(store::hash_chain(sample_root(), sample_tokens(255)).empty());
  EXPECT_EQ(store::hash_chain(sample_root(), sample_tokens(511)).size(), 1U);
}

TEST(Keys, RecordsOfTenantsStandApart) {
  EXPECT_NE(store::record_prefix("a"), store::record_prefix("b"));
  const std::string a = store::record_key("a", "name");
  EXPECT_THAT(a, StartsWith(store::record_prefix("a")));
  EXPECT_NE(a.substr(a.rfind('/')), store::record_key("b", "name").substr(a.rfind('/')));
}

TEST(Keys, DataOfScopesStandsApart) {
  EXPECT_NE(store::data_key(filled_hash(1), as_bytes("abc")),
            store::data_key(filled_hash(2), as_bytes("abc")));
}

}  // namespace keys_test
}  // namespace tqcache::test
