#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "capi/capi_handles.h"
#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "tqcache/cache/memory_blocks.h"
#include "tqcache/eval.h"
#include "tqcache/file.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/quantize.h"
#include "tqcache/tqcache.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace {

constexpr std::int64_t kTokens = 600;

std::vector<float> random_values(std::size_t n, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(n);
  for (float& value : values) value = random.bell();
  return values;
}

// A cache of three layers in the caller's memory: attention, a window, recurrent state.
struct CallerLayers {
  std::vector<float> k = random_values(2 * kTokens * 64, 1);
  std::vector<float> v = random_values(2 * kTokens * 64, 2);
  std::vector<float> window_k = random_values(2 * 100 * 64, 3);
  std::vector<float> window_v = random_values(2 * 100 * 64, 4);
  std::vector<float> state = random_values(24, 5);
  std::vector<std::int32_t> tokens = [] {
    std::vector<std::int32_t> ids(kTokens);
    std::iota(ids.begin(), ids.end(), 7);
    return ids;
  }();

  WriterHandle writer() {
    tqcache_identity identity = TQCACHE_INIT(tqcache_identity);
    identity.architecture = "qwen3";
    identity.model_name = "a model";
    identity.rope_style = TQCACHE_ROPE_HALF_SPLIT;
    identity.rope_dims = 64;
    identity.rope_base = 10000;
    auto writer = made<WriterHandle>([&](auto out, auto error) {
      return tqcache_writer_new(tokens.data(), kTokens, &identity, out, error);
    });
    const tqcache_tensor keys = tensor_of(k, 2, kTokens, 64);
    const tqcache_tensor values = tensor_of(v, 2, kTokens, 64);
    EXPECT_EQ(tqcache_writer_attention(writer.get(), &keys, &values, nullptr), TQCACHE_OK);
    const tqcache_tensor near_keys = tensor_of(window_k, 2, 100, 64);
    const tqcache_tensor near_values = tensor_of(window_v, 2, 100, 64);
    EXPECT_EQ(tqcache_writer_window(writer.get(), &near_keys, &near_values, 100, 0, nullptr),
              TQCACHE_OK);
    tqcache_array array = TQCACHE_INIT(tqcache_array);
    array.name = "state";
    array.rank = 2;
    array.shape[0] = 4;
    array.shape[1] = 6;
    const void* data = state.data();
    EXPECT_EQ(tqcache_writer_state(writer.get(), &array, &data, 1, nullptr), TQCACHE_OK);
    return writer;
  }

  CacheHandle cache() {
    const WriterHandle owner = writer();
    return made<CacheHandle>(
        [&](auto out, auto error) { return tqcache_writer_cache(owner.get(), out, error); });
  }
};

CacheHandle opened(const std::string& path, const tqcache_open_options* options = nullptr) {
  return made<CacheHandle>(
      [&](auto out, auto error) { return tqcache_open(path.c_str(), options, out, error); });
}

void convert(const tqcache_cache* cache, const std::string& path, const char* config,
             const char* compress = "zstd") {
  tqcache_convert_options options = TQCACHE_INIT(tqcache_convert_options);
  options.config = config;
  options.compress = compress;
  const Failure failure =
      failure_of([&](auto error) { return tqcache_convert(cache, path.c_str(), &options, error); });
  EXPECT_EQ(failure.code, TQCACHE_OK) << failure.message;
}

std::vector<float> read_layer(const tqcache_cache* cache, std::int64_t layer, int which,
                              std::int64_t begin, std::int64_t n) {
  std::vector<float> values;
  const tqcache_tensor to = tensor_of(values, 2, n, 64);
  const Failure failure = failure_of(
      [&](auto error) { return tqcache_read(cache, layer, which, begin, &to, 1, error); });
  EXPECT_EQ(failure.code, TQCACHE_OK) << failure.message;
  return values;
}

// Tokens [begin, begin + n) of values [2, held, 64].
std::vector<float> tokens_of(const std::vector<float>& values, std::int64_t begin, std::int64_t n) {
  const auto held = static_cast<std::int64_t>(values.size()) / 128;
  std::vector<float> part;
  for (std::int64_t head = 0; head < 2; ++head) {
    const auto first = values.begin() + (head * held + begin) * 64;
    part.insert(part.end(), first, first + n * 64);
  }
  return part;
}

TEST(CInterface, StatesItsVersion) {
  EXPECT_EQ(tqcache_abi(), TQCACHE_ABI);
  EXPECT_STREQ(tqcache_version(), "0.2.0");
  EXPECT_STREQ(tqcache_preset(0), "turbo4");
  EXPECT_NE(tqcache_preset_description(0), nullptr);
  EXPECT_EQ(tqcache_preset(1000), nullptr);
}

