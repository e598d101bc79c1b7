// Files of version 1 that are kept for ever: whatever becomes of this library, it reads them, and
// migrates them to the same values.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "golden_v1_cases.h"
#include "golden_v1_json.h"
#include "support/temp_dir.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace golden_v1_test {

using migrations::check_migrated;
using migrations::read_v1;
using migrations::v1_to_v2;

const std::filesystem::path kFolder = TQCACHE_GOLDEN_V1_FILES;

std::vector<std::string> names_ending(const std::string& ending) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ending) names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

Bytes golden_file(const std::string& name) { return read_all(kFolder / (name + ".tqcache")); }

nlohmann::ordered_json twin(const std::string& name) {
  std::ifstream in(kFolder / (name + ".json"));
  return nlohmann::ordered_json::parse(in);
}

TEST(GoldenV1Files, AreThereWithATwinEach) {
  std::vector<std::string> expected;
  for (const GoldenV1Case& golden : golden_v1_cases()) expected.push_back(golden.name);
  std::ranges::sort(expected);
  EXPECT_EQ(names_ending(".tqcache"), expected);
  EXPECT_EQ(names_ending(".json"), expected);
}

// What no golden file has could change unseen.
TEST(GoldenV1Files, HaveEveryClassAndModeAndMap) {
  std::set<std::string> paths, maps, modes;
  for (const std::string& name : names_ending(".tqcache")) {
    const auto json = twin(name);
    for (const auto& entry : json["entries"]) paths.insert(entry["class_path"].get<std::string>());
    for (const auto& layer : json["migrated"]["layers"]) {
      for (const char* tensor : {"k", "v"}) {
        if (!layer.contains(tensor) || !layer[tensor].contains("mode")) continue;
        modes.insert(layer[tensor]["mode"].get<std::string>());
        for (const auto& part : layer[tensor]["parts"]) {
          maps.insert(part["rotation"].get<std::string>());
        }
      }
    }
  }
  EXPECT_THAT(paths,
              testing::IsSupersetOf(
                  {"turbomlx.mlx_runtime.cache.TurboQuantKVCache", "mlx_lm.models.cache.KVCache",
                   "mlx_lm.models.cache.QuantizedKVCache", "mlx_lm.models.cache.RotatingKVCache",
                   "mlx_lm.models.cache.ArraysCache", "mlx_lm.models.cache.MambaCache"}));
  EXPECT_THAT(maps, testing::UnorderedElementsAre("hartley_hadamard.v1", "dense_qr.v1",
                                                  "gaussian.v1", "none.v1"));
  EXPECT_THAT(modes, testing::UnorderedElementsAre("mse", "prod", "mixed", "affine"));
}

class GoldenV1 : public testing::TestWithParam<std::string> {
 protected:
  const Bytes file_ = golden_file(GetParam());
};

TEST_P(GoldenV1, HoldsAndBecomesWhatItsTwinSays) {
  EXPECT_EQ(golden_v1_json(file_), twin(GetParam()));
}

TEST_P(GoldenV1, BecomesWhatItSays) {
  const auto file = must(read_v1(*memory_source(file_)));
  const auto migration = must(v1_to_v2(file));
  const auto checked = check_migrated(file, migration.cache, 2);
  EXPECT_TRUE(checked.ok()) << checked.error().message;
}

TEST_P(GoldenV1, GoesThroughAFileOfVersion2) {
  const auto migration = must(v1_to_v2(must(read_v1(*memory_source(file_)))));
  const Bytes written = must(format::write_cache_bytes(migration.cache, {}));
  EXPECT_THAT(must(format::verify_cache(*memory_source(written))).damage, testing::IsEmpty());
  const cache::Cache again = must(format::read_cache(*memory_source(written)));
  EXPECT_EQ(difference(again, migration.cache), "");
}

TEST_P(GoldenV1, IsSmall) { EXPECT_LT(file_.size(), 40000u); }

INSTANTIATE_TEST_SUITE_P(File, GoldenV1, testing::ValuesIn(names_ending(".tqcache")),
                         [](const auto& test) { return test.param; });

}  // namespace golden_v1_test
}  // namespace tqcache::test
