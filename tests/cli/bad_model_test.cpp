// A model whose keys quantize badly: convert, profile and advise say so, and factors of keys help.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cli/demo.h"
#include "tqcache/file.h"

namespace tqcache::test {
namespace bad_model_test {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// Multiplies elements i and i + 64 of a bf16 vector of 128 by 2^power, exactly.
void scale_pair(std::span<std::byte> vector, int i, int power) {
  for (const int at : {i, i + 64}) {
    std::uint16_t bf16;
    std::memcpy(&bf16, vector.data() + 2 * at, 2);
    bf16 = static_cast<std::uint16_t>(bf16 + (power << 7));  // the exponent begins at bit 7
    std::memcpy(vector.data() + 2 * at, &bf16, 2);
  }
}

// The bundled model with one pair of components of all keys times 2^9, and of all queries by 2^9:
// the same function, and the same predictions. A rotation gives all components the error of the
// largest.
std::string bad_model(const TempDir& dir) {
  const std::filesystem::path folder = dir / "model";
  std::filesystem::copy(TQCACHE_DEMO_MODEL "/hf", folder, std::filesystem::copy_options::recursive);
  std::fstream file(folder / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  std::uint64_t size = 0;
  file.read(reinterpret_cast<char*>(&size), 8);
  std::string text(size, ' ');
  file.read(text.data(), static_cast<std::streamsize>(size));
  const json header = json::parse(text);
  for (int layer = 0; layer < 8; ++layer) {
    for (const auto& [name, power] : {std::pair("k_norm", 9), std::pair("q_norm", -9)}) {
      const json& tensor =
          header["model.layers." + std::to_string(layer) + ".self_attn." + name + ".weight"];
      EXPECT_EQ(tensor["dtype"], "BF16");
      EXPECT_EQ(tensor["shape"], json::parse("[128]"));
      const auto at =
          static_cast<std::streamoff>(8 + size) + tensor["data_offsets"][0].get<std::streamoff>();
      std::vector<std::byte> values(256);
      file.seekg(at);
      file.read(reinterpret_cast<char*>(values.data()), 256);
      scale_pair(values, 5, power);
      file.seekp(at);
      file.write(reinterpret_cast<const char*>(values.data()), 256);
    }
  }
  file.close();
  std::filesystem::permissions(folder / "model.safetensors", std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  return folder;
}

TEST(BadModel, IsNamedByWhatMeetsIt) {
  const TempDir dir;
  const std::string model = bad_model(dir);
  const std::string dense = (dir / "dense.kv").string();
  const std::string output = (dir / "out.tqkv").string();
  must(
      {"prefill", "-m", model, "--file", kBook, "--tokens", "1040", "--dtype", "f32", "-o", dense});

  // The default says which keys, and what helps.
  const Output bad = must({"convert", dense, output, "--json"});
  EXPECT_THAT(bad.err, HasSubstr("quantize badly"));
  EXPECT_THAT(bad.err, HasSubstr("the keys of layers 0, 1, 2, 3, 4, 5, 6, 7"));
  EXPECT_THAT(bad.err, HasSubstr("--profile"));
  EXPECT_THAT(bad.err, Not(HasSubstr("the values of")));
  const json listed = json::parse(bad.out)["badly_quantized"];
  EXPECT_GT(json::parse(bad.out)["lost"]["k"], 10);
  EXPECT_LT(json::parse(bad.out)["lost"]["v"], 0.1);
  ASSERT_EQ(listed.size(), 8u);
  EXPECT_EQ(listed[0]["tensor"], "k");
  EXPECT_GT(listed[0]["lost"], 10);

  // Factors from the cache itself undo the scaling.
  const std::string profile = (dir / "from.tqprofile").string();
  EXPECT_THAT(must({"profile", "--from", dense, "-o", profile}).err,
              HasSubstr("the keys of layers 0, 1, 2, 3, 4, 5, 6, 7 quantize badly"));
  const Output helped = must({"convert", dense, output, "-f", "--profile", profile, "--json"});
  EXPECT_THAT(helped.err, Not(HasSubstr("quantize badly")));
  EXPECT_EQ(json::parse(helped.out)["badly_quantized"], json::array());
  // Keys that stay dense lose nothing.
  EXPECT_THAT(must({"convert", dense, output, "-f", "--bits", "16,4"}).err,
              Not(HasSubstr("quantize badly")));

  // The transforms of an archive keep what has most energy, and lose the rest.
  EXPECT_THAT(must({"convert", dense, output, "-f", "--config", "archive"}).err,
              HasSubstr("more bits"));

  const Output advice = tqcache({"advise", "-m", model, "--file", kBook, "--window", "512",
                                 "--max-windows", "1", "--max-kld", "0.0001"});
  EXPECT_EQ(advice.exit_code, 1);
  EXPECT_THAT(advice.err, HasSubstr("quantizes badly"));
}

TEST(GoodModel, IsNotWarnedOf) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 1040);
  const std::string output = (dir / "out.tqkv").string();
  for (const char* configuration : {"turbo4,sink=4", "turbo2", "turbo4,center=none", "prod3"}) {
    const Output made = must({"convert", dense, output, "-f", "--config", configuration, "--json"});
    EXPECT_THAT(made.err, Not(HasSubstr("quantize badly"))) << configuration;
    EXPECT_EQ(json::parse(made.out)["badly_quantized"], json::array()) << configuration;
  }
  EXPECT_THAT(
      must({"advise", "-m", kModel, "--file", kBook, "--window", "512", "--max-windows", "1"}).err,
      Not(HasSubstr("quantizes badly")));
}

}  // namespace bad_model_test
}  // namespace tqcache::test