TEST(CInterface, WritesAndReadsEveryKindOfLayer) {
  const TempDir dir;
  CallerLayers layers;
  const std::string path = dir / "a.tqkv";
  convert(layers.cache().get(), path, nullptr);
  const CacheHandle cache = opened(path);
  tqcache_info info = TQCACHE_INIT(tqcache_info);
  tqcache_get_info(cache.get(), &info);
  EXPECT_STREQ(info.kind, "tqkv");
  EXPECT_EQ(info.n_tokens, kTokens);
  EXPECT_EQ(info.n_layers, 3);
  EXPECT_EQ(std::vector<std::int32_t>(info.tokens, info.tokens + kTokens), layers.tokens);
  EXPECT_EQ(std::strlen(info.content_digest), 64u);
  tqcache_identity identity = TQCACHE_INIT(tqcache_identity);
  tqcache_get_identity(cache.get(), &identity);
  EXPECT_STREQ(identity.architecture, "qwen3");
  EXPECT_EQ(identity.rope_base, 10000);

  EXPECT_EQ(read_layer(cache.get(), 0, TQCACHE_KEYS, 0, kTokens), layers.k);
  EXPECT_EQ(read_layer(cache.get(), 0, TQCACHE_VALUES, 0, kTokens), layers.v);
  EXPECT_EQ(read_layer(cache.get(), 0, TQCACHE_KEYS, 250, 10), tokens_of(layers.k, 250, 10));
  EXPECT_EQ(read_layer(cache.get(), 1, TQCACHE_KEYS, 0, 100), layers.window_k);
  EXPECT_EQ(read_layer(cache.get(), 1, TQCACHE_VALUES, 40, 7), tokens_of(layers.window_v, 40, 7));
  tqcache_layer layer = TQCACHE_INIT(tqcache_layer);
  ASSERT_EQ(tqcache_get_layer(cache.get(), 1, &layer, nullptr), TQCACHE_OK);
  EXPECT_EQ(layer.kind, TQCACHE_WINDOW);
  EXPECT_EQ(layer.n_tokens, 100);
  EXPECT_EQ(layer.first_token, kTokens - 100);
  ASSERT_EQ(tqcache_get_layer(cache.get(), 2, &layer, nullptr), TQCACHE_OK);
  EXPECT_EQ(layer.kind, TQCACHE_STATE);
  ASSERT_EQ(layer.n_arrays, 1);
  tqcache_array array = TQCACHE_INIT(tqcache_array);
  ASSERT_EQ(tqcache_get_array(cache.get(), 2, 0, &array, nullptr), TQCACHE_OK);
  EXPECT_STREQ(array.name, "state");
  EXPECT_EQ(array.shape[1], 6);
  const auto bytes = made<BytesHandle>(
      [&](auto out, auto error) { return tqcache_share_array(cache.get(), 2, 0, out, error); });
  ASSERT_EQ(tqcache_bytes_size(bytes.get()), layers.state.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(tqcache_bytes_data(bytes.get()), layers.state.data(), 96), 0);

  const auto json = made<BytesHandle>(
      [&](auto out, auto error) { return tqcache_describe(cache.get(), out, error); });
  const auto described = nlohmann::json::parse(text_of(json.get()));
  EXPECT_EQ(described["layers"][0]["key_codec"], "dense");
  EXPECT_EQ(described["layers"][1]["window"], 100);
}

TEST(CInterface, ReadsQuantizedLayersAsTheViewDoes) {
  const TempDir dir;
  CallerLayers layers;
  convert(layers.cache().get(), dir / "a.tqkv", "turbo4,windows=turbo");
  const CacheHandle cache = opened(dir / "a.tqkv");
  convert(cache.get(), dir / "dense.tqkv", "f32");
  const CacheHandle dense = opened(dir / "dense.tqkv");
  tqcache_layer layer = TQCACHE_INIT(tqcache_layer);
  ASSERT_EQ(tqcache_get_layer(cache.get(), 0, &layer, nullptr), TQCACHE_OK);
  EXPECT_STREQ(layer.key_codec, "mse:4");
  for (const std::int64_t i : {0, 1}) {
    for (const int which : {TQCACHE_KEYS, TQCACHE_VALUES}) {
      const std::int64_t n = i == 0 ? kTokens : 100;
      EXPECT_EQ(read_layer(cache.get(), i, which, 0, n), read_layer(dense.get(), i, which, 0, n));
      EXPECT_EQ(read_layer(cache.get(), i, which, 30, 60),
                read_layer(dense.get(), i, which, 30, 60));
    }
  }
  EXPECT_NE(read_layer(cache.get(), 0, TQCACHE_KEYS, 0, kTokens), layers.k);
  EXPECT_EQ(read_layer(cache.get(), 0, TQCACHE_KEYS, 512, 88), tokens_of(layers.k, 512, 88));
}

