// What a turbo cache costs in quality, on the bundled model and a whole book, against what an
// independent simulation of TurboQuant measured there (tests/data/README.md).
//
// Bounds count over the whole book. TQCACHE_QUALITY_WINDOWS=N measures fewer windows, for slow
// builds; TQCACHE_QUALITY_ALL=1 measures more ways, for comparison.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "quality/quality.h"
#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "tqcache/cache/presets.h"

namespace tqcache {
namespace {

using test::must;
using test::Quality;

constexpr std::int64_t kWindow = 2048;  // tokens

cache::SidePlan plan(int bits, cache::Centring center) {
  cache::SidePlan side;
  side.dense = bits == 16;
  side.codec.bits = bits;
  side.center = center;
  return side;
}

Quality way(std::string name, int key_bits, int value_bits,
            cache::Centring center = cache::Centring::kNone) {
  return {.name = std::move(name),
          .options = {.keys = plan(key_bits, center), .values = plan(value_bits, center)}};
}

// The plain ones have names of reference.json.
std::vector<Quality> chosen_ways() {
  std::vector<Quality> ways = {way("k4v4", 4, 4), {.name = "default"}};
  if (std::getenv("TQCACHE_QUALITY_ALL") == nullptr) return ways;
  for (const auto& [name, k, v] :
       {std::tuple{"kf_v4", 16, 4}, std::tuple{"k4_vf", 4, 16}, std::tuple{"k8v4", 8, 4},
        std::tuple{"k4v3", 4, 3}, std::tuple{"k3v3", 3, 3}, std::tuple{"k2v2", 2, 2}}) {
    ways.push_back(way(name, k, v));
  }
  for (const std::string_view name : cache::preset_names()) {
    ways.push_back({.name = "preset " + std::string(name), .options = must(cache::preset(name))});
  }
  return ways;
}

class Kld : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::ifstream in(TQCACHE_TEST_DATA "/reference.json");
    reference_ = nlohmann::json::parse(in)["ppl"]["alice"];
    const auto model = must(model::load_model(TQCACHE_DEMO_MODEL "/hf"));
    const Bytes text = test::read_all(TQCACHE_TEST_DATA "/alice.txt");
    ids_ = must(model->tokenizer.encode({reinterpret_cast<const char*>(text.data()), text.size()},
                                        model::Tokenizer::Special::kAsText));
    const std::int64_t all_windows = (std::ssize(ids_) - 1) / kWindow;
    const char* const wanted = std::getenv("TQCACHE_QUALITY_WINDOWS");
    const std::int64_t n_windows =
        wanted == nullptr ? all_windows : std::min<std::int64_t>(std::atoi(wanted), all_windows);
    whole_book_ = n_windows == all_windows;
    ways_ = chosen_ways();
    dense_perplexity_ = test::measure(*model, ids_, kWindow, n_windows, ways_);
    print();
  }

  static void print() {
    std::printf("%-16s %8s %8s %8s %8s   reference: kld, top-1, perplexity\n", "", "kld", "top-1",
                "ppl", "bits");
    std::printf("%-16s %8s %8s %8.3f %8s   %25.3f\n", "dense", "", "", dense_perplexity_, "",
                reference_["f32"]["ppl"].get<double>());
    for (const Quality& each : ways_) {
      std::printf("%-16s %8.4f %8.4f %8.3f %8.3f", each.name.c_str(), each.kld, each.top1,
                  each.perplexity, each.bits_of_a_value);
      if (reference_.contains(each.name)) {
        const auto& expected = reference_[each.name];
        std::printf("   %8.4f %8.4f %8.3f", expected["kld_mean"].get<double>(),
                    expected["top1"].get<double>(), expected["ppl"].get<double>());
      }
      std::printf("\n");
    }
  }

  static const Quality& result(const std::string& name) {
    return *std::ranges::find(ways_, name, &Quality::name);
  }
  static double reference(const char* field) { return reference_["k4v4"][field].get<double>(); }

  inline static nlohmann::json reference_;
  inline static std::vector<std::int32_t> ids_;
  inline static bool whole_book_ = false;
  inline static std::vector<Quality> ways_;
  inline static double dense_perplexity_ = 0;
};

TEST_F(Kld, DensePerplexityIsThatOfTransformers) {
  EXPECT_EQ(std::ssize(ids_), reference_["tokens"].get<std::int64_t>());
  if (!whole_book_) GTEST_SKIP() << "not the whole book";
  EXPECT_NEAR(dense_perplexity_, reference_["f32"]["ppl"].get<double>(), 0.01);
}

TEST_F(Kld, PlainFourBitsCostWhatTheSimulationSays) {
  if (!whole_book_) GTEST_SKIP() << "not the whole book";
  EXPECT_NEAR(result("k4v4").kld, reference("kld_mean"), 0.05 * reference("kld_mean"));
  EXPECT_NEAR(result("k4v4").top1, reference("top1"), 0.01);
}

TEST_F(Kld, CentringTakesAThirdOfTheCostAwayAtNoMoreBits) {
  EXPECT_GT(result("default").kld, 0);
  EXPECT_LT(result("default").kld, 0.75 * result("k4v4").kld);
  EXPECT_GT(result("default").bits_of_a_value, 4);
  EXPECT_LE(result("default").bits_of_a_value, 4.13);
  EXPECT_EQ(result("default").bits_of_a_value, result("k4v4").bits_of_a_value);
  if (!whole_book_) GTEST_SKIP() << "not the whole book";
  EXPECT_LT(result("default").kld, 0.65 * reference("kld_mean"));
}

}  // namespace
}  // namespace tqcache
