#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "capi/capi_handles.h"
#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "tqcache/tqcache.h"

namespace tqcache::test {
namespace {

constexpr std::int64_t kSourceHeads = 2, kSourceTokens = 600, kSourceDim = 64;

std::vector<float> source_numbers(std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(static_cast<std::size_t>(kSourceHeads * kSourceTokens * kSourceDim));
  for (float& value : values) value = random.bell();
  return values;
}

// Keys and values that stay where they are: blocks of tokens are copied when they are asked for.
struct Elsewhere {
  std::vector<float> keys = source_numbers(1), values = source_numbers(2);
  std::int64_t largest = 0;  // tokens that were asked for at once
  int calls = 0;
  int fails_with = 0;

  static int fill(void* user, int which, std::int64_t begin, const tqcache_tensor* to) {
    auto& self = *static_cast<Elsewhere*>(user);
    ++self.calls;
    self.largest = std::max(self.largest, to->n_tokens);
    if (self.fails_with != 0) return self.fails_with;
    const std::vector<float>& from = which == TQCACHE_KEYS ? self.keys : self.values;
    for (std::int64_t head = 0; head < to->n_heads; ++head) {
      std::memcpy(static_cast<float*>(to->data) + head * to->n_tokens * to->head_dim,
                  from.data() + (head * kSourceTokens + begin) * kSourceDim,
                  static_cast<std::size_t>(to->n_tokens * to->head_dim) * sizeof(float));
    }
    return 0;
  }
};

tqcache_tensor source_shape() {
  tqcache_tensor tensor = TQCACHE_INIT(tqcache_tensor);
  tensor.dtype = TQCACHE_F32;
  tensor.n_heads = kSourceHeads;
  tensor.n_tokens = kSourceTokens;
  tensor.head_dim = kSourceDim;
  return tensor;
}

WriterHandle source_writer() {
  return made<WriterHandle>([](auto out, auto error) {
    return tqcache_writer_new(nullptr, kSourceTokens, nullptr, out, error);
  });
}

CacheHandle source_cache(const WriterHandle& writer) {
  return made<CacheHandle>(
      [&](auto out, auto error) { return tqcache_writer_cache(writer.get(), out, error); });
}

BytesHandle source_file(const tqcache_cache* cache, const char* config) {
  tqcache_convert_options options = TQCACHE_INIT(tqcache_convert_options);
  options.config = config;
  options.threads = 2;
  return made<BytesHandle>(
      [&](auto out, auto error) { return tqcache_convert_bytes(cache, &options, out, error); });
}

TEST(CInterfaceSources, AFunctionGivesTheSameFileAsMemory) {
  Elsewhere layer;
  const WriterHandle in_memory = source_writer();
  tqcache_tensor keys = source_shape(), values = source_shape();
  keys.data = layer.keys.data();
  values.data = layer.values.data();
  ASSERT_EQ(tqcache_writer_attention(in_memory.get(), &keys, &values, nullptr), TQCACHE_OK);
  const WriterHandle asked = source_writer();
  const tqcache_tensor of = source_shape();
  ASSERT_EQ(tqcache_writer_attention_from(asked.get(), &of, &of, Elsewhere::fill, &layer, nullptr),
            TQCACHE_OK);
  EXPECT_EQ(layer.calls, 0);
  for (const char* config : {"f32", "turbo4", "k8v4"}) {
    EXPECT_EQ(text_of(source_file(source_cache(in_memory).get(), config).get()),
              text_of(source_file(source_cache(asked).get(), config).get()))
        << config;
  }
  EXPECT_GT(layer.calls, 0);
  EXPECT_EQ(layer.largest, 256);
  const CacheHandle cache = source_cache(asked);
  std::vector<float> again;
  const tqcache_tensor to = tensor_of(again, kSourceHeads, kSourceTokens, kSourceDim);
  ASSERT_EQ(tqcache_read(cache.get(), 0, TQCACHE_VALUES, 0, &to, 1, nullptr), TQCACHE_OK);
  EXPECT_EQ(again, layer.values);
}

TEST(CInterfaceSources, AFunctionThatFailsLeavesNoFile) {
  const TempDir folder;
  Elsewhere layer;
  layer.fails_with = 7;
  const WriterHandle writer = source_writer();
  const tqcache_tensor of = source_shape();
  ASSERT_EQ(tqcache_writer_attention_from(writer.get(), &of, &of, Elsewhere::fill, &layer, nullptr),
            TQCACHE_OK);
  const std::string path = folder.path() / "a.tqkv";
  const Failure failure = failure_of([&](auto error) {
    return tqcache_convert(source_cache(writer).get(), path.c_str(), nullptr, error);
  });
  EXPECT_EQ(failure.code, TQCACHE_FAILED);
  EXPECT_NE(failure.message.find("the caller's function returns 7"), std::string::npos)
      << failure.message;
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(CInterfaceSources, WithoutAFunctionOrWithAnotherShapeIsUsage) {
  const WriterHandle writer = source_writer();
  tqcache_tensor of = source_shape();
  Elsewhere layer;
  EXPECT_EQ(tqcache_writer_attention_from(writer.get(), &of, &of, nullptr, &layer, nullptr),
            TQCACHE_USAGE);
  of.n_tokens = 5;
  EXPECT_EQ(tqcache_writer_attention_from(writer.get(), &of, &of, Elsewhere::fill, &layer, nullptr),
            TQCACHE_USAGE);
}

TEST(CInterfaceSources, AFileInMemoryIsOpenedLikeOneOnDisk) {
  Elsewhere layer;
  const WriterHandle writer = source_writer();
  const tqcache_tensor of = source_shape();
  ASSERT_EQ(tqcache_writer_attention_from(writer.get(), &of, &of, Elsewhere::fill, &layer, nullptr),
            TQCACHE_OK);
  const std::string file = text_of(source_file(source_cache(writer).get(), "f32").get());
  CacheHandle cache;
  {
    const std::string copy = file;  // the library copies it
    cache = made<CacheHandle>([&](auto out, auto error) {
      return tqcache_open_bytes(copy.data(), copy.size(), nullptr, out, error);
    });
  }
  std::vector<float> again;
  const tqcache_tensor to = tensor_of(again, kSourceHeads, kSourceTokens, kSourceDim);
  ASSERT_EQ(tqcache_read(cache.get(), 0, TQCACHE_KEYS, 0, &to, 1, nullptr), TQCACHE_OK);
  EXPECT_EQ(again, layer.keys);
  const Failure cut = failure_of([&](auto error) {
    tqcache_cache* none = nullptr;
    return tqcache_open_bytes(file.data(), file.size() / 2, nullptr, &none, error);
  });
  EXPECT_EQ(cut.code, TQCACHE_CORRUPT) << cut.message;
}

TEST(CInterfaceSources, AModelOnDiskIsIdentified) {
  const std::string folder = std::string(TQCACHE_DEMO_MODEL) + "/hf";
  tqcache_model* model = nullptr;
  tqcache_error* error = nullptr;
  ASSERT_EQ(tqcache_model_identify(folder.c_str(), &model, &error), TQCACHE_OK)
      << tqcache_error_message(error);
  tqcache_identity identity = TQCACHE_INIT(tqcache_identity);
  tqcache_model_identity(model, &identity);
  EXPECT_STRNE(identity.architecture, "");
  ASSERT_NE(identity.weights_fingerprint, nullptr);
  EXPECT_NE(std::string(identity.weights_fingerprint, identity.weights_fingerprint + 32),
            std::string(32, '\0'));
  EXPECT_EQ(identity.rope_style, TQCACHE_ROPE_HALF_SPLIT);
  tqcache_model_free(model);
  const Failure failure = failure_of(
      [&](auto out) { return tqcache_model_identify((folder + "/none").c_str(), &model, out); });
  EXPECT_EQ(failure.code, TQCACHE_NOT_FOUND);
}

}  // namespace
}  // namespace tqcache::test