TEST(CInterface, ConvertsDtypesAndStrides) {
  const TempDir dir;
  CallerLayers layers;
  convert(layers.cache().get(), dir / "a.tqkv", nullptr);
  const CacheHandle cache = opened(dir / "a.tqkv");
  // bf16 as [token, head, 2 * component].
  std::vector<std::uint16_t> out(static_cast<std::size_t>(kTokens * 2 * 128), 0xffff);
  tqcache_tensor to = TQCACHE_INIT(tqcache_tensor);
  to.data = out.data();
  to.dtype = TQCACHE_BF16;
  to.n_heads = 2;
  to.n_tokens = kTokens;
  to.head_dim = 64;
  to.head_stride = 128;
  to.token_stride = 256;
  to.component_stride = 2;
  ASSERT_EQ(tqcache_read(cache.get(), 0, TQCACHE_KEYS, 0, &to, 1, nullptr), TQCACHE_OK);
  for (std::size_t token = 0; token < kTokens; ++token) {
    for (std::size_t head = 0; head < 2; ++head) {
      for (std::size_t c = 0; c < 64; ++c) {
        const float value = layers.k[(head * kTokens + token) * 64 + c];
        std::uint16_t expected = 0;
        store_f32(Dtype::kBF16, {&value, 1}, reinterpret_cast<std::byte*>(&expected));
        const std::size_t at = token * 256 + head * 128 + 2 * c;
        ASSERT_EQ(out[at], expected);
        ASSERT_EQ(out[at + 1], 0xffff);
      }
    }
  }
  // The same strided memory as the input of a writer.
  auto writer = made<WriterHandle>([&](auto made_writer, auto error) {
    return tqcache_writer_new(nullptr, kTokens, nullptr, made_writer, error);
  });
  ASSERT_EQ(tqcache_writer_attention(writer.get(), &to, &to, nullptr), TQCACHE_OK);
  const auto again = made<CacheHandle>([&](auto made_cache, auto error) {
    return tqcache_writer_cache(writer.get(), made_cache, error);
  });
  tqcache_info info = TQCACHE_INIT(tqcache_info);
  tqcache_get_info(again.get(), &info);
  EXPECT_EQ(info.tokens, nullptr);
  const std::vector<float> values = read_layer(again.get(), 0, TQCACHE_VALUES, 0, kTokens);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], layers.k[i], std::abs(layers.k[i]) / 128);
  }
}

TEST(CInterface, SharesBlocksOfAMappedFile) {
  const TempDir dir;
  CallerLayers layers;
  convert(layers.cache().get(), dir / "a.tqkv", nullptr, "none");
  tqcache_open_options options = TQCACHE_INIT(tqcache_open_options);
  options.map = 1;
  const CacheHandle mapped = opened(dir / "a.tqkv", &options);
  const CacheHandle copied = opened(dir / "a.tqkv");
  std::array<const void*, 2> addresses{};
  for (const void*& address : addresses) {
    tqcache_bytes* bytes = nullptr;
    std::int64_t n = 0;
    ASSERT_EQ(tqcache_share_block(mapped.get(), 0, TQCACHE_KEYS, 1, &bytes, &n, nullptr),
              TQCACHE_OK);
    const BytesHandle owner(bytes);
    EXPECT_EQ(n, 256);
    address = tqcache_bytes_data(bytes);
    for (std::size_t head = 0; head < 2; ++head) {
      EXPECT_EQ(std::memcmp(static_cast<const float*>(address) + head * 256 * 64,
                            layers.k.data() + (head * kTokens + 256) * 64, 256 * 64 * 4),
                0);
    }
  }
  EXPECT_EQ(addresses[0], addresses[1]);  // the page of the file, and not a copy
  EXPECT_EQ(read_layer(mapped.get(), 0, TQCACHE_KEYS, 0, kTokens), layers.k);
  // A window is one array, in place as well.
  const auto first = made<BytesHandle>(
      [&](auto out, auto error) { return tqcache_share_array(mapped.get(), 1, 0, out, error); });
  const auto second = made<BytesHandle>(
      [&](auto out, auto error) { return tqcache_share_array(mapped.get(), 1, 0, out, error); });
  EXPECT_EQ(tqcache_bytes_data(first.get()), tqcache_bytes_data(second.get()));
}

