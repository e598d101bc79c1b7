// Files that were written once and are kept for ever: whatever becomes of this library, it reads
// them to the same values.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "golden_json.h"
#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "tqcache/codec/head_codec.h"
#include "tqcache/format/container_format.h"
#include "tqcache/predict/predictor.h"

namespace tqcache::test {
namespace golden_test {

const std::filesystem::path kFolder = TQCACHE_GOLDEN_FILES;

std::vector<std::string> names_ending(const std::string& ending) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ending) names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

Bytes golden_file(const std::string& name) { return read_all(kFolder / (name + ".tqkv")); }

Json twin(const std::string& name) {
  std::ifstream in(kFolder / (name + ".json"));
  return Json::parse(in);
}

TEST(GoldenFiles, HaveATwinEach) {
  EXPECT_THAT(names_ending(".tqkv"), testing::Not(testing::IsEmpty()));
  EXPECT_EQ(names_ending(".tqkv"), names_ending(".json"));
}

// They hold what the plain ones of the same name hold, so these twins are theirs, too.
TEST(GoldenFiles, AreReadEncrypted) {
  const std::filesystem::path folder = TQCACHE_GOLDEN_ENCRYPTED;
  const KeyRing keys = must(KeyRing::parse(read_all(folder / "golden.key")));
  std::size_t n_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".tqkv") continue;
    const std::string name = entry.path().stem().string();
    SCOPED_TRACE(name);
    const auto encrypted = memory_source(read_all(entry.path()));
    const auto plain = memory_source(golden_file(name));
    const auto info = must(format::read_cache_info(*encrypted, keys));
    const auto expected = must(format::read_cache_info(*plain));
    EXPECT_EQ(info.required_features, expected.required_features | format::kFeatureEncrypted);
    EXPECT_EQ(info.generation, expected.generation);
    EXPECT_EQ(info.content_name, expected.content_name);
    EXPECT_EQ(to_hex(info.encryption->key_id), "c5d7c9dc3334dc4841f254811f418df8");
    EXPECT_EQ(difference(must(format::read_cache(*encrypted, {.n_threads = 1, .access = {keys}})),
                         must(format::read_cache(*plain, {.n_threads = 1}))),
              "");
    const auto report = must(format::verify_cache(*encrypted, {.n_threads = 1, .access = {keys}}));
    EXPECT_THAT(report.damage, testing::IsEmpty());
    EXPECT_EQ(format::read_cache_info(*encrypted).error().code, ErrorCode::kNoKey);
    n_files += 1;
  }
  EXPECT_EQ(n_files, 6u);
}

