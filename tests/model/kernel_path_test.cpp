#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "support/cache_builder.h"
#include "tqcache/codec/kernels/head_queries.h"
#include "tqcache/decoder.h"
#include "tqcache/quantize.h"

namespace tqcache::model {
namespace kernel_path_test {

using test::must;

cache::TensorPlan plan(int bits) {
  cache::TensorPlan tensor;
  tensor.dense = bits == 16;
  tensor.codec.bits = bits;
  return tensor;
}

cache::Cache converted(int key_bits, int value_bits, std::int64_t n_tokens = 300) {
  cache::Cache cache = test::CacheBuilder(n_tokens).dense({2, 64}).arrays().build();
  return must(cache::convert(std::move(cache),
                             {.keys = plan(key_bits), .values = plan(value_bits), .n_threads = 1}));
}

// The same tensors, read by other kernels.
cache::Cache with_kernels(cache::Cache cache, const codec::Kernels& kernels) {
  auto& layer = std::get<cache::AttentionLayer>(cache.layers.front());
  for (cache::Tensor* tensor : {&layer.k, &layer.v}) {
    auto* const turbo = std::get_if<cache::TurboTensor>(tensor);
    if (turbo == nullptr) continue;
    test::edit_codec(turbo->codec, [&](cache::KvCodec::State& state) {
      state.codec = must(codec::HeadCodec::make(static_cast<int>(state.shape.head_dim),
                                                state.codec.parts(), state.codec.order(), kernels));
    });
  }
  return cache;
}

TEST(KernelPath, IsDenseAsLongAsNothingIsPacked) {
  for (const cache::Cache& cache : {converted(16, 16), converted(4, 4, 255)}) {
    const KernelPath path = kernel_path(cache, Scorer::kFast);
    EXPECT_EQ(path.step, "dense");
    EXPECT_EQ(path.prompt, "dense");
    EXPECT_EQ(path.fallback, "");
  }
}

TEST(KernelPath, IsF32WithoutAReasonWhenAskedForExactScores) {
  for (const cache::Cache& cache : {converted(4, 4), converted(16, 3), converted(8, 16)}) {
    const KernelPath path = kernel_path(cache, Scorer::kExact);
    EXPECT_EQ(path.step, "packed_f32");
    EXPECT_EQ(path.prompt, "decoded");
    EXPECT_EQ(path.fallback, "");
  }
}

TEST(KernelPath, IsSlowestWhereNoKernelMultipliesWholeNumbers) {
  const KernelPath path =
      kernel_path(with_kernels(converted(4, 3), *codec::all_kernels().front()), Scorer::kFast);
  EXPECT_EQ(path.step, "packed_f32");
  EXPECT_EQ(path.prompt, "decoded");
  EXPECT_EQ(path.fallback, "layer 0 k: no kernels of whole numbers on scalar");
}

TEST(KernelPath, NamesTheTensorWhoseCodebookAKernelCannotMultiply) {
  for (const codec::Kernels* kernels : codec::all_kernels()) {
    if (kernels->isa == codec::Isa::kScalar) continue;
    SCOPED_TRACE(kernels->name);
    const cache::Cache common = with_kernels(converted(4, 5), *kernels);
    EXPECT_EQ(kernel_path(common, Scorer::kFast).step, "packed_int8");
    EXPECT_EQ(kernel_path(common, Scorer::kFast).fallback, "");

    cache::Cache odd = converted(4, 8);
    auto& values =
        std::get<cache::TurboTensor>(std::get<cache::AttentionLayer>(odd.layers.front()).v);
    std::vector<codec::PartSpec> parts = values.codec.parts();
    for (std::size_t i = 0; i < 256; ++i) {  // close together and far apart by turns
      parts[0].centroids[i] =
          -0.5f + static_cast<float>(i / 2) / 128.0f + static_cast<float>(i % 2) / 1000.0f;
    }
    values.codec = must(test::remade(values.codec, odd.identity.rope,
                                     [&](cache::QuantSpec& quant) { quant.parts = parts; }));
    const KernelPath path = kernel_path(with_kernels(std::move(odd), *kernels), Scorer::kFast);
    if (kernels->isa == codec::Isa::kAvx2) {
      EXPECT_EQ(path.step, "packed_f32");
      EXPECT_EQ(path.fallback,
                "layer 0 v: no kernel of whole numbers for its codebook of 8 bits on avx2");
    } else {
      EXPECT_EQ(path.step, "packed_int8");
    }
  }
}

// What kernel_path() says of a width must be what the kernels do: where they fall back, fast scores
// are the exact ones to the bit.
TEST(KernelPath, SaysWhatTheKernelsDo) {
  for (const codec::Kernels* kernels : codec::all_kernels()) {
    for (int bits = 1; bits <= 8; ++bits) {
      SCOPED_TRACE(std::string(kernels->name) + ", " + std::to_string(bits) + " bits");
      const cache::Cache cache = with_kernels(converted(bits, bits), *kernels);
      const auto& layer = std::get<cache::AttentionLayer>(cache.layers.front());
      const auto& keys = std::get<cache::TurboTensor>(layer.k);
      const codec::HeadCodec& codec = keys.codec.state().codec;
      const std::vector<float> query(64, 0.3f);
      codec::HeadQueries queries;
      queries.set(codec, {}, query);
      std::vector<float> exact(256), fast(256);
      const codec::PackedHead head = test::packed_head(keys, 0, 0);
      queries.score(codec, head, 256, codec::Precision::kExact, {exact.data(), 256});
      queries.score(codec, head, 256, codec::Precision::kFast, {fast.data(), 256});
      const bool in_bytes = kernel_path(cache, Scorer::kFast).step == "packed_int8";
      EXPECT_EQ(exact != fast, in_bytes);
    }
  }
}

}  // namespace kernel_path_test
}  // namespace tqcache::model
