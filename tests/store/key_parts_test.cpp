// What a key says by itself.

#include <gtest/gtest.h>

#include "tqcache/store/blobs/blob_keys.h"

namespace tqcache::store {
namespace key_parts_test {

constexpr Sha256 kHash{std::byte{0xab}};

TEST(KeyParts, AreThoseThatTheKeyWasMadeOf) {
  const std::string block = block_key(kHash, 12, 3);
  const auto parts = parse_key(block);
  ASSERT_TRUE(parts);
  EXPECT_EQ(parts->kind, BlobKind::kBlock);
  EXPECT_EQ(parts->hash, to_hex(kHash));
  EXPECT_EQ(parts->index, 12);
  EXPECT_EQ(parts->number, 3);
  EXPECT_EQ(parts->name, block_name(kHash, 12));
  EXPECT_EQ(part_key(parts->name, 3), block);
  EXPECT_EQ(parse_key(parameters_key(kHash, 15))->number, 15);
}

TEST(KeyParts, KnowEveryKind) {
  const std::vector<std::pair<std::string, BlobKind>> kinds = {
      {parameters_key(kHash, 0), BlobKind::kParameters},
      {block_key(kHash, 999999, 10), BlobKind::kBlock},
      {state_key(kHash, 1), BlobKind::kState},
      {data_key(kHash, {}), BlobKind::kData},
      {record_key("salt", "name"), BlobKind::kRecord},
      {usage_key(kHash), BlobKind::kUsage}};
  for (const auto& [key, kind] : kinds) {
    SCOPED_TRACE(key);
    ASSERT_TRUE(parse_key(key));
    EXPECT_EQ(parse_key(key)->kind, kind);
    if (kind != BlobKind::kBlock) {
      EXPECT_EQ(parse_key(key)->name, key);
    }
  }
}

TEST(KeyParts, RefuseForeignKeys) {
  const std::string hex = to_hex(kHash);
  const std::vector<std::string> others = {
      "",
      "b",
      "b/" + hex,
      "b/000012/" + hex,
      "b/12/" + hex + "/0",
      "b/00001x/" + hex + "/0",
      "b/000012/" + hex + "/01",  // a part has no zeros before it
      "b/000012/" + hex + "/-1",
      "b/000012/" + hex + "/0/0",
      "p/" + hex + "/16",  // slots end at 15
      "p/" + hex,
      "s/" + hex.substr(1) + "/0",
      "d/" + hex.substr(1) + "g",
      "n/" + hex + "/" + hex,  // a tenant has 16 digits
      "u/" + hex + "/0",
      "x/" + hex,
      "bb/000012/" + hex + "/0"};
  for (const std::string& key : others) EXPECT_FALSE(parse_key(key)) << key;
}

TEST(KeyParts, KindsHaveNames) {
  for (const BlobKind kind : kAllKinds) EXPECT_FALSE(name_of(kind).empty());
  EXPECT_EQ(name_of(BlobKind::kBlock), "block");
}

}  // namespace key_parts_test
}  // namespace tqcache::store