TEST(CInterface, NamesErrorsByTheCodesOfTheProgram) {
  const TempDir dir;
  CallerLayers layers;
  const std::string path = dir / "a.tqkv";
  convert(layers.cache().get(), path, nullptr);
  tqcache_cache* none = nullptr;
  const auto opening = [&](const std::string& file) {
    return failure_of(
        [&](auto error) { return tqcache_open(file.c_str(), nullptr, &none, error); });
  };
  const Failure missing = opening(dir / "none");
  EXPECT_EQ(missing.code, TQCACHE_NOT_FOUND);
  EXPECT_EQ(missing.file, dir / "none");
  const CacheHandle cache = opened(path);
  EXPECT_EQ(failure_of([&](auto error) {
              return tqcache_convert(cache.get(), path.c_str(), nullptr, error);
            }).code,
            TQCACHE_USAGE);  // the file exists
  tqcache_open_options unset{};
  EXPECT_EQ(
      failure_of([&](auto error) { return tqcache_open(path.c_str(), &unset, &none, error); }).code,
      TQCACHE_USAGE);
  tqcache_open_options older = TQCACHE_INIT(tqcache_open_options);
  older.size = offsetof(tqcache_open_options, map);
  older.first_tokens = -7;  // beyond its size, so it is not there
  EXPECT_NE(opened(path, &older), nullptr);

  tqcache_convert_options options = TQCACHE_INIT(tqcache_convert_options);
  options.progress = [](void* calls, std::uint64_t, std::uint64_t) {
    return ++*static_cast<int*>(calls) >= 2 ? 1 : 0;
  };
  int n_calls = 0;
  options.user = &n_calls;
  const std::string out = dir / "b.tqkv";
  EXPECT_EQ(failure_of([&](auto error) {
              return tqcache_convert(cache.get(), out.c_str(), &options, error);
            }).code,
            TQCACHE_INTERRUPTED);
  EXPECT_FALSE(std::filesystem::exists(out));
  options = TQCACHE_INIT(tqcache_convert_options);
  options.config = "turbo99";
  EXPECT_EQ(failure_of([&](auto error) {
              return tqcache_convert(cache.get(), out.c_str(), &options, error);
            }).code,
            TQCACHE_USAGE);
  std::vector<float> room;
  const tqcache_tensor to = tensor_of(room, 2, kTokens + 1, 64);
  EXPECT_EQ(tqcache_read(cache.get(), 0, TQCACHE_KEYS, 0, &to, 1, nullptr), TQCACHE_USAGE);
  EXPECT_EQ(tqcache_read(cache.get(), 2, TQCACHE_KEYS, 0, &to, 1, nullptr), TQCACHE_USAGE);
  EXPECT_EQ(tqcache_read(cache.get(), 3, TQCACHE_KEYS, 0, &to, 1, nullptr), TQCACHE_USAGE);
  layers.k[5] = std::nanf("");
  const CacheHandle broken = layers.cache();
  EXPECT_EQ(failure_of([&](auto error) {
              return tqcache_convert(broken.get(), out.c_str(), nullptr, error);
            }).code,
            TQCACHE_CORRUPT);
}

TEST(CInterface, RefusesArraysWithoutTheirBytes) {
  const auto writer = made<WriterHandle>(
      [](auto out, auto error) { return tqcache_writer_new(nullptr, 5, nullptr, out, error); });
  const std::array<float, 6> numbers{};
  const auto failure = [&](std::vector<std::int64_t> shape, std::uint64_t n_bytes,
                           const void* data) {
    tqcache_array array = TQCACHE_INIT(tqcache_array);
    array.name = "state";
    array.dtype = TQCACHE_F32;
    array.rank = static_cast<std::int32_t>(shape.size());
    std::ranges::copy(shape, array.shape);
    array.n_bytes = n_bytes;
    return failure_of(
        [&](auto error) { return tqcache_writer_state(writer.get(), &array, &data, 1, error); });
  };
  using testing::HasSubstr;
  EXPECT_THAT(failure({2, 3}, 0, nullptr).message, HasSubstr("array 0: no data"));
  EXPECT_THAT(failure({2, 3}, 23, numbers.data()).message,
              HasSubstr("array 0: 23 bytes, where its shape has 24"));
  EXPECT_THAT(failure({std::int64_t{1} << 60, std::int64_t{1} << 60}, 0, numbers.data()).message,
              HasSubstr("its shape has more than 2^64"));
  EXPECT_EQ(failure({2, 3}, 24, numbers.data()).code, TQCACHE_OK);
  EXPECT_EQ(failure({2, 0}, 0, nullptr).code, TQCACHE_OK);
}

