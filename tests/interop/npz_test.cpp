#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "interop/damage.h"
#include "interop/foreign_cache_reading.h"
#include "interop/zip_builder.h"
#include "support/cache_builder.h"
#include "support/failing_source.h"
#include "support/long_tests.h"
#include "support/temp_dir.h"
#include "tqcache/base/half.h"
#include "tqcache/interop/npz/npz_cache.h"
#include "tqcache/interop/npz/npz_schema.h"
#include "tqcache/interop/whole_tensors.h"
#include "tqcache/reader.h"

namespace tqcache::interop {
namespace npz_test {

using test::CacheBuilder;
using test::TempDir;

std::shared_ptr<const ByteSource> source_of(Bytes bytes) { return memory_source(std::move(bytes)); }

ErrorCode import_error(Bytes bytes) {
  auto foreign = import_npz(source_of(std::move(bytes)));
  if (!foreign) return foreign.error().code;
  const auto sections = reader_of(std::move(foreign).value());
  return sections ? ErrorCode::kBusy : sections.error().code;
}

cache::Cache import_cache(std::shared_ptr<const ByteSource> file) {
  return test::must(test::read_foreign(test::must(import_npz(std::move(file)))));
}
cache::Cache import_cache(Bytes bytes) { return import_cache(source_of(std::move(bytes))); }

Bytes export_cache(cache::Cache cache) {
  const TempDir folder;
  test::must(
      export_npz(*test::sections_of(std::move(cache)), folder / "cache.npz", Overwrite::kRefuse));
  return test::read_all(folder / "cache.npz");
}

ErrorCode export_error(cache::Cache cache) {
  const TempDir folder;
  const auto done =
      export_npz(*test::sections_of(std::move(cache)), folder / "x", Overwrite::kRefuse);
  EXPECT_EQ(folder.entry_count(), done ? 1u : 0u);
  return done ? ErrorCode::kBusy : done.error().code;
}

// A cache as the schema gives it back.
cache::Cache as_imported(cache::Cache cache) {
  cache::Identity identity;
  identity.architecture = cache.identity.architecture;
  identity.model_name = cache.identity.model_name;
  identity.source_format = "numpy";
  cache.identity = identity;
  return cache;
}

cache::Cache mixed_cache(std::int64_t n_tokens) {
  return CacheBuilder(n_tokens)
      .dense({2, 32}, Dtype::kF16)
      .mixed({1, 8}, Dtype::kF32, 16, Dtype::kBF16, 16)
      .rotating({{2, 8}, 63, 4}, Dtype::kBF16, Dtype::kF32)
      .arrays()
      .build();
}

TEST(Npz, ReadsWhatNumpyWrote) {
  for (const std::string name : {"numpy.npz", "numpy_compressed.npz"}) {
    const std::shared_ptr<const ByteSource> file =
        test::must(open_file(std::string(TQCACHE_TEST_DATA "/interop/") + name));
    EXPECT_TRUE(test::must(is_npz_cache(*file)));
    const cache::Cache cache = import_cache(file);
    EXPECT_EQ(cache.tokens, (std::vector<std::int32_t>{0, 10, 20, 30, 40}));
    EXPECT_EQ(cache.identity.architecture, "qwen3");
    const auto& layer = std::get<cache::AttentionLayer>(cache.layers[0]);
    EXPECT_EQ(layer.shape, (cache::HeadShape{2, 4}));
    // Of head 1, token 2: 28 to 31.
    const auto& block = std::get<cache::DenseTensor>(layer.k).blocks[0];
    EXPECT_EQ(f16_to_f32(number_at<std::uint16_t>(block, 2 * ((256 + 2) * 4))), 28.0f);
    const auto& window = std::get<cache::WindowLayer>(cache.layers[1]);
    EXPECT_EQ(window.window, (cache::Window{3, 1}));
    const auto& [window_shape, k, v, value_dim] = window.attention;
    EXPECT_EQ(value_dim, 0);
    EXPECT_EQ(window_shape, (cache::HeadShape{2, 4}));
    EXPECT_EQ(cache::dense_dtype(k), Dtype::kBF16);
    const AlignedBytes keys = cache::gather_window(window, k, cache.n_tokens());
    EXPECT_EQ(bf16_to_f32(number_at<std::uint16_t>(keys, 2 * 23)), 23.0f);
    EXPECT_EQ(cache::dense_dtype(v), Dtype::kF32);
    const auto& arrays = std::get<cache::StateLayer>(cache.layers[2]).arrays;
    EXPECT_EQ(arrays[0].name, "conv");
    EXPECT_EQ(arrays[0].shape, (std::vector<std::uint64_t>{1, 2, 3}));
    EXPECT_EQ(number_at<float>(arrays[0].data, 20), 5.0f);
  }
}

TEST(Npz, RoundTripKeepsEveryBit) {
  for (const std::int64_t n : {0, 1, 63, 64, 256, 257, 600}) {
    EXPECT_EQ(
        test::difference(import_cache(export_cache(mixed_cache(n))), as_imported(mixed_cache(n))),
        "")
        << n;
  }
}

TEST(Npz, TurboTensorsAreDecoded) {
  const auto make = [] { return CacheBuilder(600).turbo({2, 64}, 4, 3, Dtype::kBF16).build(); };
  const auto packed = test::sections_of(make());
  const auto dense = test::must(cache::dequantize(packed));
  const cache::Cache expected = test::must(test::read_sections(*dense));
  EXPECT_EQ(test::difference(import_cache(export_cache(make())), as_imported(expected)), "");
}

TEST(Npz, HiddenTokensAreLeftOut) {
  const cache::Cache back =
      import_cache(export_cache(CacheBuilder(300).dense({1, 16}).hide_tokens().build()));
  EXPECT_EQ(back.tokens[0], cache::kUnknownToken);
  EXPECT_TRUE(back.hidden_tokens->empty());
}

TEST(Npz, TensorsMayBeReadFromSeveralThreads) {
  const Bytes file = export_cache(mixed_cache(600));
  const auto sections = test::must(reader_of(test::must(import_npz(source_of(file)))));
  const cache::Cache expected = as_imported(mixed_cache(600));
  std::vector<std::string> differences(4, "not run");
  std::vector<std::thread> threads;
  for (std::string& difference : differences) {
    threads.emplace_back([&] {
      difference = test::difference(test::must(test::read_sections(*sections)), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& difference : differences) EXPECT_EQ(difference, "");
}

TEST(Npz, EveryBf16ComesBack) {
  AlignedBytes values(2 * 65'536);
  for (std::size_t i = 0; i < 65'536; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    std::memcpy(values.data() + 2 * i, &half, 2);
  }
  AlignedBytes wide = values;
  widen_bf16(wide);
  ASSERT_EQ(wide.size(), 2 * values.size());
  AlignedBytes back(values.size());
  narrow_to_bf16(wide, back);
  EXPECT_EQ(back, values);
}

TEST(Npz, AnF32ThatIsNoBf16IsRounded) {
  const std::vector<float> wide = {1.0f + 0x1p-8f + 0x1p-20f, 1.0f + 0x1p-9f};
  std::vector<std::uint16_t> narrow(2);
  narrow_to_bf16(object_bytes(wide), std::as_writable_bytes(std::span(narrow)));
  EXPECT_EQ(narrow, (std::vector<std::uint16_t>{0x3f81, 0x3f80}));
}

TEST(Npz, ExportRefusesNamesThatCannotBe) {
  for (const std::string name : {"", "a/b", "a b", "\xff"}) {
    cache::Cache cache = CacheBuilder(3).arrays().build();
    std::get<cache::StateLayer>(cache.layers[0]).arrays[0].name = name;
    EXPECT_EQ(export_error(std::move(cache)), ErrorCode::kUnsupported) << name;
  }
  cache::Cache cache = CacheBuilder(3).arrays().build();
  std::get<cache::StateLayer>(cache.layers[0]).arrays[0].name = "state";
  EXPECT_EQ(export_error(std::move(cache)), ErrorCode::kUnsupported);
}

TEST(Npz, TextsThatAreNotPlainAreLeftOut) {
  cache::Cache cache = CacheBuilder(3).dense({1, 8}).build();
  cache.identity.architecture = "\xff\xfe";
  cache.identity.model_name = "a\nb";
  const cache::Cache back = import_cache(export_cache(std::move(cache)));
  EXPECT_EQ(back.identity.architecture, "");
  EXPECT_EQ(back.identity.model_name, "");
}

TEST(Npz, ExportCountsAllBytesAndCanBeStopped) {
  const TempDir folder;
  const auto cache = test::sections_of(mixed_cache(300));
  std::uint64_t last = 0, all = 0;
  const Progress count = [&](std::uint64_t done, std::uint64_t total) {
    last = done;
    all = total;
    return true;
  };
  test::must(export_npz(*cache, folder / "a", Overwrite::kRefuse, count));
  EXPECT_GT(all, 0u);
  EXPECT_EQ(last, all);
  EXPECT_EQ(export_npz(*cache, folder / "a", Overwrite::kRefuse).error().code,
            ErrorCode::kInvalidArgument);
  const Progress stop = [](std::uint64_t, std::uint64_t) { return false; };
  EXPECT_EQ(export_npz(*cache, folder / "b", Overwrite::kRefuse, stop).error().code,
            ErrorCode::kInterrupted);
  EXPECT_EQ(folder.entry_count(), 1u);
}

// A file of one attention layer of two tokens, as a list of members to be changed.
struct File {
  std::string description =
      R"({"format":"tqcache-npz-1","n_tokens":2,"layers":[{"kind":"attention"}]})";
  std::map<std::string, Bytes> members = {
      {"tokens", array("<i8", {2}, 16)},
      {"layer_0_key", array("<f2", {1, 2, 4}, 16)},
      {"layer_0_value", array("<f2", {1, 2, 4}, 16)},
  };

  static Bytes array(std::string_view descr, const std::vector<std::uint64_t>& shape,
                     std::size_t n_bytes) {
    return test::npy_file(descr, shape, Bytes(n_bytes));
  }
  static Bytes described(std::string layers) {
    File file;
    file.description = R"({"format":"tqcache-npz-1","n_tokens":2,"layers":)" + layers + "}";
    return file.bytes();
  }
  Bytes bytes() const {
    test::ZipParts parts = {{"tqcache.npy", make_npz_text(description)}};
    for (const auto& [name, bytes] : members) parts.emplace_back(name + ".npy", bytes);
    return test::zip_file(parts);
  }
};

TEST(Npz, TakesTheDescriptionAsBytesToo) {
  ASSERT_EQ(import_error(File().bytes()), ErrorCode::kBusy);
  const std::string text = File().description;
  for (const bool is_text : {true, false}) {
    test::ZipParts parts = {
        {"tqcache.npy", is_text ? test::npy_file("|S" + std::to_string(text.size() + 2), {},
                                                 test::bytes_of(text + std::string(2, '\0')))
                                : test::npy_file("|u1", {text.size()}, test::bytes_of(text))}};
    for (const auto& [name, bytes] : File().members) parts.emplace_back(name + ".npy", bytes);
    EXPECT_EQ(import_error(test::zip_file(parts)), ErrorCode::kBusy);
  }
}

TEST(Npz, IsToldFromOtherFiles) {
  EXPECT_TRUE(test::must(is_npz_cache(*source_of(File().bytes()))));
  EXPECT_FALSE(test::must(is_npz_cache(*source_of({}))));
  EXPECT_FALSE(test::must(is_npz_cache(*source_of(test::bytes_of("TQKV....")))));
  EXPECT_FALSE(test::must(is_npz_cache(*source_of(test::zip_file({{"a", {}}})))));
  EXPECT_FALSE(
      test::must(is_npz_cache(*test::must(open_file(TQCACHE_TEST_DATA "/interop/torch.pt")))));
  File other;
  other.description = R"({"format":"something else"})";
  EXPECT_FALSE(test::must(is_npz_cache(*source_of(other.bytes()))));
  Bytes cut = File().bytes();
  cut.pop_back();
  EXPECT_EQ(is_npz_cache(*source_of(cut)).error().code, ErrorCode::kCorrupt);
}

TEST(Npz, RefusesBadDescriptions) {
  const std::string rest = R"(,"layers":[{"kind":"attention"}]})";
  for (const auto& [text, code] : std::map<std::string, ErrorCode>{
           {"", ErrorCode::kCorrupt},
           {"[]", ErrorCode::kCorrupt},
           {R"({"format":"tqcache-npz-1","format":"tqcache-npz-1"})", ErrorCode::kCorrupt},
           {R"({"a":[[[[0]]]]})", ErrorCode::kTooLarge},
           {"{}", ErrorCode::kUnsupported},
           {R"({"format":"tqcache-npz-2"})", ErrorCode::kUnsupported},
           {R"({"format":"tqcache-npz-1"})", ErrorCode::kCorrupt},
           {R"({"format":"tqcache-npz-1","n_tokens":2})", ErrorCode::kCorrupt},
           {R"({"format":"tqcache-npz-1","n_tokens":2,"layers":{}})", ErrorCode::kCorrupt},
           {R"({"format":"tqcache-npz-1","n_tokens":-2)" + rest, ErrorCode::kCorrupt},
           {R"({"format":"tqcache-npz-1","n_tokens":"2")" + rest, ErrorCode::kCorrupt},
           {R"({"format":"tqcache-npz-1","n_tokens":3)" + rest, ErrorCode::kCorrupt},
           {R"({"format":"tqcache-npz-1","n_tokens":99999999)" + rest, ErrorCode::kTooLarge}}) {
    File file;
    file.description = text;
    EXPECT_EQ(import_error(file.bytes()), code) << text;
  }
  const File file;
  test::ZipParts parts;
  for (const auto& [name, bytes] : file.members) parts.emplace_back(name + ".npy", bytes);
  EXPECT_EQ(import_error(test::zip_file(parts)), ErrorCode::kUnsupported);
  parts.emplace_back("tqcache.npy", File::array("<f4", {2}, 8));
  EXPECT_EQ(import_error(test::zip_file(parts)), ErrorCode::kUnsupported);
  parts.back().second = File::array("<U1", {2}, 8);
  EXPECT_EQ(import_error(test::zip_file(parts)), ErrorCode::kUnsupported);
  parts.back().second = test::npy_file("<U1", {},
                                       test::bytes_of("\x01\x02\x03"
                                                      "\x04"));
  EXPECT_EQ(import_error(test::zip_file(parts)), ErrorCode::kCorrupt);
  parts.back().second = File::array("|S17000000", {}, 17'000'000);
  EXPECT_EQ(import_error(test::zip_file(parts)), ErrorCode::kTooLarge);
}

TEST(Npz, RefusesBadLayers) {
  for (const auto& [layers, code] : std::map<std::string, ErrorCode>{
           {"[1]", ErrorCode::kCorrupt},
           {"[{}]", ErrorCode::kUnsupported},
           {"[]", ErrorCode::kUnsupported},  // whose arrays are these?
           {R"([{"kind":"mamba"}])", ErrorCode::kUnsupported},
           {R"([{"kind":"attention"},{"kind":"attention"}])", ErrorCode::kCorrupt},
           {R"([{"kind":"attention","bf16":"key"}])", ErrorCode::kCorrupt},
           {R"([{"kind":"attention","bf16":[1]}])", ErrorCode::kCorrupt},
           {R"([{"kind":"attention","bf16":["a b"]}])", ErrorCode::kCorrupt},
           {R"([{"kind":"attention","bf16":["key","key"]}])", ErrorCode::kCorrupt},
           {R"([{"kind":"attention","bf16":["key"]}])", ErrorCode::kCorrupt},  // it is f2
           {R"([{"kind":"window"}])", ErrorCode::kCorrupt},
           {R"([{"kind":"window","size":2}])", ErrorCode::kCorrupt},
           {R"([{"kind":"window","size":2,"keep":2}])", ErrorCode::kCorrupt},
           {R"([{"kind":"window","size":0,"keep":0}])", ErrorCode::kCorrupt},
           {R"([{"kind":"window","size":1,"keep":0}])", ErrorCode::kCorrupt},
           {R"([{"kind":"window","size":99999999,"keep":0}])", ErrorCode::kTooLarge},
           {R"([{"kind":"window","size":5,"keep":1}])", ErrorCode::kBusy},
           {R"([{"kind":"arrays"}])", ErrorCode::kUnsupported},
           {R"([{"kind":"arrays","arrays":["x"]}])", ErrorCode::kCorrupt}}) {
    EXPECT_EQ(import_error(File::described(layers)), code) << layers;
  }
  std::string many = R"(["a0")";
  for (int i = 1; i < 65; ++i) many += ",\"a" + std::to_string(i) + '"';
  EXPECT_EQ(import_error(File::described(R"([{"kind":"arrays","arrays":)" + many + "]}]")),
            ErrorCode::kTooLarge);
  std::string layers = "[0";
  for (int i = 0; i < 1024; ++i) layers += ",0";
  EXPECT_EQ(import_error(File::described(layers + "]")), ErrorCode::kTooLarge);
}

TEST(Npz, RefusesBadArrays) {
  const auto error_with_key = [](const Bytes& key) {
    File file;
    file.members["layer_0_key"] = key;
    return import_error(file.bytes());
  };
  EXPECT_EQ(error_with_key(File::array("<f8", {1, 2, 4}, 64)), ErrorCode::kUnsupported);
  EXPECT_EQ(error_with_key(File::array("<f2", {2, 4}, 16)), ErrorCode::kCorrupt);
  EXPECT_EQ(error_with_key(File::array("<f2", {1, 3, 4}, 24)), ErrorCode::kCorrupt);
  EXPECT_EQ(error_with_key(File::array("<f2", {2, 2, 4}, 32)), ErrorCode::kCorrupt);
  EXPECT_EQ(error_with_key(File::array("<f2", {1025, 2, 4}, 16'400)), ErrorCode::kTooLarge);
  EXPECT_EQ(error_with_key(File::array("<f2", {1, 2, 1025}, 4'100)), ErrorCode::kTooLarge);
  File file;
  file.members["layer_1_key"] = File::array("<f2", {1}, 2);
  EXPECT_EQ(import_error(file.bytes()), ErrorCode::kUnsupported);
}

TEST(Npz, RefusesBadTokens) {
  const auto error_with_tokens = [](const Bytes& tokens) {
    File file;
    file.members["tokens"] = tokens;
    return import_error(file.bytes());
  };
  EXPECT_EQ(error_with_tokens(File::array("<i4", {2}, 8)), ErrorCode::kUnsupported);
  EXPECT_EQ(error_with_tokens(File::array("<i8", {3}, 24)), ErrorCode::kCorrupt);
  EXPECT_EQ(error_with_tokens(File::array("<i8", {1, 2}, 16)), ErrorCode::kCorrupt);
  for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{1} << 31}) {
    const std::vector<std::int64_t> ids = {0, id};
    EXPECT_EQ(error_with_tokens(test::npy_file("<i8", {2}, object_bytes(ids))),
              ErrorCode::kCorrupt);
  }
}

TEST(Npz, EveryFailingReadIsReported) {
  std::size_t n = 0;
  test::fail_every_read(File().bytes(), [&](const ByteSource& source) {
    const std::shared_ptr<const ByteSource> alias(std::shared_ptr<void>(), &source);
    auto foreign = import_npz(alias);
    const auto cache = foreign ? test::read_foreign(std::move(foreign).value())
                               : Result<cache::Cache>(foreign.error());
    n += cache.ok() ? 0 : 1;
    if (!cache) {
      EXPECT_EQ(cache.error().code, ErrorCode::kIo) << cache.error().message;
    }
  });
  EXPECT_GT(n, 10u);
}

TEST(Npz, EveryTruncatedFileIsRefused) {
  for (const std::string name : {"numpy.npz", "numpy_compressed.npz"}) {
    const Bytes bytes = test::read_all(std::string(TQCACHE_TEST_DATA "/interop/") + name);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const ErrorCode code =
          import_error(Bytes(bytes.begin(), bytes.begin() + std::ptrdiff_t(size)));
      EXPECT_TRUE(code == ErrorCode::kTruncated || code == ErrorCode::kCorrupt) << size;
    }
  }
}

TEST(Npz, EveryFlippedBitIsRefusedOrGivesAValidCache) {
  for (const std::string name : {"numpy.npz", "numpy_compressed.npz"}) {
    const Bytes bytes = test::read_all(std::string(TQCACHE_TEST_DATA "/interop/") + name);
    std::size_t n_valid = 0;
    for (std::size_t bit = 0; bit < 8 * bytes.size(); bit += test::bit_step()) {
      Bytes flipped = bytes;
      flipped[bit / 8] ^= std::byte(1 << (bit % 8));
      EXPECT_TRUE(test::refused_or_valid(import_npz(source_of(std::move(flipped))), n_valid))
          << bit;
    }
    EXPECT_GT(n_valid, 0u);
  }
}

}  // namespace npz_test
}  // namespace tqcache::interop