// What no golden file has could change unseen.
TEST(GoldenFiles, HaveEveryNameAndNumberOfTheFormat) {
  std::set<std::string> have;
  std::set<int> bits;
  std::uint32_t features = 0;
  for (const std::string& name : names_ending(".tqkv")) {
    const auto info = must(format::read_cache_info(*memory_source(golden_file(name))));
    features |= info.required_features;
    for (const cache::LayerDesc& layer : info.layers) {
      have.emplace(format::type_name(layer));
      if (!cache::is_in_token_blocks(layer)) continue;
      const cache::AttentionDesc& attention = *cache::attention_of(layer);
      for (const cache::TensorDesc* tensor : {&attention.k, &attention.v}) {
        have.emplace(format::type_name(*tensor));
        if (!tensor->quant) continue;
        have.emplace(format::centering_name(*tensor->quant));
        for (const codec::PartSpec& part : tensor->quant->parts) {
          bits.insert(part.bits);
          have.insert(std::string(format::name_of(format::kScaleNames, part.scale)));
          have.insert(std::string(format::name_of(format::kTransformNames, part.rotation)) + " " +
                      std::to_string(part.rounds));
        }
      }
    }
  }
  EXPECT_EQ(features, format::kFeatureGaps | format::kFeatureHiddenTokens | format::kFeaturePlanes);
  EXPECT_THAT(bits, testing::ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(have, testing::IsSupersetOf({"tqcache.attention.v1",
                                           "tqcache.arrays.v1",
                                           "tqcache.rotating.v1",
                                           "tqcache.rotating.v2",
                                           "tqcache.dense.v1",
                                           "tqcache.turbo_mse.v1",
                                           "tqcache.turbo_prod.v1",
                                           "tqcache.turbo_mixed.v1",
                                           "tqcache.affine.v1",
                                           "hartley_hadamard.v1 1",
                                           "hartley_hadamard.v1 2",
                                           "hartley_hadamard.v1 3",
                                           "dense_qr.v1 1",
                                           "gaussian.v1 1",
                                           "none.v1 1",
                                           "unbiased.v1",
                                           "norm.v1",
                                           "raw.v1",
                                           "peak.v1",
                                           "none",
                                           "post_rope.v1",
                                           "pre_rope.v1",
                                           "post_rope.v2",
                                           "pre_rope.v2"}));
}

class Golden : public testing::TestWithParam<std::string> {
 protected:
  const Bytes file_ = golden_file(GetParam());
};

TEST_P(Golden, HoldsWhatItsTwinSays) { EXPECT_EQ(golden_json(file_), twin(GetParam())); }

TEST_P(Golden, IsWhole) {
  const auto report = must(format::verify_cache(*memory_source(file_)));
  EXPECT_THAT(report.damage, testing::IsEmpty());
}

// Compressed bytes are the compressor's business, and gaps are gone; content is not.
TEST_P(Golden, IsWrittenAgainAsItIs) {
  const cache::Cache cache = must(format::read_cache(*memory_source(file_)));
  const Bytes again = must(format::write_cache_bytes(
      cache, {.compression = format::Compression::kNone, .writer = "tqcache golden"}));
  const Json json = twin(GetParam());
  const bool is_stored = json["zstd_sections"] == 0 && !json.contains("planes_sections");
  if (is_stored && !json.contains("gaps")) {
    EXPECT_TRUE(again == file_);
  }
  EXPECT_EQ(golden_json(again)["content_name"], twin(GetParam())["content_name"]);
}

// The head vectors of a tensor's packed blocks as its codes have them, decoded by given kernels.
std::vector<float> decoded_by(const codec::Kernels& kernels, const cache::TurboTensor& tensor,
                              cache::HeadShape shape) {
  const auto codec = must(codec::HeadCodec::make(
      static_cast<int>(shape.head_dim), tensor.codec.parts(), tensor.codec.order(), kernels));
  std::vector<float> all;
  std::vector<float> values(codec::kBlockTokens * codec.head_dim());
  for (std::size_t block = 0; block < tensor.packed.size(); ++block) {
    if (tensor.packed[block].bytes.size() == 0) continue;  // a window has left it
    for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
      codec.decode(packed_head(tensor, static_cast<std::int64_t>(block), head),
                   tensor.codec.state().outliers.order(head), codec::kBlockTokens, values);
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

TEST_P(Golden, DecodesTheSameOnEveryKindOfCpu) {
  const cache::Cache cache = must(format::read_cache(*memory_source(file_)));
  for (const cache::Layer& layer : cache.layers) {
    const cache::AttentionLayer* attention = cache::attention_of(layer);
    if (attention == nullptr) continue;
    for (const cache::Tensor* tensor : {&attention->k, &attention->v}) {
      const auto* turbo = std::get_if<cache::TurboTensor>(tensor);
      if (turbo == nullptr) continue;
      const auto scalar = *must(codec::find_kernels("scalar"));
      const cache::HeadShape shape =
          tensor == &attention->k ? attention->shape : attention->value_shape();
      const std::vector<float> expected = decoded_by(scalar, *turbo, shape);
      for (const codec::Kernels* kernels : codec::all_kernels()) {
        EXPECT_TRUE(std::ranges::equal(object_bytes(expected),
                                       object_bytes(decoded_by(*kernels, *turbo, shape))))
            << kernels->name;
      }
    }
  }
}

// --- Prediction: a profile, and archives that cannot be read without it

class GoldenPredicted : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    predictor_ = must(predict::read_profile(folder_ / "small.tqprofile"));
    read_.access.profiles.add(predictor_);
  }

  const std::filesystem::path folder_ = TQCACHE_GOLDEN_PREDICTED;
  const Bytes file_ = read_all(folder_ / (GetParam() + ".tqkv"));
  std::shared_ptr<const predict::Predictor> predictor_;
  format::ReadOptions read_;
};

TEST_P(GoldenPredicted, HoldsWhatItsTwinSays) {
  std::ifstream in(folder_ / (GetParam() + ".json"));
  EXPECT_EQ(golden_json(file_, read_), Json::parse(in));
  EXPECT_EQ(to_hex(predictor_->digest()),
            "2b35d1fbc090cf36a38f6687cf986b4caf030b3107911a551b999f5876f40b92");
  EXPECT_THAT(must(format::verify_cache(*memory_source(file_), read_)).damage, testing::IsEmpty());
}

TEST_P(GoldenPredicted, DecodesTheSameOnEveryKindOfCpu) {
  const auto info = must(format::read_cache_info(*memory_source(file_)));
  const cache::Cache cache = must(format::read_cache(*memory_source(file_), read_));
  const auto loaded = cache::reader_of(cache);
  const format::Prediction& prediction = *info.prediction;
  const cache::HeadShape shape = predictor_->profile().shape;
  const auto dim = static_cast<std::size_t>(predictor_->profile().channels());
  const std::size_t n_tensors = predictor_->profile().tensors.size();
  for (const codec::Kernels* kernels : codec::all_kernels()) {
    for (std::size_t first = 0; first < info.sections.size(); first += n_tensors) {
      const std::int64_t block = info.sections[first].block;
      const auto n = static_cast<std::size_t>(cache::tokens_in_block(info.n_tokens(), block));
      const std::size_t begin = static_cast<std::size_t>(block) * cache::kTokenBlock;
      const auto n_sinks = static_cast<std::size_t>(block == 0 ? prediction.n_sinks : 0);
      predict::BlockCoder coder(*predictor_, prediction.step,
                                std::span(info.tokens).subspan(begin, n), n_sinks, *kernels);
      const predict::BlockRope rope(info.identity.rope, shape, block * cache::kTokenBlock, n);
      for (std::size_t tensor = 0; tensor < n_tensors; ++tensor) {
        const format::SectionInfo& section = info.sections[first + tensor];
        const Dtype dtype = std::get<cache::AttentionDesc>(info.layers[tensor / 2]).k.dtype;
        const std::size_t n_dense = n_sinks * dim * dtype_size(dtype);
        AlignedFloats rows(n * dim);
        must(coder.decode(
            ByteView(file_).subspan(section.file_offset, section.stored_bytes).subspan(n_dense),
            rows));
        if (tensor % 2 == 0) rope.rotate(rows);
        AlignedBytes expected, found(n * dim * dtype_size(dtype));
        must(loaded->read(first + tensor, expected));
        predict::rows_of_values(shape, dtype, ByteView(file_).subspan(section.file_offset, n_dense),
                                std::span(rows).first(n_sinks * dim));
        predict::values_of_rows(shape, dtype, rows, found);
        EXPECT_EQ(found, expected) << kernels->name << " section " << first + tensor;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(File, GoldenPredicted, testing::Values("bf16", "f16", "f32"),
                         [](const auto& test) { return test.param; });

INSTANTIATE_TEST_SUITE_P(File, Golden, testing::ValuesIn(names_ending(".tqkv")),
                         [](const auto& test) { return test.param; });

}  // namespace golden_test
}  // namespace tqcache::test
