// State files that llama.cpp itself wrote, with the demo model.

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "llama_import_fixture.h"
#include "support/temp_dir.h"
#include "tqcache/hash.h"
#include "tqcache/interop/llama/llama_state.h"
#include "tqcache/tensors/gguf.h"

namespace tqcache::test {
namespace llama_fixture_import_test {

const std::filesystem::path kFixtures = std::filesystem::path(TQCACHE_TEST_DATA) / "llama.cpp";

LlamaGeometry demo_model() {
  const auto file =
      map_file(std::filesystem::path(TQCACHE_DEMO_MODEL) / "tqcache-demo-17m.q8_0.gguf");
  if (!file) throw std::runtime_error(file.error().message);
  const auto gguf = tensors::read_gguf(file->view());
  if (!gguf) throw std::runtime_error(gguf.error().message);
  auto geometry = interop::read_llama_geometry(*gguf);
  if (!geometry) throw std::runtime_error(geometry.error().message);
  return std::move(geometry).value();
}

LlamaImported import_fixture(const char* name, LlamaRotation rotation = LlamaRotation::kOff) {
  auto imported = import_bytes(read_all(kFixtures / name), demo_model(), {.rotation = rotation});
  if (!imported) throw std::runtime_error(imported.error().message);
  return std::move(imported).value();
}

cache::Cache load_fixture(const char* name, LlamaRotation rotation = LlamaRotation::kOff) {
  auto cache = read_foreign(import_fixture(name, rotation).cache);
  if (!cache) throw std::runtime_error(cache.error().message);
  return std::move(cache).value();
}

TEST(LlamaFixtures, AreRead) {
  for (const char* name : {"alice_f16.ggsn", "alice_f16.ggsq", "alice_q8_0.ggsn"}) {
    const LlamaImported imported = import_fixture(name);
    EXPECT_EQ(imported.cache.n_tokens, 511) << name;
    EXPECT_EQ(imported.cache.tokens->at(0), 43);
    EXPECT_EQ(imported.cache.tokens->at(1), 307);
    EXPECT_EQ(imported.next_token, std::nullopt);
    EXPECT_EQ(imported.may_be_rotated, std::string_view(name).find("q8_0") != std::string::npos);
    EXPECT_TRUE(imported.cache.dropped_fields.empty());
    EXPECT_EQ(imported.cache.metadata.at(1).second, "cells in streams");
  }
}

TEST(LlamaFixtures, OfASessionAndASequenceHoldTheSame) {
  const cache::Cache session = load_fixture("alice_f16.ggsn");
  const cache::Cache sequence = load_fixture("alice_f16.ggsq");
  EXPECT_EQ(session.tokens, sequence.tokens);
  ASSERT_EQ(session.layers.size(), sequence.layers.size());
  for (std::size_t i = 0; i < session.layers.size(); ++i) {
    const auto& a = std::get<cache::AttentionLayer>(session.layers[i]);
    const auto& b = std::get<cache::AttentionLayer>(sequence.layers[i]);
    for (const auto tensor : {&cache::AttentionLayer::k, &cache::AttentionLayer::v}) {
      const auto& in_session = std::get<cache::DenseTensor>(a.*tensor);
      const auto& in_sequence = std::get<cache::DenseTensor>(b.*tensor);
      EXPECT_EQ(in_session.dtype, Dtype::kF16);
      ASSERT_EQ(in_session.blocks.size(), 2U);
      for (std::size_t k = 0; k < 2; ++k) {
        EXPECT_TRUE(std::ranges::equal(in_session.blocks[k], in_sequence.blocks[k]));
      }
    }
  }
}

double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, power = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += std::pow(double{a[i]} - b[i], 2);
    power += std::pow(double{a[i]}, 2);
  }
  return std::sqrt(error / power);
}

struct Errors {
  double k, v;
};

// The largest of all layers. Deeper layers also differ by what attention made of the first ones.
Errors worst_errors(LlamaRotation rotation) {
  const cache::Cache exact = load_fixture("alice_f16.ggsn");
  const cache::Cache quantized = load_fixture("alice_q8_0.ggsn", rotation);
  Errors worst{0, 0};
  for (std::size_t i = 0; i < exact.layers.size(); ++i) {
    const auto& a = std::get<cache::AttentionLayer>(exact.layers[i]);
    const auto& b = std::get<cache::AttentionLayer>(quantized.layers[i]);
    const Errors here{
        relative_error(tensor_values(a.k, a.shape, 511), tensor_values(b.k, b.shape, 511)),
        relative_error(tensor_values(a.v, a.shape, 511), tensor_values(b.v, b.shape, 511))};
    worst = {std::max(worst.k, here.k), std::max(worst.v, here.v)};
  }
  return worst;
}

TEST(LlamaFixtures, ThatWereQuantizedAreNearTheOthersOnceTurnedBack) {
  const Errors on = worst_errors(LlamaRotation::kOn), off = worst_errors(LlamaRotation::kOff);
  std::printf("q8_0 against f16: rotation undone k %.4f v %.4f, left k %.3f v %.3f\n", on.k, on.v,
              off.k, off.v);
  EXPECT_LT(on.k, 0.02);
  EXPECT_LT(on.v, 0.02);
  EXPECT_GT(off.k, 0.5);
  EXPECT_GT(off.v, 0.5);
}

TEST(LlamaFixtures, AreRefusedWhenCutShort) {
  const Bytes file = read_all(kFixtures / "alice_f16.ggsq");
  const LlamaGeometry model = demo_model();
  for (std::size_t n = 0; n < file.size(); n += 9973) {
    EXPECT_FALSE(
        import_bytes(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(n)), model));
  }
}

}  // namespace llama_fixture_import_test
}  // namespace tqcache::test
