#include "tqcache/store/blobs/blob.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "store/blob_fixture.h"
#include "support/temp_dir.h"
#include "tqcache/cache/blocks.h"

namespace tqcache::test {
namespace blob_test {

using cache::LayerDesc;
using store::Block;
using store::Content;
using store::Data;
using store::Parameters;
using store::PromptRecord;
using store::Snapshot;
using store::StoredSection;
using store::UsageNote;
using testing::ElementsAre;
using testing::HasSubstr;

bool same_layers(const std::vector<LayerDesc>& a, const std::vector<LayerDesc>& b) {
  const auto bytes = [](const std::vector<LayerDesc>& layers) {
    format::Manifest manifest;
    manifest.layers = layers;
    return must(format::encode_manifest(manifest));
  };
  return bytes(a) == bytes(b);
}

void expect_same(const std::vector<StoredSection>& a, const std::vector<StoredSection>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(cache::key_of(a[i].info), cache::key_of(b[i].info));
    EXPECT_EQ(a[i].info.packed, b[i].info.packed);
    EXPECT_EQ(a[i].info.compression, b[i].info.compression);
    EXPECT_EQ(a[i].info.raw_bytes, b[i].info.raw_bytes);
    EXPECT_EQ(a[i].info.checksum, b[i].info.checksum);
    EXPECT_EQ(a[i].info.raw_sha256, b[i].info.raw_sha256);
    EXPECT_TRUE(std::ranges::equal(a[i].stored.view(), b[i].stored.view()));
  }
}

void expect_same(const Snapshot& a, const Snapshot& b) {
  EXPECT_EQ(a.n_tokens, b.n_tokens);
  EXPECT_EQ(a.tail, b.tail);
  EXPECT_TRUE(same_layers(a.layers, b.layers));
  EXPECT_EQ(a.data_keys, b.data_keys);
  EXPECT_EQ(a.data_bytes, b.data_bytes);
  EXPECT_EQ(a.content_name, b.content_name);
}

TEST(Blob, ParametersComeBack) {
  const auto& [name, key, content] = sample("parameters");
  const auto parameters = decode_as<Parameters>(key, sample_bytes(name));
  const Parameters expected = sample_parameters();
  EXPECT_EQ(parameters.identity.model_name, expected.identity.model_name);
  EXPECT_EQ(parameters.identity.rope, expected.identity.rope);
  EXPECT_EQ(parameters.identity.adapter_fingerprint, expected.identity.adapter_fingerprint);
  EXPECT_EQ(parameters.tokens, expected.tokens);
  EXPECT_TRUE(same_layers(parameters.layers, expected.layers));
  const auto mean_of = [](Parameters each) { return sample_keys(each.layers).mean; };
  EXPECT_EQ(mean_of(parameters), mean_of(expected));
}

TEST(Blob, ABlockComesBack) {
  const auto& [name, key, content] = sample("block");
  const auto block = decode_as<Block>(key, sample_bytes(name));
  const Block expected = sample_block();
  EXPECT_EQ(block.parent, expected.parent);
  EXPECT_EQ(block.index, 1);
  EXPECT_EQ(block.part, 0);
  EXPECT_EQ(block.n_parts, 1);
  EXPECT_EQ(block.tokens, expected.tokens);
  expect_same(block.sections, expected.sections);
}

TEST(Blob, AStateComesBack) {
  const auto& [name, key, content] = sample("state");
  expect_same(decode_as<Snapshot>(key, sample_bytes(name)), sample_state());
}

TEST(Blob, DataComesBack) {
  const auto& [name, key, content] = sample("data");
  expect_same(decode_as<Data>(key, sample_bytes(name)).sections, sample_data().sections);
}

TEST(Blob, ARecordComesBack) {
  const auto& [name, key, content] = sample("record");
  const auto record = decode_as<PromptRecord>(key, sample_bytes(name));
  const PromptRecord expected = sample_record();
  EXPECT_EQ(record.name, expected.name);
  EXPECT_EQ(record.model_name, expected.model_name);
  EXPECT_EQ(record.architecture, expected.architecture);
  EXPECT_EQ(record.tokens, expected.tokens);
  EXPECT_EQ(record.parameters_key, expected.parameters_key);
  EXPECT_EQ(record.chain, expected.chain);
  EXPECT_EQ(record.state_key, expected.state_key);
  EXPECT_EQ(record.created, expected.created);
  EXPECT_EQ(record.bytes, expected.bytes);
  expect_same(record.snapshot, expected.snapshot);
}

TEST(Blob, UsageComesBack) {
  const auto& [name, key, content] = sample("usage");
  const auto usage = decode_as<UsageNote>(key, sample_bytes(name));
  EXPECT_EQ(usage.created, 1790000001);
  EXPECT_EQ(usage.wanted_tokens, 515);
  EXPECT_EQ(usage.found_tokens, 512);
  EXPECT_EQ(usage.read_bytes, 4096U);
  EXPECT_EQ(usage.stored_bytes, 100U);
}

TEST(Blob, NextComesBack) {
  const auto& [name, key, content] = sample("next");
  EXPECT_EQ(decode_as<store::Next>(key, sample_bytes(name)).tokens, sample_tokens(256));
}

// A prompt of few tokens has no final block, but parameters and a record.
TEST(Blob, AShortPromptComesBack) {
  Parameters parameters = sample_parameters();
  parameters.tokens = sample_tokens(10);
  const std::string key = sample("parameters").key;
  EXPECT_EQ(decode_as<Parameters>(key, must(store::encode_blob(key, parameters))).tokens,
            sample_tokens(10));
  PromptRecord record = sample_record();
  record.tokens = record.snapshot.tail = sample_tokens(256);
  record.snapshot.n_tokens = 256;
  record.chain.clear();
  record.state_key.clear();
  const std::string& name = sample("record").key;
  EXPECT_EQ(decode_as<PromptRecord>(name, must(store::encode_blob(name, record))).snapshot.tail,
            sample_tokens(256));
}

TEST(Blob, EqualContentGivesEqualBytes) {
  for (const SampleBlob& each : sample_blobs()) {
    const Bytes once = must(store::encode_blob(each.key, each.content));
    const Content content = must(decode(each.key, once));
    EXPECT_EQ(must(store::encode_blob(each.key, content)), once) << each.name;
  }
}

TEST(Blob, SectionsAreAlignedViewsOfTheBlob) {
  const SharedBytes blob = shared(sample_bytes("data"));
  const auto data = std::get<Data>(must(store::decode_blob(sample("data").key, blob)));
  for (const StoredSection& section : data.sections) {
    const auto offset = section.stored.data() - blob.data();
    EXPECT_GE(offset, 0);
    EXPECT_LE(static_cast<std::size_t>(offset) + section.stored.size(), blob.size());
    EXPECT_EQ(offset % 64, 0);
  }
}

// Blobs need not begin at a multiple of 64: the buffer of a backend seldom does.
TEST(Blob, IsReadAtAnyAlignment) {
  for (const SampleBlob& each : sample_blobs()) {
    const Bytes blob = sample_bytes(each.name);
    AlignedBytes moved(blob.size() + 1);
    std::ranges::copy(blob, moved.begin() + 1);
    EXPECT_TRUE(store::decode_blob(each.key, SharedBytes(std::move(moved)).part(1, blob.size())))
        << each.name;
  }
}

TEST(Blob, ParametersKeepNoShapesOfArrays) {
  Parameters parameters = sample_parameters();
  parameters.layers = sample_layers();
  const std::string& key = sample("parameters").key;
  EXPECT_EQ(must(store::encode_blob(key, parameters)), sample_bytes("parameters"));
}

TEST(Blob, SnapshotsKeepNoMeansAndCodecs) {
  Snapshot snapshot = sample_state();
  snapshot.layers = sample_layers();
  const std::string& key = sample("state").key;
  EXPECT_EQ(must(store::encode_blob(key, snapshot)), sample_bytes("state"));
}

// They stay windows in turbo form; with what, the parameters say.
TEST(Blob, SnapshotsKeepOnlyCodecsOfQuantizedWindows) {
  Snapshot state = sample_state();
  auto layers = sample_layers();
  const cache::WindowDesc window{sample_attention(layers), {300, 0}};
  state.layers.push_back(window);
  const std::string& key = sample("state").key;
  const Snapshot back = decode_as<Snapshot>(key, must(store::encode_blob(key, state)));
  const auto& bare = std::get<cache::WindowDesc>(back.layers.back());
  EXPECT_EQ(bare.window.size, 300);
  const cache::QuantSpec& keys = bare.attention.k.quant.value();
  EXPECT_TRUE(cache::same_bits(keys.parts, window.attention.k.quant->parts));
  EXPECT_EQ(keys.centering, cache::Centering::kNone);
  EXPECT_TRUE(keys.mean.empty());

  std::vector<LayerDesc> parameters = sample_parameters().layers;
  parameters.push_back(window);
  const auto joined = must(store::join_layers(parameters, back.layers));
  EXPECT_TRUE(same_layers({joined.back()}, {window}));
}

TEST(Blob, SnapshotAndParametersGiveTheLayersOfAPrompt) {
  const auto layers = store::join_layers(sample_parameters().layers, sample_state().layers);
  ASSERT_TRUE(layers.ok()) << layers.error().message;
  EXPECT_TRUE(same_layers(*layers, sample_layers()));
}

TEST(Blob, LayersThatDoNotBelongTogetherAreNotJoined) {
  const auto expect_mismatch = [](auto change) {
    std::vector<LayerDesc> bare = sample_state().layers;
    change(bare);
    const auto joined = store::join_layers(sample_parameters().layers, bare);
    ASSERT_FALSE(joined.ok());
    EXPECT_EQ(joined.error().code, ErrorCode::kMismatch);
  };
  expect_mismatch([](auto& layers) { layers.pop_back(); });
  expect_mismatch([](auto& layers) { sample_attention(layers).shape.head_dim = 64; });
  expect_mismatch([](auto& layers) { sample_window(layers).window.size = 9; });
  expect_mismatch([](auto& layers) { std::swap(layers[1], layers[2]); });
  expect_mismatch([](auto& layers) { sample_arrays(layers)[0].name = "other"; });
  expect_mismatch([](auto& layers) { sample_arrays(layers)[0].dtype = Dtype::kF32; });
  expect_mismatch([](auto& layers) { sample_arrays(layers).pop_back(); });
}

// All that is in the content name of a prompt, so that each chain has one.
TEST(HashParameters, CountsAllButTokensAndShapesOfArrays) {
  const Sha256 hash = store::hash_parameters(sample_parameters());
  const auto changed = [](auto change) {
    Parameters parameters = sample_parameters();
    change(parameters);
    return store::hash_parameters(parameters);
  };
  EXPECT_NE(changed([](Parameters& p) { sample_keys(p.layers).mean[31] = 0; }), hash);
  EXPECT_NE(changed([](Parameters& p) { sample_keys(p.layers).parts[0].seed = 1; }), hash);
  EXPECT_NE(changed([](Parameters& p) { sample_attention(p.layers).v.dtype = Dtype::kF16; }), hash);
  EXPECT_NE(changed([](Parameters& p) { p.identity.weights_fingerprint[3] = {}; }), hash);
  EXPECT_NE(changed([](Parameters& p) { p.identity.source_format = "mlx-lm"; }), hash);
  EXPECT_NE(changed([](Parameters& p) { p.identity.model_name = "other"; }), hash);
  EXPECT_EQ(changed([](Parameters& p) { p.tokens[5] = 1; }), hash);
  EXPECT_NE(changed([](Parameters& p) { p.identity.standing = cache::Standing::kUnchecked; }),
            hash);
  EXPECT_EQ(changed([](Parameters& p) { p.layers = sample_layers(); }), hash);
}

TEST(CutIntoParts, EndsARunBeforeItGetsTooLarge) {
  constexpr std::uint64_t kMiB = 1 << 20;
  const auto cut = [](std::vector<std::uint64_t> sizes) { return store::cut_into_parts(sizes); };
  EXPECT_THAT(cut({}), ElementsAre(0));
  EXPECT_THAT(cut({1, 2, 3}), ElementsAre(3));
  EXPECT_THAT(cut({kMiB, kMiB, 1}), ElementsAre(2, 3));
  EXPECT_THAT(cut({kMiB, kMiB + 1, kMiB}), ElementsAre(1, 2, 3));
  EXPECT_THAT(cut({1, 5 * kMiB, 1, 1}), ElementsAre(1, 2, 4));
  EXPECT_THAT(cut({0, 5 * kMiB, 0}), ElementsAre(2, 3));
  EXPECT_THAT(cut({~std::uint64_t{0}, ~std::uint64_t{0}}), ElementsAre(1, 2));
}

// As a model of 36 layers with 8 heads of 128, f16: 512 KiB a section.
std::vector<LayerDesc> many_layers() {
  return std::vector<LayerDesc>(36, cache::AttentionDesc{{8, 128}, {}, {}});
}

TEST(BlockParts, FollowFromTheLayers) {
  const std::vector<std::size_t> ends = store::block_parts(many_layers(), 7);
  ASSERT_EQ(ends.size(), 18U);
  for (std::size_t i = 0; i < ends.size(); ++i) EXPECT_EQ(ends[i], 4 * (i + 1));
  EXPECT_THAT(store::block_parts(sample_layers(), 0), ElementsAre(2));
  EXPECT_THAT(store::block_parts({sample_layers()[2]}, 0), ElementsAre(0));
}

TEST(CheckBlock, TakesTheSectionsOfItsLayers) {
  const auto checked = store::check_block(sample_parameters(), sample_block());
  EXPECT_TRUE(checked.ok()) << checked.error().message;
}

TEST(CheckBlock, RefusesOtherSections) {
  const auto expect_corrupt = [](auto change) {
    Parameters parameters = sample_parameters();
    Block block = sample_block();
    change(parameters, block);
    const auto checked = store::check_block(parameters, block);
    ASSERT_FALSE(checked.ok());
    EXPECT_EQ(checked.error().code, ErrorCode::kCorrupt);
  };
  expect_corrupt([](Parameters&, Block& b) { b.sections.pop_back(); });
  expect_corrupt([](Parameters&, Block& b) { b.sections[0].info.raw_bytes += 1; });
  expect_corrupt([](Parameters&, Block& b) { b.sections[0].info.packed = false; });
  expect_corrupt([](Parameters&, Block& b) { b.sections[1].info.packed = true; });
  expect_corrupt([](Parameters&, Block& b) { b.n_parts = 2; });
  expect_corrupt([](Parameters&, Block& b) { b.part = 1; });
  expect_corrupt([](Parameters& p, Block&) { sample_keys(p.layers).mean.clear(); });
  expect_corrupt([](Parameters& p, Block&) { p.layers.erase(p.layers.begin()); });
}

TEST(CheckBlock, KnowsWhichSectionsAPartHas) {
  Parameters parameters;
  parameters.layers = many_layers();
  Block block;
  block.index = 3;
  block.part = 17;
  block.n_parts = 18;
  for (std::int64_t layer = 34; layer < 36; ++layer) {
    for (const auto tensor : {cache::TensorKind::kKeys, cache::TensorKind::kValues}) {
      block.sections.push_back(sample_section(layer, tensor, 3, 10, 524288));
    }
  }
  EXPECT_TRUE(store::check_block(parameters, block));
  block.part = 16;
  EXPECT_FALSE(store::check_block(parameters, block));
}

}  // namespace blob_test
}  // namespace tqcache::test
