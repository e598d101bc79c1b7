#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "capi/capi_handles.h"
#include "support/cache_builder.h"
#include "support/long_tests.h"
#include "support/temp_dir.h"
#include "tqcache/store.h"
#include "tqcache/store/values/checked_value.h"
#include "tqcache/upkeep.h"

namespace tqcache::test {
namespace {

// A namespace in a folder, with the warnings that it gave.
struct ValuesFixture {
  TempDir dir;
  std::vector<std::string> warnings;
  ValuesHandle values;

  explicit ValuesFixture(std::int32_t planes = 0) : values(open(planes)) {}

  std::string url() const { return "dir:" + (dir / "store").string(); }

  ValuesHandle open(std::int32_t planes = 0, const char* name_space = "vllm",
                    const char* key_file = nullptr) {
    tqcache_values_options options = TQCACHE_INIT(tqcache_values_options);
    options.planes = planes;
    options.key_file = key_file;
    options.user = &warnings;
    options.warning = [](void* list, const char* message) {
      static_cast<std::vector<std::string>*>(list)->emplace_back(message);
    };
    return made<ValuesHandle>([&](auto out, auto error) {
      return tqcache_values_open(url().c_str(), name_space, &options, out, error);
    });
  }

  int put(const char* key, std::string_view meta, std::string data) {
    const std::size_t half = data.size() / 2;
    const std::array<tqcache_part, 2> parts = {
        tqcache_part{data.data(), half}, tqcache_part{data.data() + half, data.size() - half}};
    int stored = -1;
    const Failure failure = failure_of([&](auto error) {
      return tqcache_values_put(values.get(), key, meta.data(), meta.size(), parts.data(), 2,
                                &stored, error);
    });
    EXPECT_EQ(failure.code, TQCACHE_OK) << failure.message;
    return stored;
  }

  // "-" for a miss.
  std::string get(const char* key, std::string_view meta) {
    const auto bytes = made<BytesHandle>([&](auto out, auto error) {
      return tqcache_values_get(values.get(), key, meta.data(), meta.size(), out, error);
    });
    return bytes == nullptr ? "-" : text_of(bytes.get());
  }

  // The only file of a value.
  std::filesystem::path file() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir / "store")) {
      if (entry.path().filename().string().starts_with("v,")) return entry.path();
    }
    return {};
  }
};

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void set_contents(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

TEST(CheckedValues, ReturnWhatWasPut) {
  ValuesFixture store;
  EXPECT_EQ(store.get("a", "m"), "-");
  EXPECT_EQ(store.put("a", "m", "the value"), 1);
  EXPECT_EQ(store.put("a", "m", "another"), 0);  // write-once
  EXPECT_EQ(store.get("a", "m"), "the value");
  EXPECT_EQ(store.put("empty", "", ""), 1);
  EXPECT_EQ(store.get("empty", ""), "");
  std::string room(9, ' ');
  tqcache_part part{room.data(), room.size()};
  int found = 0;
  ASSERT_EQ(tqcache_values_read(store.values.get(), "a", "m", 1, &part, 1, &found, nullptr),
            TQCACHE_OK);
  EXPECT_EQ(found, 1);
  EXPECT_EQ(room, "the value");
  room.assign(10, '!');
  part = {room.data(), room.size()};
  ASSERT_EQ(tqcache_values_read(store.values.get(), "a", "m", 1, &part, 1, &found, nullptr),
            TQCACHE_OK);
  EXPECT_EQ(found, 0);  // another length
  EXPECT_EQ(room, "!!!!!!!!!!");
  EXPECT_TRUE(store.warnings.empty());

  const std::array<const char*, 2> keys = {"a", "b"};
  std::array<std::uint8_t, 2> exists{};
  ASSERT_EQ(tqcache_values_exist(store.values.get(), keys.data(), 2, exists.data(), nullptr),
            TQCACHE_OK);
  EXPECT_EQ(exists[0], 1);
  EXPECT_EQ(exists[1], 0);
  int existed = 0;
  ASSERT_EQ(tqcache_values_remove(store.values.get(), "a", &existed, nullptr), TQCACHE_OK);
  EXPECT_EQ(existed, 1);
  EXPECT_EQ(store.get("a", "m"), "-");
}

TEST(CheckedValues, OtherMetadataIsAMissWithOneWarning) {
  ValuesFixture store;
  EXPECT_EQ(store.put("a", "f16", "value"), 1);
  EXPECT_EQ(store.get("a", "bf16"), "-");
  EXPECT_EQ(store.get("a", "bf16"), "-");
  ASSERT_EQ(store.warnings.size(), 1u);
  EXPECT_NE(store.warnings[0].find("other metadata"), std::string::npos);
  EXPECT_EQ(store.put("a", "bf16", "other"), 1);  // takes the place
  EXPECT_EQ(store.get("a", "bf16"), "other");
}

TEST(CheckedValues, AnyFlippedBitOrLengthIsAMiss) {
  ValuesFixture store;
  store.put("key", "meta", "some bytes of a value");
  const std::filesystem::path path = store.file();
  const std::string whole = contents(path);
  ASSERT_GT(whole.size(), 64u);
  for (std::size_t bit = 0; bit < 8 * whole.size(); bit += bit_step()) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    ASSERT_FALSE(store::open_value(as_bytes(damaged))) << bit;
    if (bit % 9 != 0) continue;
    set_contents(path, damaged);
    ASSERT_EQ(store.get("key", "meta"), "-") << bit;
  }
  EXPECT_EQ(store.warnings.size(), 1u);
  for (std::size_t size = 0; size < whole.size(); size += 5) {
    set_contents(path, whole.substr(0, size));
    ASSERT_EQ(store.get("key", "meta"), "-") << size;
  }
  EXPECT_EQ(store.put("key", "meta", "some bytes of a value"), 1);  // is repaired by the next put
  EXPECT_EQ(contents(path), whole);
  EXPECT_EQ(store.get("key", "meta"), "some bytes of a value");
}

