#include <gtest/gtest.h>

#include "support/matchers.h"
#include "tqcache/interop/mlx/mlx_lm_state.h"

namespace tqcache::interop {
namespace mlx_lm_meta_test {

using tensors::SafetensorsIndex;

SafetensorsIndex index_of(std::map<std::string, std::string> metadata,
                          const std::vector<std::string>& tensors = {}) {
  SafetensorsIndex index;
  index.metadata = std::move(metadata);
  for (const std::string& name : tensors) index.tensors[name] = {};
  return index;
}

void expect_refused(const SafetensorsIndex& index, ErrorCode code, const std::string& message) {
  EXPECT_THAT(read_mlx_meta(index), test::FailsWith(code, message));
}

TEST(MlxMeta, TellsTheLayoutsApart) {
  EXPECT_EQ(mlx_layout(index_of({{"2.0", "KVCache"}})), MlxLayout::kMetaState);
  EXPECT_EQ(mlx_layout(index_of({{"1.0", "KVCache"}, {"2.0", ""}})), MlxLayout::kScalars);
  EXPECT_EQ(mlx_layout(index_of({}, {"0_keys", "0_values"})), MlxLayout::kNamedPairs);
}

TEST(MlxMeta, KnowsOtherSafetensorsFiles) {
  EXPECT_FALSE(mlx_layout(index_of({})));
  EXPECT_FALSE(mlx_layout(index_of({{"format", "pt"}}, {"model.embed_tokens.weight"})));
  EXPECT_FALSE(mlx_layout(index_of({{"2.0", ""}})));
  EXPECT_FALSE(mlx_layout(index_of({}, {"0_keys", "weight"})));
  EXPECT_FALSE(mlx_layout(index_of({}, {"_keys"})));
  EXPECT_FALSE(mlx_layout(index_of({}, {"a_keys"})));
}

TEST(MlxMeta, ReadsTheMetadataBefore032) {
  const SafetensorsIndex index = index_of({{"0.0", ""},
                                           {"0.1.0", "4"},
                                           {"0.1.1", "512"},
                                           {"1.model", "a/b"},
                                           {"1.x.y", "z"},
                                           {"2.0", "KVCache"},
                                           {"2.1", "RotatingKVCache"},
                                           {"format", "mlx"}});
  const auto meta = read_mlx_meta(index);
  ASSERT_TRUE(meta.ok()) << meta.error().message;
  EXPECT_EQ(meta->classes, (std::vector<std::string_view>{"KVCache", "RotatingKVCache"}));
  EXPECT_EQ(meta->user, (MlxMeta::Texts{{"model", "a/b"}, {"x.y", "z"}, {"format", "mlx"}}));
  EXPECT_TRUE(meta->info_list("0").empty());
  EXPECT_EQ(meta->info_list("1"), (std::vector<std::string_view>{"4", "512"}));
}

TEST(MlxMeta, ReadsTheMetadataSince032) {
  const SafetensorsIndex index = index_of({{"0.model", "a/b"},
                                           {"1.0", "KVCache"},
                                           {"2.0", ""},
                                           {"2.1.0", "0.2"},
                                           {"2.1.1", "scalar"},
                                           {"2.2.0", "0.3"},
                                           {"2.2.1", "none"},
                                           {"2.3.0", "0.4"},
                                           {"2.3.1", "string"}},
                                          {"0.2", "0.3", "0.4"});
  const auto meta = read_mlx_meta(index);
  ASSERT_TRUE(meta.ok()) << meta.error().message;
  EXPECT_EQ(meta->classes, std::vector<std::string_view>{"KVCache"});
  EXPECT_EQ(meta->user, (MlxMeta::Texts{{"model", "a/b"}}));
  EXPECT_EQ(meta->scalars, (std::map<std::string_view, MlxScalar>{{"0.2", MlxScalar::kNumber},
                                                                  {"0.3", MlxScalar::kNone},
                                                                  {"0.4", MlxScalar::kText}}));
}

TEST(MlxMeta, RefusesClassesWithGaps) {
  expect_refused(index_of({{"2.0", "KVCache"}, {"2.2", "KVCache"}}), ErrorCode::kCorrupt,
                 "metadata: no class of layer 1");
  expect_refused(index_of({{"2.0", "KVCache"}, {"2.1.0", "KVCache"}}), ErrorCode::kCorrupt,
                 "metadata: no class of layer 1");
  expect_refused(index_of({{"2.0", "KVCache"}, {"2.999999999", "KVCache"}}), ErrorCode::kCorrupt,
                 "metadata: no class of layer 1");
}

TEST(MlxMeta, LimitsTheNumberOfLayers) {
  std::map<std::string, std::string> metadata;
  for (int i = 0; i <= 1024; ++i) metadata["2." + std::to_string(i)] = "KVCache";
  expect_refused(index_of(metadata), ErrorCode::kTooLarge, "metadata: 1025 layers");
}

TEST(MlxMeta, RefusesScalarsThatAreNotWhole) {
  const auto with = [](std::map<std::string, std::string> more) {
    more.insert({{"1.0", "KVCache"}, {"2.0", ""}});
    return index_of(std::move(more), {"0.2"});
  };
  expect_refused(with({{"2.1.0", "0.2"}}), ErrorCode::kCorrupt, "metadata: scalar 1 is missing");
  expect_refused(with({{"2.1.0", "0.2"}, {"2.1.1", "scalar"}, {"2.2.0", "0.2"}}),
                 ErrorCode::kCorrupt, "metadata: scalar 2 is missing");
  expect_refused(with({{"2.1.0", "0.2"}, {"2.1.2", "scalar"}}), ErrorCode::kCorrupt,
                 "metadata: scalar 1 is missing");
  expect_refused(with({{"2.1.0", "0.9\x1b"}, {"2.1.1", "scalar"}}), ErrorCode::kCorrupt,
                 "metadata: scalar 1: no tensor \"0.9?\"");
  expect_refused(with({{"2.1.0", "0.2"}, {"2.1.1", "complex"}}), ErrorCode::kUnsupported,
                 "metadata: scalar 1: kind \"complex\" is unknown");
  expect_refused(with({{"2.1.0", "0.2"}, {"2.1.1", "none"}, {"2.2.0", "0.2"}, {"2.2.1", "none"}}),
                 ErrorCode::kCorrupt, "metadata: scalar 2: given twice");
}

TEST(MlxMeta, ReadsPlainNumbersOnly) {
  EXPECT_EQ(mlx_number("0"), 0);
  EXPECT_EQ(mlx_number("300"), 300);
  EXPECT_EQ(mlx_number("9007199254740991"), 9007199254740991);
  for (const char* text : {"", "-1", "+1", " 1", "1 ", "1.0", "0x1", "9007199254740992",
                           "99999999999999999999", "True"}) {
    EXPECT_EQ(mlx_number(text), std::nullopt) << text;
  }
}

TEST(MlxMeta, MakesTextFitForPeople) {
  EXPECT_EQ(mlx_text("a/b \"c\"", 100), "a/b \"c\"");
  EXPECT_EQ(mlx_text("\x1b[2J\xc3\xa9\n", 100), "?[2J???");
  EXPECT_EQ(mlx_text("abcdef", 3), "abc");
}

}  // namespace mlx_lm_meta_test
}  // namespace tqcache::interop
