// Prompt caches of the versions of mlx-lm and of mlx-swift-lm, and of programs that are told by
// name.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "interop/mlx_lm_builder.h"
#include "support/matchers.h"
#include "support/temp_dir.h"
#include "tqcache/interop.h"
#include "tqcache/interop/mlx/mlx_lm_layout.h"

namespace tqcache::interop {
namespace mlx_lm_versions_test {

using cache::HeadShape;
using cache::TensorKind;
using test::add_kv;
using test::head_values;
using test::MlxBuilder;
using test::must;
using test::must_import;
using test::positions;
using test::section_values;

constexpr HeadShape kShape{2, 64};

void expect_refused(const MlxBuilder& file, ErrorCode code, const std::string& message) {
  EXPECT_THAT(test::import_mlx(file.build()), test::FailsWith(code, message));
}

std::string metadata_of(const ForeignCache& cache, const std::string& key) {
  for (const auto& [name, text] : cache.metadata) {
    if (name == key) return text;
  }
  return "";
}

// Every byte of all layers, layer by layer.
std::vector<Bytes> layer_bytes(ForeignCache cache) {
  std::vector<Bytes> layers(cache.layers.size());
  const auto reader = must(reader_of(std::move(cache)));
  for (std::size_t i = 0; i < reader->blocks().size(); ++i) {
    AlignedBytes raw;
    must(reader->read(i, raw));
    Bytes& layer = layers[static_cast<std::size_t>(reader->blocks()[i].layer)];
    layer.insert(layer.end(), raw.begin(), raw.end());
  }
  return layers;
}

ForeignCache read_version(const std::string& version) {
  return must(test::import_mlx(
      test::read_all(TQCACHE_TEST_DATA "/interop/mlx_lm_" + version + ".safetensors")));
}

// --- files that the versions themselves wrote, with the same values in each

struct Version {
  const char* name;
  const char* writer;
  std::vector<int> layers;  // of those of 0.32.2, in the order of the file
};

const Version kVersions[] = {
    {"0.19.3", "mlx-lm 0.19 to 0.28.0", {0, 1, 2, 3}},
    {"0.22.5", "mlx-lm 0.19 to 0.28.0", {0, 1, 2, 3, 4}},
    {"0.28.0", "mlx-lm 0.19 to 0.28.0", {0, 1, 2, 3, 4, 5, 6, 7}},
    {"0.28.1", "mlx-lm 0.28.1 to 0.30", {0, 1, 2, 3, 4, 5, 6, 7}},
    {"0.31.3", "mlx-lm 0.31", {0, 1, 2, 3, 4, 5, 6, 7}},
    {"0.32.2", "mlx-lm 0.32.0 or later", {0, 1, 2, 3, 4, 5, 6, 7}},
};

TEST(MlxVersions, EveryVersionReadsAsTheNewestDoes) {
  const std::vector<Bytes> newest = layer_bytes(read_version("0.32.2"));
  ASSERT_EQ(newest.size(), 8u);
  for (const Version& version : kVersions) {
    const ForeignCache cache = read_version(version.name);
    EXPECT_EQ(cache.n_tokens, 23) << version.name;
    EXPECT_EQ(metadata_of(cache, "written by"), version.writer);
    EXPECT_EQ(std::get<cache::WindowDesc>(cache.layers[1].description).window,
              (cache::Window{16, 4}));
    const std::vector<Bytes> layers = layer_bytes(cache);
    ASSERT_EQ(layers.size(), version.layers.size()) << version.name;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      EXPECT_EQ(layers[i], newest[static_cast<std::size_t>(version.layers[i])])
          << version.name << " layer " << i;
    }
  }
}

TEST(MlxVersions, ListsAndClassesGoBackAsTheyCame) {
  const std::string layout =
      "KVCache,RotatingKVCache,ArraysCache,KVCache,ChunkedKVCache[32],"
      "CacheList(ArraysCache,KVCache),ConcatenateKVCache";
  for (const char* version : {"0.28.0", "0.31.3", "0.32.2"}) {
    const ForeignCache cache = read_version(version);
    EXPECT_EQ(cache.identity.source_layout, layout) << version;
    const auto expected = layer_bytes(cache);
    const auto reader = must(reader_of(cache));
    for (const int minor : {27, 28, 30, 31, 32}) {
      const test::TempDir folder;
      MlxLmExport options;
      options.version_minor = minor;
      must(export_mlx_lm(*reader, folder / "a.safetensors", options));
      const ForeignCache back = must(test::import_mlx(test::read_all(folder / "a.safetensors")));
      EXPECT_EQ(back.identity.source_layout, layout) << minor;
      EXPECT_EQ(layer_bytes(back), expected) << minor;
    }
  }
}

TEST(MlxVersions, RefusesLayersOfVersionsThatExcludeEachOther) {
  MlxBuilder file(MlxLayout::kMetaState);
  file.layer("RotatingKVCache").pair(kShape, positions(7)).infos({0, 16, 256, 7, 7});
  file.layer("RotatingKVCache").pair(kShape, positions(7)).infos({0, 16, 7, 7});
  expect_refused(file, ErrorCode::kCorrupt,
                 "layer 1: numbers as mlx-lm 0.28.1 to 0.31 writes them, but layer 0 has them as "
                 "mlx-lm 0.19 to 0.28.0 or mlx-swift-lm does");
}

TEST(MlxVersions, RefusesAsManyNumbersAsNoVersionWrites) {
  for (const auto& numbers : {std::vector<std::int64_t>{0, 16, 7}, {0, 16, 256, 7, 7, 0, 0, 0}}) {
    MlxBuilder file(MlxLayout::kMetaState);
    file.layer("RotatingKVCache").pair(kShape, positions(7)).infos(numbers);
    expect_refused(file, ErrorCode::kUnsupported,
                   "layer 0: " + std::to_string(numbers.size()) +
                       " numbers in the metadata of a RotatingKVCache: as many as no version of "
                       "mlx-lm or mlx-swift-lm that is known writes");
  }
  MlxBuilder text(MlxLayout::kMetaState);
  add_kv(text, 7).layer("ArraysCache").tensor("0", "F32", {1, 2}, Bytes(8));
  text.meta("0.1", "bfloat16:0,1");
  expect_refused(text, ErrorCode::kUnsupported,
                 "layer 1: the text \"bfloat16:0,1\" in the metadata of a ArraysCache: as no "
                 "version of mlx-lm or mlx-swift-lm that is known writes it");
}

// --- mlx-swift-lm

MlxBuilder& add_swift_kv(MlxBuilder& file, std::int64_t n) {
  return file.layer("KVCache").pair(kShape, positions(n)).info("0", "");
}

void expect_attention(const ForeignCache& cache, std::int64_t layer, std::int64_t n) {
  EXPECT_EQ(section_values(cache, layer, TensorKind::kKeys), head_values(kShape, positions(n), 0));
  EXPECT_EQ(section_values(cache, layer, TensorKind::kValues),
            head_values(kShape, positions(n), 1));
}

TEST(MlxSwift, ReadsKvCaches) {
  MlxBuilder file(MlxLayout::kMetaState);
  const ForeignCache cache = must_import(add_swift_kv(add_swift_kv(file, 7), 7));
  EXPECT_EQ(cache.n_tokens, 7);
  EXPECT_EQ(cache.identity.source_format, "mlx-swift-lm");
  EXPECT_EQ(metadata_of(cache, "written by"), "mlx-swift-lm");
  expect_attention(cache, 0, 7);
  expect_attention(cache, 1, 7);
}

TEST(MlxSwift, ReadsRingsOfEveryAge) {
  const test::Positions rows = {0, 1, 14, 15, 16, 17, 6, 7, 8, 9, 10, 11, 12, 13};
  const test::Positions ordered = {0, 1, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
  for (const auto& more : {std::vector<std::string>{}, {"modelNative"}, {"requested", "true"}}) {
    MlxBuilder file(MlxLayout::kMetaState);
    file.layer("RotatingKVCache").pair(kShape, rows).infos({2, 14, 256, 18, 6});
    for (std::size_t i = 0; i < more.size(); ++i) file.info(std::to_string(5 + i), more[i]);
    const ForeignCache cache = must_import(file);
    EXPECT_EQ(cache.n_tokens, 18);
    EXPECT_EQ(section_values(cache, 0, TensorKind::kArray, 0), head_values(kShape, ordered, 0));
    EXPECT_EQ(section_values(cache, 0, TensorKind::kArray, 1), head_values(kShape, ordered, 1));
  }
}

TEST(MlxSwift, RefusesARingThatTokensWereTakenBackFrom) {
  MlxBuilder file(MlxLayout::kMetaState);
  file.layer("RotatingKVCache").pair(kShape, positions(10)).infos({0, 14, 256, 18, 10});
  expect_refused(file.info("5", "requested").info("6", "false"), ErrorCode::kUnsupported,
                 "layer 0: a window of 14 tokens with 10 rows: tokens were taken back, and those "
                 "before the window are gone");
  expect_refused(file.info("6", "maybe"), ErrorCode::kCorrupt,
                 "layer 0: metadata: wrapped is \"maybe\"");
}

MlxBuilder& add_flat_groups(MlxBuilder& file, bool with_biases) {
  int slot = 0;
  for (int tensor = 0; tensor < 2; ++tensor) {
    file.tensor(std::to_string(slot++), "U32", {1, 2, 5, 8}, Bytes(2 * 5 * 8 * 4, std::byte{0x53}));
    file.rows(std::to_string(slot++), {2, 1}, positions(5), tensor);
    if (with_biases) file.rows(std::to_string(slot++), {2, 1}, positions(5), tensor + 2);
  }
  return file;
}

TEST(MlxSwift, ReadsGroupsInOneListOfTensors) {
  MlxBuilder swift(MlxLayout::kMetaState);
  add_flat_groups(swift.layer("QuantizedKVCache"), true).infos({256, 5, 64, 4});
  MlxBuilder python(MlxLayout::kMetaState);
  python.layer("QuantizedKVCache").infos({5, 64, 4});
  for (int tensor = 0; tensor < 2; ++tensor) {
    const std::string name = std::to_string(tensor) + ".";
    python.tensor(name + "0", "U32", {1, 2, 5, 8}, Bytes(2 * 5 * 8 * 4, std::byte{0x53}));
    python.rows(name + "1", {2, 1}, positions(5), tensor)
        .rows(name + "2", {2, 1}, positions(5), tensor + 2);
  }
  EXPECT_EQ(layer_bytes(must_import(swift)), layer_bytes(must_import(python)));
  MlxBuilder modes(MlxLayout::kMetaState);
  add_flat_groups(modes.layer("QuantizedKVCache"), false).infos({256, 5, 64, 4});
  expect_refused(modes, ErrorCode::kUnsupported,
                 "layer 0: groups without biases, as MLX's modes mxfp4, mxfp8 and nvfp4 have them");
}

TEST(MlxSwift, ReadsArraysWithEmptySlots) {
  const auto values = test::stored(Dtype::kF32, {1, 2, 3, 4});
  MlxBuilder file(MlxLayout::kMetaState);
  file.layer("ArraysCache").tensor("0", "F32", {1, 2, 2}, values).info("0", "3").info("1", "2");
  add_swift_kv(file, 7);
  const ForeignCache cache = must_import(file);
  const auto& state = std::get<cache::StateDesc>(cache.layers[0].description);
  ASSERT_EQ(state.arrays.size(), 1u);
  EXPECT_EQ(state.arrays[0].name, "2");
  MlxBuilder early(MlxLayout::kMetaState);
  early.layer("MambaCache").tensor("0", "F32", {0}, {}).tensor("1", "F32", {1, 2, 2}, values);
  early.info("0", "");
  add_swift_kv(early, 7);
  EXPECT_EQ(std::get<cache::StateDesc>(must_import(early).layers[0].description).arrays[0].name,
            "1");
  for (const char* slots : {"3", "1,1", "2,1", "x", "0,"}) {
    MlxBuilder bad(MlxLayout::kMetaState);
    bad.layer("ArraysCache").tensor("0", "F32", {1, 2, 2}, values).info("0", "3").info("1", slots);
    add_swift_kv(bad, 7);
    const auto refused = test::import_mlx(bad.build());
    if (std::string(slots) == "0,") continue;  // a comma at the end is no slot
    ASSERT_FALSE(refused.ok()) << slots;
    EXPECT_EQ(refused.error().message,
              std::string("layer 0: metadata: slots \"") + slots + "\" of 3");
  }
  MlxBuilder padded(MlxLayout::kMetaState);
  padded.layer("ArraysCache").tensor("0", "F32", {1, 2, 2}, values);
  padded.info("0", "1").info("1", "0").info("2", "").info("3", "5");
  expect_refused(add_swift_kv(padded, 7), ErrorCode::kUnsupported,
                 "layer 0: an ArraysCache with lengths");
}

// An empty slot is written as None again, where mlx-lm can have one.
TEST(MlxSwift, EmptySlotsGoBackToMlxLm) {
  const auto values = test::stored(Dtype::kF32, {1, 2, 3, 4});
  MlxBuilder file(MlxLayout::kMetaState);
  file.layer("ArraysCache").tensor("0", "F32", {1, 2, 2}, values).info("0", "2").info("1", "1");
  add_swift_kv(file, 7);
  const test::TempDir folder;
  must(export_mlx_lm(*must(reader_of(must_import(file))), folder / "a.safetensors", {}));
  const ForeignCache back = must(test::import_mlx(test::read_all(folder / "a.safetensors")));
  const auto& state = std::get<cache::StateDesc>(back.layers[0].description);
  ASSERT_EQ(state.arrays.size(), 1u);
  EXPECT_EQ(state.arrays[0].name, "1");
}

TEST(MlxSwift, ReadsChunks) {
  MlxBuilder none(MlxLayout::kMetaState);
  none.layer("ChunkedKVCache").pair(kShape, positions(7)).info("0", "None").info("1", "0");
  expect_attention(must_import(add_swift_kv(none, 7)), 0, 7);
  // Early versions wrote the name of the base class.
  MlxBuilder early(MlxLayout::kMetaState);
  early.layer("KVCache").pair(kShape, positions(7)).infos({32, 0});
  const ForeignCache cache = must_import(add_swift_kv(early, 7));
  expect_attention(cache, 0, 7);
  EXPECT_EQ(cache.identity.source_layout, "ChunkedKVCache[32],KVCache");
}

TEST(MlxSwift, ReadsListsOfCaches) {
  MlxBuilder file(MlxLayout::kMetaState);
  file.layer("CacheList");
  file.tensor("0", "F32", {1, 2, 2}, test::stored(Dtype::kF32, {1, 2, 3, 4}));
  file.rows("1", kShape, positions(7)).rows("2", kShape, positions(7), 1);
  const std::vector<std::string> words = {"2", "MambaCache", "1", "2", "2",
                                          "1", "KVCache",    "2", "1", ""};
  for (std::size_t i = 0; i < words.size(); ++i) file.info(std::to_string(i), words[i]);
  const ForeignCache cache = must_import(file);
  ASSERT_EQ(cache.layers.size(), 2u);
  EXPECT_EQ(cache.identity.source_layout, "CacheList(ArraysCache,KVCache)");
  EXPECT_EQ(std::get<cache::StateDesc>(cache.layers[0].description).arrays[0].name, "1");
  expect_attention(cache, 1, 7);
  for (const auto& [at, word] : {std::pair{"0", "3"},
                                 {"0", "1"},
                                 {"0", "x"},
                                 {"2", "99999999999"},
                                 {"3", "9"},
                                 {"8", "4"}}) {
    MlxBuilder bad = file;
    bad.info(at, word);
    const auto refused = test::import_mlx(bad.build());
    ASSERT_FALSE(refused.ok()) << at << ' ' << word;
    EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt) << refused.error().message;
  }
}

TEST(MlxSwift, UsesTheTokensThatItNotes) {
  MlxBuilder file(MlxLayout::kMetaState);
  file.layer("ChunkedKVCache").pair(kShape, positions(12, 20)).infos({8, 12});
  file.user("__mlx_lm_offset_0", "20");
  EXPECT_EQ(must_import(file).n_tokens, 20);
  EXPECT_THAT(must_import(file).dropped_fields, testing::IsEmpty());
  MlxBuilder other(MlxLayout::kMetaState);
  add_swift_kv(other, 7).user("__mlx_lm_offset_0", "9");
  expect_refused(other, ErrorCode::kCorrupt, "layer 0: 7 tokens, but the metadata notes 9 for it");
}

TEST(MlxSwift, RefusesTheStateOfAModel) {
  MlxBuilder file(MlxLayout::kMetaState);
  file.layer("__mlx_lm_state_v1__:KVCache").pair(kShape, positions(7)).info("0", "");
  file.user("__mlx_lm_state_version", "1").user("__mlx_lm_state_count", "1");
  file.user("__mlx_lm_state_0_key", "ropeDeltas");
  expect_refused(
      file, ErrorCode::kUnsupported,
      "mlx-swift-lm saved the state of a model beside its caches: \"ropeDeltas\", and "
      "the positions of later tokens depend on it (images): a cache of text alone can be "
      "converted");
}

// --- layers that disagree, and chunks of mlx-lm before 0.23.2

TEST(MlxVersions, RefusesLayersThatDisagreeNamingBoth) {
  MlxBuilder ring(MlxLayout::kMetaState);
  add_kv(ring, 600).layer("RotatingKVCache").pair(kShape, positions(512));
  expect_refused(ring.infos({0, 512, 256, 599, 512}), ErrorCode::kCorrupt,
                 "layer 1: 599 tokens, but layer 0 has 600");
  MlxBuilder stale(MlxLayout::kMetaState);
  add_kv(stale, 500).layer("ConcatenateKVCache").pair(kShape, positions(600)).no_info();
  expect_refused(stale, ErrorCode::kCorrupt, "layer 1: 600 tokens, but layer 0 has 500");
  MlxBuilder empty(MlxLayout::kMetaState);
  add_kv(add_kv(empty, 600), 0);
  expect_refused(empty, ErrorCode::kCorrupt, "layer 1: 0 tokens, but layer 0 has 600");
}

TEST(MlxVersions, ReadsTheRestOfAChunkAfterWholeChunksWereDropped) {
  MlxBuilder file(MlxLayout::kMetaState);
  file.layer("ChunkedKVCache").pair(kShape, positions(64, 73)).infos({64, 64});
  const ForeignCache cache = must_import(add_kv(file, 73));
  EXPECT_EQ(cache.n_tokens, 73);
  EXPECT_EQ(std::get<cache::WindowDesc>(cache.layers[0].description).window, (cache::Window{9, 0}));
  EXPECT_EQ(section_values(cache, 0, TensorKind::kArray, 0),
            head_values(kShape, positions(64, 73), 0));
}

// --- classes of other programs

TEST(MlxPrograms, NamesTheProgramOfAClass) {
  const auto refusal_of = [](const std::string& name, std::size_t n_numbers) {
    MlxBuilder file(MlxLayout::kMetaState);
    file.layer(name).pair(kShape, positions(7));
    for (std::size_t i = 0; i < n_numbers; ++i) file.info(std::to_string(i), "4");
    const auto cache = test::import_mlx(add_kv(file, 7).build());
    EXPECT_EQ(cache.error().code, ErrorCode::kUnsupported);
    return cache.error().message;
  };
  EXPECT_EQ(
      refusal_of("TurboQuantKVCache", 5),
      "layer 0: class \"TurboQuantKVCache\", of mlx-swift-lm: not read; its quantized state has "
      "a form of its own: save a cache without TurboQuant");
  EXPECT_THAT(refusal_of("TurboQuantKVCache", 7), testing::HasSubstr("of Rapid-MLX:"));
  EXPECT_THAT(refusal_of("TurboQuantKVCache", 3), testing::HasSubstr("of mlx-vlm, omlx,"));
  for (const char* name : {"BufferedRotatingKVCache", "BatchQuantizedKVCache", "PoolingCache",
                           "StaticPrefixKVCache"}) {
    EXPECT_EQ(refusal_of(name, 1),
              std::string("layer 0: class \"") + name +
                  "\", of mlx-vlm: not read; save the cache with classes of mlx-lm");
  }
  EXPECT_THAT(refusal_of("QuantizedRotatingKVCache", 5), testing::HasSubstr("pull request 968"));
  EXPECT_EQ(refusal_of("NewCache", 2), "layer 0: class \"NewCache\" is unknown");
}

TEST(MlxPrograms, NamesTheFirstClassThatIsNotRead) {
  MlxBuilder file(MlxLayout::kMetaState);
  for (int i = 0; i < 2; ++i) file.layer("TurboQuantKVCache").pair(kShape, positions(7));
  add_kv(file, 8);
  EXPECT_THAT(test::import_mlx(file.build()),
              test::FailsWith(ErrorCode::kUnsupported,
                              testing::StartsWith("layer 0: class \"TurboQuantKVCache\"")));
}

// --- the text of a layout

TEST(MlxObjects, AreWrittenAndReadAsAText) {
  const cache::LayerDesc attention = cache::AttentionDesc{kShape, {}, {}};
  const cache::LayerDesc state = cache::StateDesc{};
  const std::vector<cache::LayerDesc> layers = {state, attention, state, attention, attention};
  const MlxObject list{.members = {{"ArraysCache"}, {"KVCache"}}, .is_list = true};
  const std::vector<MlxObject> objects = {list, list, {.members = {{"ChunkedKVCache", 8192}}}};
  EXPECT_EQ(format_objects(objects), "CacheList(ArraysCache,KVCache)*2,ChunkedKVCache[8192]");
  EXPECT_EQ(must(parse_objects(format_objects(objects), layers)), objects);
  for (const char* text :
       {"", "KVCache", "CacheList(ArraysCache,KVCache)*2", "CacheList(ArraysCache,KVCache)*3",
        "CacheList(ArraysCache,KVCache)*2,RotatingKVCache", "CacheList(ArraysCache,KVCache)*0",
        "CacheList(ArraysCache,KVCache)*2,ChunkedKVCache", "CacheList(ArraysCache,KVCache",
        "CacheList()*5", "CacheList(ArraysCache,KVCache)*2,ChunkedKVCache[x]",
        "CacheList(ArraysCache,KVCache)*2,KVCache[7]", "CacheList(ArraysCache,KVCache)*2,KVCache,",
        "CacheList(ArraysCache,KVCache)*99999999999999999999", "*****", "CacheList(CacheList("}) {
    const auto parsed = parse_objects(text, layers);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::kCorrupt);
  }
}

}  // namespace mlx_lm_versions_test
}  // namespace tqcache::interop