TEST(CheckedValues, AValueUnderAnotherKeyIsAMiss) {
  ValuesFixture store;
  store.put("a", "m", "value of a");
  const std::filesystem::path a = store.file();
  const std::string bytes = contents(a);
  std::filesystem::remove(a);
  store.put("b", "m", "value of b");
  set_contents(store.file(), bytes);
  EXPECT_EQ(store.get("b", "m"), "-");
  EXPECT_EQ(store.warnings.size(), 1u);
}

TEST(CheckedValues, PlanesAreLosslessAndSmaller) {
  ValuesFixture store(2);
  Random random(3);
  std::string data;
  for (int i = 0; i < 900'000; ++i) {
    const float value = random.bell();
    std::uint16_t half = 0;
    store_f32(Dtype::kBF16, {&value, 1}, reinterpret_cast<std::byte*>(&half));
    data.append(reinterpret_cast<const char*>(&half), 2);
  }
  EXPECT_EQ(store.put("a", "m", data), 1);
  EXPECT_EQ(store.get("a", "m"), data);
  EXPECT_LT(std::filesystem::file_size(store.file()), data.size() * 3 / 4);
  const std::string whole = contents(store.file());
  for (std::size_t at = 0; at < whole.size(); at += 9973) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 16);
    set_contents(store.file(), damaged);
    ASSERT_EQ(store.get("a", "m"), "-") << at;
  }
  set_contents(store.file(), whole);
  // What does not shrink is stored as it is.
  std::string noise(1 << 16, ' ');
  for (char& c : noise) c = static_cast<char>(random.next());
  EXPECT_EQ(store.put("noise", "m", noise), 1);
  EXPECT_EQ(store.get("noise", "m"), noise);
  int stored = 0;
  tqcache_part odd{noise.data(), 3};
  EXPECT_EQ(tqcache_values_put(store.values.get(), "odd", "", 0, &odd, 1, &stored, nullptr),
            TQCACHE_USAGE);
}

TEST(CheckedValues, NamespacesAndKeysAreApart) {
  ValuesFixture store;
  store.put("a", "m", "1");
  const ValuesHandle other = store.open(0, "lmcache");
  const auto bytes = made<BytesHandle>([&](auto out, auto error) {
    return tqcache_values_get(other.get(), "a", "m", 1, out, error);
  });
  EXPECT_EQ(bytes, nullptr);
  tqcache_values* none = nullptr;
  for (const char* name : {"", "A", "a/b", ".a"}) {
    EXPECT_EQ(tqcache_values_open(store.url().c_str(), name, nullptr, &none, nullptr),
              TQCACHE_USAGE)
        << name;
  }
}

TEST(CheckedValues, AreEncryptedWithAKey) {
  ValuesFixture store;
  const std::string key = store.dir / "key";
  must(write_file_atomically(key, as_bytes(std::string(64, 'b') + "\n"), Overwrite::kRefuse));
  store.put("plain", "m", "a plain value");
  store.values = store.open(0, "vllm", key.c_str());
  EXPECT_EQ(store.get("plain", "m"), "-");  // has another name
  EXPECT_EQ(store.put("a", "m", "a secret value"), 1);
  EXPECT_EQ(store.get("a", "m"), "a secret value");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(store.dir / "store")) {
    if (!entry.path().filename().string().starts_with("v,")) continue;
    EXPECT_EQ(contents(entry.path()).find("secret"), std::string::npos);
  }
}

TEST(CheckedValues, AreCountedAndTrimmed) {
  ValuesFixture store;
  for (const char* key : {"a", "b", "c"}) store.put(key, "m", std::string(1000, key[0]));
  std::uint64_t n = 0;
  std::uint64_t bytes = 0;
  ASSERT_EQ(tqcache_values_total(store.values.get(), &n, &bytes, nullptr), TQCACHE_OK);
  EXPECT_EQ(n, 3u);
  EXPECT_GT(bytes, 3000u);
  ASSERT_EQ(tqcache_values_trim(store.values.get(), bytes - 1, &n, &bytes, nullptr), TQCACHE_OK);
  EXPECT_EQ(n, 1u);
  ASSERT_EQ(tqcache_values_trim(store.values.get(), 0, &n, nullptr, nullptr), TQCACHE_OK);
  EXPECT_EQ(n, 2u);
}

