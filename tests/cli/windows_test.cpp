// Sliding windows on the command line: packed on demand, told, compared, and written for other
// programs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cli/demo.h"
#include "support/cache_builder.h"
#include "support/checkpoint_reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace windows_test {

using nlohmann::json;
using testing::HasSubstr;

// A dense window of 300 tokens that are finite, and full attention.
std::string write_windows(const TempDir& dir) {
  cache::Cache cache =
      CacheBuilder(600).turbo_rotating({{2, 64}, 300, 0}, 8, 8).dense({2, 64}).build();
  make_dense(std::get<cache::WindowLayer>(cache.layers[0]), 600);
  const std::string path = (dir / "dense.kv").string();
  must(format::write_cache_file(cache, path, {}));
  return path;
}

TEST(WindowsFlag, LeavesWindowsAsTheyAreByDefault) {
  const TempDir dir;
  const json layers = info_of(pack(write_windows(dir)))["layers"];
  EXPECT_EQ(layers[0]["cache_type_id"], "tqcache.rotating.v1");
  EXPECT_EQ(layers[1]["k"]["cache_type_id"], "tqcache.turbo_mse.v1");
}

TEST(WindowsFlag, PacksThem) {
  const TempDir dir;
  const std::string dense = write_windows(dir);
  const std::string packed = pack(dense, {"--config", "windows=turbo"});
  must({"verify", packed});
  const json layers = info_of(packed)["layers"];
  EXPECT_EQ(layers[0]["cache_type_id"], "tqcache.rotating.v2");
  EXPECT_EQ(layers[0]["window"], 300);
  EXPECT_EQ(layers[0]["k"]["centring"], "none");
  EXPECT_EQ(layers[0]["v"]["centring"], "post_rope.v1");
  EXPECT_EQ(layers[1]["k"]["centring"], "pre_rope.v1");
  EXPECT_THAT(must({"info", packed}).out,
              HasSubstr("sliding window of 300 tokens, 2 KV heads of 64: k turbo"));
  const json difference = json::parse(must({"diff", dense, packed, "--json"}).out);
  EXPECT_EQ(difference["layers"].size(), 2u);
  EXPECT_LT(difference["k"]["relative_mse"], 0.02);
}

// Context checkpoints go wherever the cache goes.
TEST(Checkpoints, AreWrittenToStandardOutput) {
  const TempDir dir;
  const auto cache_of = [](std::int64_t n) {
    return CacheBuilder(n).dense({2, 64}).rotating({{2, 64}, 40, 0}).build();
  };
  const cache::Cache cache = cache_of(600);
  const CheckpointReader reader(cache,
                                {checkpoint_of(cache_of(300)), checkpoint_of(cache_of(500))});
  const std::string in = (dir / "in.kv").string(), out = (dir / "out.kv").string();
  must(format::write_cache_file(reader, in, {}));
  for (const auto& flags : {std::vector<std::string>{}, {"--bits", "16"}, {"--tokens", "500"}}) {
    std::vector<std::string> arguments = {"convert", in, out, "-f"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    must(arguments);
    arguments[2] = "-";
    const std::string written = must(arguments).out;
    EXPECT_TRUE(std::ranges::equal(as_bytes(written), read_all(out)));
    const json info = info_of(out);
    EXPECT_EQ(info["checkpoints"].size(), flags.empty() || flags[1] == "16" ? 2u : 1u);
  }
}

TEST(Checkpoints, AStoreKeepsThemAsPrompts) {
  const TempDir dir;
  const auto cache_of = [](std::int64_t n) {
    return CacheBuilder(n).dense({2, 64}).rotating({{2, 64}, 40, 0}).build();
  };
  const CheckpointReader reader(cache_of(600), {checkpoint_of(cache_of(300))});
  const std::string in = (dir / "in.kv").string(), out = (dir / "out.kv").string();
  const std::string url = "dir:" + (dir / "store").string();
  must(format::write_cache_file(reader, in, {}));
  EXPECT_THAT(must({"store", "put", in, "--name", "book", "--store", url}).err,
              HasSubstr("1 checkpoint stored"));
  EXPECT_THAT(must({"store", "get", "book", "-o", out, "--store", url}).err,
              HasSubstr("without context checkpoints"));
  EXPECT_EQ(info_of(out)["checkpoints"].size(), 0u);
}

TEST(WindowsFlag, IsSuggestedWhereTheyStayDense) {
  const TempDir dir;
  const std::string dense = write_windows(dir);
  const std::string packed = (dir / "packed").string();
  EXPECT_THAT(
      must({"convert", dense, packed}).err,
      HasSubstr("hint: 1 sliding-window layer stayed dense; --config windows=turbo quantizes it"));
  EXPECT_EQ(must({"convert", dense, packed, "-f", "--config", "windows=turbo"}).err.find("hint"),
            std::string::npos);
}

TEST(WindowsFlag, GoesBackWithSixteenBits) {
  const TempDir dir;
  const std::string dense = write_windows(dir);
  const std::string packed = pack(dense, {"--config", "windows=turbo"});
  const std::string again = (dir / "again").string();
  must({"convert", packed, again, "--bits", "16"});
  EXPECT_EQ(info_of(again)["layers"][0]["cache_type_id"], "tqcache.rotating.v1");
  const json difference = json::parse(must({"diff", packed, again, "--json"}).out);
  EXPECT_LT(difference["k"]["relative_mse"], 1e-6);
}

TEST(WindowsFlag, CentersTheirKeysToo) {
  const TempDir dir;
  const std::string dense = write_windows(dir);
  const std::string by_flag = pack(dense, {"--config", "windows=turbo:center"});
  EXPECT_EQ(info_of(by_flag)["layers"][0]["k"]["centring"], "pre_rope.v1");
  const Bytes bytes = read_all(by_flag);
  EXPECT_EQ(read_all(pack(dense, {"--config", "sink=4,windows=turbo:center", "-f"})), bytes);
}

TEST(WindowsFlag, IsNotForArchives) {
  const TempDir dir;
  const Output output = tqcache({"convert", write_windows(dir), (dir / "a.tqkv").string(),
                                 "--config", "archive,windows=turbo"});
  EXPECT_EQ(output.exit_code, 2);
  EXPECT_THAT(output.err, HasSubstr("--config archive takes sink= and center= alone"));
}

TEST(WindowsFlag, HasThreeWords) {
  const TempDir dir;
  const Output output = tqcache(
      {"convert", write_windows(dir), (dir / "a.tqkv").string(), "--config", "windows=dense"});
  EXPECT_EQ(output.exit_code, 2);
}

TEST(TurboWindow, IsWrittenForOtherProgramsAsItDecodes) {
  const TempDir dir;
  const std::string packed = pack(write_windows(dir), {"--config", "windows=turbo"});
  const std::string npz = (dir / "a.npz").string(), back = (dir / "back.kv").string();
  EXPECT_THAT(must({"convert", packed, npz}).err, HasSubstr("written decoded"));
  must({"convert", npz, back, "--bits", "16"});
  EXPECT_EQ(info_of(back)["layers"][0]["cache_type_id"], "tqcache.rotating.v1");
  const json difference = json::parse(must({"diff", packed, back, "--json"}).out);
  EXPECT_LT(difference["k"]["relative_mse"], 1e-6);  // what f16 rounds
  EXPECT_LT(difference["v"]["relative_mse"], 1e-6);
}

}  // namespace windows_test
}  // namespace tqcache::test