TEST(CInterface, VerifiesAndFindsDamage) {
  const TempDir dir;
  CallerLayers layers;
  const std::string path = dir / "a.tqkv";
  convert(layers.cache().get(), path, "turbo4");
  tqcache_verified verified = TQCACHE_INIT(tqcache_verified);
  ASSERT_EQ(tqcache_verify(path.c_str(), nullptr, &verified, nullptr), TQCACHE_OK);
  tqcache_bytes_free(verified.damage);
  EXPECT_EQ(verified.n_damage, 0u);
  EXPECT_EQ(verified.n_tokens, kTokens);
  EXPECT_EQ(std::strlen(verified.content_digest), 64u);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(300);
  const int byte = file.get();
  file.seekp(300);
  file.put(static_cast<char>(byte ^ 1));
  file.close();
  ASSERT_EQ(tqcache_verify(path.c_str(), nullptr, &verified, nullptr), TQCACHE_OK);
  const BytesHandle damage(verified.damage);
  EXPECT_GE(verified.n_damage, 1u);
  EXPECT_NE(text_of(damage.get()).find("section"), std::string::npos);
}

TEST(CInterface, EncryptsWithAKeyFile) {
  const TempDir dir;
  const std::string key = dir / "key";
  must(write_file_atomically(key, as_bytes(std::string(64, 'a') + "\n"), Overwrite::kRefuse));
  CallerLayers layers;
  tqcache_convert_options options = TQCACHE_INIT(tqcache_convert_options);
  options.key_file = key.c_str();
  const std::string path = dir / "a.tqkv";
  ASSERT_EQ(tqcache_convert(layers.cache().get(), path.c_str(), &options, nullptr), TQCACHE_OK);
  tqcache_cache* none = nullptr;
  EXPECT_EQ(tqcache_open(path.c_str(), nullptr, &none, nullptr), TQCACHE_MISMATCH);
  tqcache_open_options with_key = TQCACHE_INIT(tqcache_open_options);
  with_key.key_file = key.c_str();
  const CacheHandle cache = opened(path, &with_key);
  EXPECT_EQ(read_layer(cache.get(), 0, TQCACHE_KEYS, 0, kTokens), layers.k);
}

TEST(CInterface, LoadsAProfile) {
  const TempDir dir;
  eval::Profile profile;
  profile.architecture = "qwen3";
  profile.window = 128;
  profile.n_windows = 1;
  profile.step = 0.25;
  profile.key_sensitivity = {1, 2};
  profile.value_sensitivity = {1, 1};
  profile.weights = eval::weights_of(profile.key_sensitivity, profile.value_sensitivity);
  profile.curve = {{0.125, 0.001}, {0.5, 0.1}};
  const std::string path = dir / "m.tqprofile";
  must(write_file_atomically(path, eval::profile_bytes(profile), Overwrite::kRefuse));
  tqcache_profile* loaded = nullptr;
  ASSERT_EQ(tqcache_profile_load(path.c_str(), &loaded, nullptr), TQCACHE_OK);
  EXPECT_EQ(tqcache_profile_layers(loaded), 2);
  double step = 0;
  EXPECT_EQ(tqcache_profile_step(loaded, 0.1, &step, nullptr), TQCACHE_OK);
  EXPECT_NEAR(step, 0.5, 1e-9);
  EXPECT_EQ(tqcache_profile_step(loaded, 10, &step, nullptr), TQCACHE_USAGE);
  // It is of another model than this cache, and has other layers.
  CallerLayers layers;
  tqcache_convert_options options = TQCACHE_INIT(tqcache_convert_options);
  options.archive_kld = 0.01;
  options.profile = loaded;
  EXPECT_EQ(tqcache_convert(layers.cache().get(), (dir / "x").c_str(), &options, nullptr),
            TQCACHE_MISMATCH);
  tqcache_profile_free(loaded);
  options = TQCACHE_INIT(tqcache_convert_options);
  options.archive_mse = 0.02;
  const Failure failure = failure_of([&](auto error) {
    return tqcache_convert(layers.cache().get(), (dir / "x").c_str(), &options, error);
  });
  EXPECT_EQ(failure.code, TQCACHE_OK) << failure.message;
}

// --- blocks