// gc and check count them as blobs under foreign keys, and leave them alone.
TEST(CheckedValues, AreLeftAloneByTheUpkeepOfTheStore) {
  ValuesFixture store;
  store.put("a", "m", "value");
  const auto backend = must(store::open_backend(store.url(), {}));
  store::CheckOptions check;
  check.read_data = true;
  check.repair = true;
  const store::CheckReport checked = must(store::check(*backend, check));
  EXPECT_TRUE(checked.is_whole());
  EXPECT_EQ(checked.others.blobs, 1u);
  store::CollectOptions collect;
  collect.max_bytes = 0;
  collect.grace = std::chrono::seconds(0);
  must(store::collect(*backend, collect));
  EXPECT_EQ(store.get("a", "m"), "value");
}

TEST(CheckedValues, ManyThreadsReadOnlyRightValues) {
  ValuesFixture store;
  const auto value_of = [](int i) { return std::string(static_cast<std::size_t>(500 + i), 'v'); };
  std::vector<std::jthread> threads;
  std::array<int, 4> wrong{};
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        const std::string key = "key " + std::to_string(i % 8);
        std::string data = value_of(i % 8);
        tqcache_part part{data.data(), data.size()};
        if (tqcache_values_put(store.values.get(), key.c_str(), "m", 1, &part, 1, nullptr,
                               nullptr) != TQCACHE_OK) {
          ++wrong[t];
        }
        tqcache_bytes* bytes = nullptr;
        if (tqcache_values_get(store.values.get(), key.c_str(), "m", 1, &bytes, nullptr) !=
            TQCACHE_OK) {
          ++wrong[t];
        }
        const BytesHandle owner(bytes);
        if (bytes == nullptr || text_of(bytes) != value_of(i % 8)) ++wrong[t];
      }
    });
  }
  threads.clear();
  EXPECT_EQ(wrong, (std::array<int, 4>{}));
}

// The envelope, byte by byte, as docs/reference/store.md has it.
TEST(CheckedValues, HaveTheDocumentedEnvelope) {
  const std::string data = "data";
  const std::array<ByteView, 1> parts = {as_bytes(data)};
  const Bytes bytes =
      must(store::encode_value("key", as_bytes("meta"), parts, store::ValueCoding::kRaw, 1));
  ASSERT_EQ(bytes.size(), 132u);
  EXPECT_EQ(std::memcmp(bytes.data(), "TQKC\r\n\x1a\n", 8), 0);
  EXPECT_EQ(number_at<std::uint32_t>(bytes, 8), 1u);
  EXPECT_EQ(number_at<std::uint32_t>(bytes, 12), 0u);
  EXPECT_EQ(number_at<std::uint64_t>(bytes, 16), 132u);
  EXPECT_EQ(number_at<std::uint32_t>(bytes, 24), 3u);
  EXPECT_EQ(number_at<std::uint32_t>(bytes, 28), 4u);
  EXPECT_EQ(number_at<std::uint64_t>(bytes, 32), 4u);
  EXPECT_EQ(number_at<std::uint64_t>(bytes, 56), xxh3_64(ByteView(bytes).first(56)));
  EXPECT_EQ(std::memcmp(bytes.data() + 64, "keymeta", 7), 0);
  EXPECT_EQ(bytes[71], std::byte{0});
  EXPECT_EQ(std::memcmp(bytes.data() + 128, "data", 4), 0);
}

TEST(Planes, AreLosslessWithoutAStore) {
  std::string data;
  for (int i = 0; i < 300'000; ++i) {
    const float value = static_cast<float>(i % 1000) / 7.0f;
    data.append(reinterpret_cast<const char*>(&value), 4);
  }
  tqcache_part part{data.data(), data.size()};
  for (const std::int32_t planes : {0, 2, 4}) {
    const auto packed = made<BytesHandle>([&](auto out, auto error) {
      return tqcache_planes_encode(&part, 1, planes, 1, out, error);
    });
    std::string bytes = text_of(packed.get());
    std::uint64_t n = 0;
    ASSERT_EQ(tqcache_planes_size(bytes.data(), bytes.size(), &n, nullptr), TQCACHE_OK);
    ASSERT_EQ(n, data.size());
    std::string out(data.size(), ' ');
    tqcache_part room{out.data(), out.size()};
    ASSERT_EQ(tqcache_planes_decode(bytes.data(), bytes.size(), &room, 1, 1, nullptr), TQCACHE_OK);
    EXPECT_EQ(out, data);
    room.size -= 1;
    EXPECT_EQ(tqcache_planes_decode(bytes.data(), bytes.size(), &room, 1, 1, nullptr),
              TQCACHE_USAGE);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    room.size += 1;
    EXPECT_EQ(tqcache_planes_decode(bytes.data(), bytes.size(), &room, 1, 1, nullptr),
              TQCACHE_CORRUPT);
  }
}

}  // namespace
}  // namespace tqcache::test