struct BlockCase {
  const char* config;
  int which;
  std::int64_t n_tokens;
  double error;  // bound of |x - x^| / |x|
};

class Blocks : public testing::TestWithParam<BlockCase> {};

TEST_P(Blocks, AreDecodedAndScored) {
  const BlockCase& block_case = GetParam();
  const std::int64_t n = block_case.n_tokens;
  std::vector<float> values = random_values(static_cast<std::size_t>(2 * n * 64), 9);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += i % 64 == 3 ? 6.0f : 0.5f;
  const tqcache_tensor from = tensor_of(values, 2, n, 64);
  tqcache_identity rope = TQCACHE_INIT(tqcache_identity);
  rope.rope_style = TQCACHE_ROPE_HALF_SPLIT;
  rope.rope_dims = 64;
  rope.rope_base = 10000;
  const auto block = made<BytesHandle>([&](auto out, auto error) {
    return tqcache_encode(&from, block_case.which, block_case.config, &rope, 1, out, error);
  });
  ASSERT_NE(block, nullptr);
  const void* data = tqcache_bytes_data(block.get());
  const std::size_t size = tqcache_bytes_size(block.get());
  std::size_t bound = 0;
  ASSERT_EQ(tqcache_encode_bound(&from, block_case.which, block_case.config, &bound, nullptr),
            TQCACHE_OK);
  EXPECT_LE(size, bound);
  tqcache_tensor shape = TQCACHE_INIT(tqcache_tensor);
  int which = -1;
  ASSERT_EQ(tqcache_block_shape(data, size, &shape, &which, nullptr), TQCACHE_OK);
  EXPECT_EQ(which, block_case.which);
  EXPECT_EQ(shape.n_tokens, n);
  EXPECT_EQ(shape.dtype, TQCACHE_F32);

  std::vector<float> decoded;
  const tqcache_tensor to = tensor_of(decoded, 2, n, 64);
  ASSERT_EQ(tqcache_decode(data, size, &to, 1, nullptr), TQCACHE_OK);
  double difference = 0;
  double length = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    difference += std::pow(double{decoded[i]} - values[i], 2);
    length += std::pow(double{values[i]}, 2);
  }
  EXPECT_LE(std::sqrt(difference / length), block_case.error);

  // Four query heads, two for each kv head.
  const std::vector<float> queries = random_values(4 * 64, 10);
  std::vector<float> scores(static_cast<std::size_t>(4 * n), -1e9f);
  const int code = tqcache_score(data, size, queries.data(), 4, scores.data(), 1, nullptr);
  if (block_case.which == TQCACHE_VALUES) {
    EXPECT_EQ(code, TQCACHE_USAGE);
    return;
  }
  ASSERT_EQ(code, TQCACHE_OK);
  for (std::int64_t q = 0; q < 4; ++q) {
    for (std::int64_t t = 0; t < n; ++t) {
      double expected = 0;
      for (std::int64_t c = 0; c < 64; ++c) {
        expected += double{queries[static_cast<std::size_t>(q * 64 + c)]} *
                    decoded[static_cast<std::size_t>(((q / 2) * n + t) * 64 + c)];
      }
      ASSERT_NEAR(scores[static_cast<std::size_t>(q * n + t)], expected, 2e-3) << q << " " << t;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Configurations, Blocks,
                         testing::Values(BlockCase{"mse:4", TQCACHE_KEYS, 600, 0.12},
                                         BlockCase{"mse:4", TQCACHE_VALUES, 600, 0.12},
                                         BlockCase{"turbo4,sink=4", TQCACHE_KEYS, 512, 0.12},
                                         BlockCase{"mse:8,center=none", TQCACHE_KEYS, 256, 0.02},
                                         BlockCase{"mixed:3", TQCACHE_KEYS, 300, 0.2},
                                         BlockCase{"affine:4", TQCACHE_VALUES, 256, 0.2},
                                         BlockCase{"trellis:0.25", TQCACHE_KEYS, 512, 0.2},
                                         BlockCase{"trellis:0.25:map", TQCACHE_KEYS, 512, 0.2},
                                         BlockCase{"mse:4", TQCACHE_KEYS, 10, 1e-6}));

TEST(Blocks, ShowDamage) {
  std::vector<float> values = random_values(2 * 256 * 64, 9);
  const tqcache_tensor from = tensor_of(values, 2, 256, 64);
  const auto block = made<BytesHandle>([&](auto out, auto error) {
    return tqcache_encode(&from, TQCACHE_KEYS, "mse:4", nullptr, 1, out, error);
  });
  std::string bytes = text_of(block.get());
  std::vector<float> decoded;
  const tqcache_tensor to = tensor_of(decoded, 2, 256, 64);
  const auto decode = [&] { return tqcache_decode(bytes.data(), bytes.size(), &to, 1, nullptr); };
  ASSERT_EQ(decode(), TQCACHE_OK);
  // A changed byte is found, or lies where nothing is read: in the zeros of the values.
  const std::vector<float> whole = decoded;
  for (std::size_t at = 0; at < bytes.size(); at += 7) {
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    if (decode() == TQCACHE_OK) {
      ASSERT_EQ(decoded, whole) << at;
    }
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
  }
  bytes.resize(bytes.size() - 1);
  EXPECT_EQ(decode(), TQCACHE_CORRUPT);
}

// --- stores

// The packed token blocks of one layer of a reader: [K or V][block].
std::array<std::vector<Bytes>, 2> packed_blocks(const cache::CacheReader& reader) {
  std::array<std::vector<Bytes>, 2> blocks;
  for (std::size_t i = 0; i < reader.blocks().size(); ++i) {
    if (!reader.blocks()[i].packed) continue;
    const SharedBytes block = must(reader.share(i));
    blocks[static_cast<std::size_t>(reader.blocks()[i].tensor)].emplace_back(block.view().begin(),
                                                                             block.view().end());
  }
  return blocks;
}

// Means are those of the first block by every way: a conversion, a store, a tensor alone, and a
// cache that grows token by token as in a session.
TEST(CInterface, EveryWayPacksTheSameBytes) {
  const TempDir dir;
  CallerLayers layers;
  const CacheHandle cache = layers.cache();
  tqcache_convert_options convert = TQCACHE_INIT(tqcache_convert_options);
  convert.config = "turbo4,sink=4";
  const std::string path = dir / "a.tqkv";
  ASSERT_EQ(tqcache_convert(cache.get(), path.c_str(), &convert, nullptr), TQCACHE_OK);
  const auto file = must(open_file(path));
  const auto converted = must(format::SectionReader::open(*file));
  const auto expected = packed_blocks(converted);
  ASSERT_EQ(expected[0].size(), 2u);
  ASSERT_EQ(expected[1].size(), 2u);

  tqcache_identity rope = TQCACHE_INIT(tqcache_identity);
  rope.rope_style = TQCACHE_ROPE_HALF_SPLIT;
  rope.rope_dims = 64;
  rope.rope_base = 10000;
  for (const int which : {TQCACHE_KEYS, TQCACHE_VALUES}) {
    const tqcache_tensor from =
        tensor_of(which == TQCACHE_KEYS ? layers.k : layers.v, 2, kTokens, 64);
    const auto block = made<BytesHandle>([&](auto out, auto error) {
      return tqcache_encode(&from, which, "mse:4,sink=4", &rope, 1, out, error);
    });
    const std::string text = text_of(block.get());
    const ByteView bytes = std::as_bytes(std::span(text));
    const auto source = memory_source(Bytes(bytes.begin(), bytes.end()));
    const auto tensor = static_cast<std::size_t>(which);
    EXPECT_TRUE(packed_blocks(must(format::SectionReader::open(*source)))[tensor] ==
                expected[tensor]);
  }

  cache::Cache growing;
  growing.identity.rope = converted.description().identity.rope;
  growing.layers.emplace_back(cache::AttentionLayer{
      {2, 64}, cache::DenseTensor{Dtype::kF32, {}}, cache::DenseTensor{Dtype::kF32, {}}});
  growing = must(
      cache::convert(std::move(growing), must(cache::parse_configuration(convert.config)).options));
  auto& attention = std::get<cache::AttentionLayer>(growing.layers[0]);
  for (std::int64_t token = 0; token < kTokens; ++token) {
    for (const auto& [tensor, values] :
         {std::pair{&attention.k, &layers.k}, std::pair{&attention.v, &layers.v}}) {
      must(cache::pack_full_tail(*tensor, token, 1));
      cache::append(*tensor, {2, 64}, token, tokens_of(*values, token, 1));
    }
  }
  growing.tokens = layers.tokens;
  EXPECT_TRUE(packed_blocks(*cache::reader_of(growing)) == expected);
}

TEST(CInterface, KeepsPromptsInAStore) {
  const TempDir dir;
  CallerLayers layers;
  const std::string url = "dir:" + (dir / "store").string();
  const auto store = made<StoreHandle>(
      [&](auto out, auto error) { return tqcache_store_open(url.c_str(), nullptr, out, error); });
  tqcache_identity identity = TQCACHE_INIT(tqcache_identity);
  identity.architecture = "qwen3";
  identity.rope_style = TQCACHE_ROPE_HALF_SPLIT;
  identity.rope_dims = 64;
  identity.rope_base = 10000;
  const std::array<std::uint8_t, 32> fingerprint = {1, 2, 3};
  identity.weights_fingerprint = fingerprint.data();
  identity.tokenizer_fingerprint = fingerprint.data();
  const auto writer = made<WriterHandle>([&](auto out, auto error) {
    return tqcache_writer_new(layers.tokens.data(), kTokens, &identity, out, error);
  });
  const tqcache_tensor keys = tensor_of(layers.k, 2, kTokens, 64);
  const tqcache_tensor values = tensor_of(layers.v, 2, kTokens, 64);
  ASSERT_EQ(tqcache_writer_attention(writer.get(), &keys, &values, nullptr), TQCACHE_OK);
  const auto cache = made<CacheHandle>(
      [&](auto out, auto error) { return tqcache_writer_cache(writer.get(), out, error); });
  tqcache_put_options put = TQCACHE_INIT(tqcache_put_options);
  put.name = "book";
  put.config = "turbo4";
  tqcache_put_report report = TQCACHE_INIT(tqcache_put_report);
  const Failure failure = failure_of([&](auto error) {
    return tqcache_store_put(store.get(), cache.get(), &put, &report, error);
  });
  ASSERT_EQ(failure.code, TQCACHE_OK) << failure.message;
  EXPECT_EQ(report.n_tokens, kTokens);
  EXPECT_EQ(report.new_blocks, report.blocks);

  std::int64_t found = 0;
  ASSERT_EQ(
      tqcache_store_find(store.get(), &identity, layers.tokens.data(), kTokens, 0, &found, nullptr),
      TQCACHE_OK);
  EXPECT_EQ(found, kTokens);
  const auto prefix = made<CacheHandle>([&](auto out, auto error) {
    return tqcache_store_get(store.get(), &identity, layers.tokens.data(), 300, 0, nullptr, nullptr,
                             out, error);
  });
  ASSERT_NE(prefix, nullptr);
  tqcache_info info = TQCACHE_INIT(tqcache_info);
  tqcache_get_info(prefix.get(), &info);
  EXPECT_STREQ(info.kind, "store");
  EXPECT_EQ(info.n_tokens, 256);
  const auto named = made<CacheHandle>([&](auto out, auto error) {
    return tqcache_store_get_named(store.get(), "book", nullptr, nullptr, out, error);
  });
  ASSERT_NE(named, nullptr);
  EXPECT_EQ(read_layer(named.get(), 0, TQCACHE_VALUES, 512, 88), tokens_of(layers.v, 512, 88));
  EXPECT_EQ(read_layer(named.get(), 0, TQCACHE_KEYS, 0, 256),
            read_layer(prefix.get(), 0, TQCACHE_KEYS, 0, 256));

  // With a key its name is another one, beside what others put.
  const std::string key_file = dir / "key";
  must(write_file_atomically(key_file, as_bytes(std::string(64, 'a') + "\n"), Overwrite::kRefuse));
  tqcache_store_options with_key = TQCACHE_INIT(tqcache_store_options);
  with_key.key_file = key_file.c_str();
  const auto other = made<StoreHandle>(
      [&](auto out, auto error) { return tqcache_store_open(url.c_str(), &with_key, out, error); });
  const Failure of_key = failure_of([&](auto error) {
    return tqcache_store_put(other.get(), cache.get(), &put, nullptr, error);
  });
  EXPECT_EQ(of_key.code, TQCACHE_MISMATCH);
  EXPECT_THAT(of_key.message, testing::HasSubstr("not encrypted, though a key is given"));

  const auto names = made<BytesHandle>(
      [&](auto out, auto error) { return tqcache_store_names(store.get(), out, error); });
  EXPECT_EQ(text_of(names.get()), "[\"book\"]");
  int existed = 0;
  EXPECT_EQ(tqcache_store_remove(store.get(), "book", &existed, nullptr), TQCACHE_OK);
  EXPECT_EQ(existed, 1);
  const std::array<std::int32_t, 2> others = {1, 2};
  const auto none = made<CacheHandle>([&](auto out, auto error) {
    return tqcache_store_get(store.get(), &identity, others.data(), 2, 0, nullptr, nullptr, out,
                             error);
  });
  EXPECT_EQ(none, nullptr);
}

}  // namespace
}  // namespace tqcache::test
