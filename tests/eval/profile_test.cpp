// A profile: its file, what is read from its curve, and how it is measured.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "support/demo_model.h"
#include "support/matchers.h"
#include "tqcache/eval.h"

namespace tqcache::eval {
namespace profile_test {

using test::must;
using testing::ElementsAre;
using testing::HasSubstr;

Profile small_profile() {
  Profile profile;
  profile.architecture = "qwen3";
  profile.model_name = "a\t\"name\"";
  profile.weights_fingerprint.fill(std::byte{0xa5});
  profile.tokenizer_fingerprint.fill(std::byte{0x01});
  profile.window = 2048;
  profile.n_windows = 4;
  profile.n_sinks = 4;
  profile.step = 0.25;
  profile.key_sensitivity = {0.002, 0.008};
  profile.value_sensitivity = {0.002, 0};
  profile.weights = {{1.0f, 0.5f}, {1.001f, 2.0f}};
  profile.curve = {{0.125, 0.01}, {0.25, 0.04}, {0.5, 0.32}};
  return profile;
}

std::string file_of(const Profile& profile) {
  const Bytes bytes = profile_bytes(profile);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

ByteView view(const std::string& text) { return std::as_bytes(std::span(text)); }

// Adds the first line with the right SHA-256.
std::string sealed(const std::string& body) {
  return "tqcache-profile 1 " + to_hex(sha256(view(body))) + "\n" + body;
}

// The file of small_profile() with one text replaced by another, resealed.
std::string changed(const std::string& from, const std::string& to) {
  std::string body = file_of(small_profile());
  body.erase(0, body.find('\n') + 1);
  // Layout does not count, and is not to be known here.
  std::erase_if(body, [](char c) { return c == ' ' || c == '\n'; });
  const std::size_t at = body.find(from);
  if (at == std::string::npos) throw std::runtime_error(from + " is not there");
  return sealed(body.replace(at, from.size(), to));
}

void expect_refused(const std::string& file, ErrorCode code, const std::string& words) {
  EXPECT_THAT(parse_profile(view(file)), test::FailsWith(code, HasSubstr(words)));
}

TEST(ProfileFile, GivesBackWhatWasWritten) {
  EXPECT_EQ(must(parse_profile(profile_bytes(small_profile()))), small_profile());
  EXPECT_EQ(file_of(must(parse_profile(profile_bytes(small_profile())))), file_of(small_profile()));
}

TEST(ProfileFile, BeginsWithTheHashOfTheRest) {
  const std::string file = file_of(small_profile());
  const std::string body = file.substr(file.find('\n') + 1);
  EXPECT_EQ(file, sealed(body));
}

TEST(ProfileFile, IsReadFromAnyJsonThatSaysTheSame) {
  EXPECT_EQ(must(parse_profile(view(changed("{", "{\"more\":[],")))), small_profile());
}

TEST(ProfileFile, CutAnywhereIsRefused) {
  const std::string file = file_of(small_profile());
  for (std::size_t n = 0; n < file.size(); ++n) {
    const std::string cut = file.substr(0, n);
    EXPECT_FALSE(parse_profile(view(cut)).ok()) << n;
  }
}

TEST(ProfileFile, EveryChangedByteIsFound) {
  const std::string file = file_of(small_profile());
  for (std::size_t i = 0; i < file.size(); ++i) {
    std::string bad = file;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    EXPECT_FALSE(parse_profile(view(bad)).ok()) << i;
  }
}

TEST(ProfileFile, RefusesWhatIsNone) {
  expect_refused("", ErrorCode::kCorrupt, "not a profile");
  expect_refused("tqcache-profile", ErrorCode::kCorrupt, "not a profile");
  expect_refused("tqcache-profile 1", ErrorCode::kCorrupt, "no version");
  expect_refused("tqcache-profile 1234567890 ", ErrorCode::kCorrupt, "no version");
  expect_refused("tqcache-profile 2 ", ErrorCode::kUnsupported, "of version 2, which predicts");
  expect_refused("tqcache-profile 4 ", ErrorCode::kUnsupported, "unknown profile version");
  expect_refused("tqcache-profile 1 abc\n{}", ErrorCode::kCorrupt, "truncated in line 1");
  expect_refused(sealed(""), ErrorCode::kCorrupt, "not JSON");
  expect_refused(sealed("[]"), ErrorCode::kCorrupt, "not an object");
  expect_refused(sealed("{}"), ErrorCode::kCorrupt, "missing");
  expect_refused(sealed(std::string(40, '[')), ErrorCode::kTooLarge, "nested");
  expect_refused(std::string(kMaxProfileBytes + 1, ' '), ErrorCode::kTooLarge, "bytes");
}

TEST(ProfileFile, HasFactorsOfKeysOrNothingElse) {
  Profile profile = small_profile();
  profile.key_factors = {{-127, 0, 127}, {}};
  profile.key_losses = {.0123, 0};
  EXPECT_EQ(must(parse_profile(view(file_of(profile)))), profile);
  EXPECT_THAT(file_of(profile), testing::StartsWith("tqcache-profile 1 "));
  // Older programs, which do not know factors, read the rest: it is what it was.
  std::string body = file_of(profile);
  body.erase(0, body.find('\n') + 1);
  for (const char* key : {" \"key_factors\"", " \"key_losses\""}) {
    const std::size_t first = body.find(key), end = body.find("\n ],\n", first) + 5;
    body.erase(first, end - first);
  }
  EXPECT_EQ(sealed(body), file_of(small_profile()));

  Profile quick;
  quick.architecture = "qwen3";
  quick.window = 1024;
  quick.n_windows = 3;
  quick.n_sinks = 4;
  quick.key_factors = {{}, {3, -5}};
  EXPECT_FALSE(quick.is_measured());
  EXPECT_EQ(quick.n_layers(), 2);
  EXPECT_EQ(must(parse_profile(view(file_of(quick)))), quick);
  EXPECT_THAT(file_of(quick), testing::StartsWith("tqcache-profile 3 "));
}

TEST(ProfileFile, RefusesFactorsThatAreNone) {
  Profile quick;
  quick.window = quick.n_windows = 1;
  quick.key_factors = {{3}};
  const auto expect_body = [&](const std::string& from, const std::string& to) {
    std::string body = file_of(quick);
    body.erase(0, body.find('\n') + 1);
    const std::size_t at = body.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    body.replace(at, from.size(), to);
    expect_refused("tqcache-profile 3 " + to_hex(sha256(view(body))) + "\n" + body,
                   ErrorCode::kCorrupt, "key_factors");
  };
  for (const char* const wrong : {"[128]", "[-128]", "[1.5]", "[true]", "[\"3\"]", "[[3]]", "3",
                                  "[3],\n [3]", "[1e99]", "[99999999999999999999]"}) {
    expect_body("[3]", wrong);
  }
  expect_body("key_factors", "key_factor");
}

TEST(ProfileFile, RefusesFieldsOutOfRange) {
  const std::string number(64, 'z');
  struct Change {
    std::string from, to;
    std::string named;  // in the message
  };
  const Change changes[] = {
      {"\"qwen3\"", "7", "architecture"},
      {"\"qwen3\"", "\"" + std::string(257, 'q') + "\"", "architecture"},
      {"a5a5", "A5a5", "fingerprint"},
      {"a5a5", "a5", "fingerprint"},
      {"\"window\":2048", "\"window\":0", "window"},
      {"\"window\":2048", "\"window\":99999999", "window"},
      {"\"windows\":4", "\"windows\":0", "windows"},
      {"\"sink_tokens\":4", "\"sink_tokens\":257", "sink_tokens"},
      {"\"layers\":2", "\"layers\":3", "per layer"},
      {"\"layers\":2", "\"layers\":1025", "layers"},
      {"\"layers\":2", "\"layers\":-1", "layers"},
      {"\"step\":0.25", "\"step\":9", "step"},
      {"\"step\":0.25", "\"steps\":0.25", "step"},
      {"[0.002,0.008]", "[0.002,-0.008]", "sensitivity"},
      {"[0.002,0.008]", "[0.002,1e9]", "sensitivity"},
      {"[0.002,0.008]", "[0.002]", "sensitivity"},
      {"[0.002,0.008]", "[0.002,\"a\"]", "sensitivity"},
      {"[0.002,0.008]", "0.002", "sensitivity"},
      {"[1.0,0.5]", "[1.0,0.1]", "weights"},
      {"[1.0,0.5]", "[1.0,8.5]", "weights"},
      {"[[0.125,0.01],[0.25,0.04],[0.5,0.32]]", "[[0.125,0.01]]", "curve"},
      {"[0.125,0.01]", "[0.125]", "curve"},
      {"[0.125,0.01]", "[0.125,0]", "curve"},
      {"[0.125,0.01]", "[0.01,0.01]", "curve"},
      {"[0.125,0.01]", "[0.25,0.01]", "curve"},
      {"[0.125,0.01]", "[0.125,0.04]", "curve"},
      {"[0.125,0.01]", "[null,0.01]", "curve"},
  };
  for (const auto& [from, to, named] : changes) {
    SCOPED_TRACE(from + " to " + to);
    expect_refused(changed(from, to), ErrorCode::kCorrupt, named);
  }
  std::string many;
  for (int i = 0; i < 62; ++i) {
    many += ",[" + std::to_string(i + 1) + "e-1," + std::to_string(i + 1) + "]";
  }
  expect_refused(changed(",[0.5,0.32]", many), ErrorCode::kCorrupt, "curve: ");
}

cache::Identity identity_of(const Profile& profile) {
  cache::Identity identity;
  identity.weights_fingerprint = profile.weights_fingerprint;
  identity.tokenizer_fingerprint = profile.tokenizer_fingerprint;
  return identity;
}

void expect_mismatch(const cache::Identity& identity, std::int64_t n_layers,
                     const std::string& words) {
  EXPECT_THAT(check_profile(small_profile(), identity, n_layers),
              test::FailsWith(ErrorCode::kMismatch, HasSubstr(words)));
}

TEST(CheckProfile, TakesCachesOfItsModelAlone) {
  const cache::Identity own = identity_of(small_profile());
  EXPECT_TRUE(check_profile(small_profile(), own, 2).ok());
  expect_mismatch(own, 3, "the number of layers is 2, that of the cache is 3");
  expect_mismatch({}, 2, "does not name its model");
  cache::Identity other = own;
  other.weights_fingerprint[0] = {};
  expect_mismatch(other, 2, "the weights fingerprint is a5");
  other = own;
  other.tokenizer_fingerprint[0] = {};
  expect_mismatch(other, 2, "the tokenizer fingerprint is 01");
  other = own;
  other.adapter_fingerprint.emplace();
  expect_mismatch(other, 2, "adapter");
}

TEST(Curve, GoesStraightBetweenItsPointsInLogarithms) {
  const Profile profile = small_profile();
  EXPECT_DOUBLE_EQ(must(step_for_divergence(profile, 0.01)), 0.125);
  EXPECT_DOUBLE_EQ(must(step_for_divergence(profile, 0.32)), 0.5);
  EXPECT_NEAR(must(step_for_divergence(profile, 0.02)), 0.25 / std::sqrt(2), 1e-12);
  for (const double step : {0.125, 0.13, 0.25, 0.4, 0.5}) {
    EXPECT_NEAR(must(step_for_divergence(profile, *divergence_of_step(profile, step))), step,
                1e-12);
  }
}

TEST(Curve, SaysNothingBeyondItsEnds) {
  for (const double kld : {0.0, -1.0, 0.009, 0.33, std::nan("")}) {
    EXPECT_THAT(step_for_divergence(small_profile(), kld),
                test::FailsWith(ErrorCode::kInvalidArgument,
                                HasSubstr("the profile knows 0.010000 to 0.320000")));
  }
  EXPECT_FALSE(divergence_of_step(small_profile(), 0.12));
  EXPECT_FALSE(divergence_of_step(small_profile(), 0.51));
}

TEST(AscendingCurve, JoinsPointsThatDoNotAscend) {
  const std::vector<eval::CurvePoint> good = {{.1, .001}, {.2, .004}, {.4, .03}};
  const auto same = eval::ascending_curve(good);
  ASSERT_EQ(same.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(same[i].step, good[i].step, 1e-12);
    EXPECT_NEAR(same[i].kld, good[i].kld, 1e-12);
  }
  // .008 and .002 become sqrt(.008 * .002) = .004 at sqrt(.1 * .4) = .2.
  const auto joined = eval::ascending_curve(
      std::vector<eval::CurvePoint>{{.05, .001}, {.1, .008}, {.4, .002}, {.8, .03}});
  ASSERT_EQ(joined.size(), 3u);
  EXPECT_NEAR(joined[1].step, .2, 1e-12);
  EXPECT_NEAR(joined[1].kld, .004, 1e-12);
  // A curve that falls all the way is a single point, which no profile may have.
  EXPECT_EQ(
      eval::ascending_curve(std::vector<eval::CurvePoint>{{.1, .3}, {.2, .2}, {.4, .1}}).size(),
      1u);
}

TEST(WeightsOf, AreOneOverTheRootOfSensitivity) {
  const auto weights = weights_of({0.001, 0.004}, {0.002, 0.002});
  EXPECT_THAT(weights.keys, ElementsAre(1.414f, 0.707f));
  EXPECT_THAT(weights.values, ElementsAre(1.0f, 1.0f));
}

TEST(WeightsOf, StayWithinTwoTimes) {
  const auto weights = weights_of({1e-6, 1.0}, {0, 0.001});
  EXPECT_THAT(weights.keys, ElementsAre(2.0f, 0.5f));
  EXPECT_EQ(weights.values[0], 2.0f);
}

TEST(WeightsOf, AreOneWhereNothingWasLost) {
  EXPECT_EQ(weights_of({0, 0}, {0, 0}), (cache::StepWeights{{1, 1}, {1, 1}}));
}

std::vector<std::int32_t> numbers(std::int32_t n) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  for (std::int32_t i = 0; i < n; ++i) ids[static_cast<std::size_t>(i)] = i;
  return ids;
}

TEST(SpreadWindows, TakesTheMiddlesOfEqualParts) {
  EXPECT_THAT(spread_windows(numbers(24), 2, 3), ElementsAre(2, 3, 10, 11, 18, 19, 23));
  EXPECT_THAT(spread_windows(numbers(24), 2, 1), ElementsAre(10, 11, 23));
}

TEST(SpreadWindows, TakesAllWhereThereAreNoMore) {
  EXPECT_EQ(spread_windows(numbers(24), 8, 2), numbers(24));
  EXPECT_EQ(spread_windows(numbers(24), 2, 0), numbers(24));
  EXPECT_EQ(spread_windows(numbers(5), 8, 2), numbers(5));
}

TEST(SensitivityConfigurations, CodeOneTensorOfOneLayer) {
  const auto all = sensitivity_configurations(3);
  ASSERT_EQ(all.size(), 6u);
  EXPECT_EQ(all[2].name, "f32,k=trellis:0.25:map,fit=prompt,k.weights=0:1:0");
  EXPECT_EQ(all[5].name, "f32,v=trellis:0.25:map,fit=prompt,v.weights=0:0:1");
}

TEST(MeasureProfile, IsOfTheModelAndGrowsWithTheStep) {
  const model::Model& model = test::demo_model();
  const auto ids = test::encode(test::excerpt_text());
  std::uint64_t last = 0, of = 0;
  const auto progress = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GE(done, last);
    last = done;
    of = total;
    return true;
  };
  const Profile profile =
      must(measure_profile(model, ids, {.window = 256, .max_windows = 1}, progress));
  EXPECT_EQ(last, of);
  EXPECT_EQ(profile.n_windows, 1);
  EXPECT_EQ(profile.n_layers(), model.config.n_layers);
  EXPECT_TRUE(check_profile(profile, model.identity, model.config.n_layers).ok());
  EXPECT_EQ(profile.weights, weights_of(profile.key_sensitivity, profile.value_sensitivity));
  EXPECT_GT(*std::ranges::min_element(profile.key_sensitivity), 0);
  EXPECT_EQ(must(parse_profile(profile_bytes(profile))), profile);
  // Measured alone, a point of the curve is as it is there.
  const auto ways = curve_configurations(profile.weights);
  const auto costs = must(measure_predictions(model, spread_windows(ids, 256, 1),
                                              std::span(ways).subspan(3, 1), {.window = 256}));
  EXPECT_NEAR(costs.ways[0].kld_mean, profile.curve[3].kld, 1e-4 * profile.curve[3].kld);
}

// --- factors of keys

KeyMoments two_heads() {
  KeyMoments moments;
  moments.shapes = {{2, 4}, {}};
  moments.left = {{1, 1, 1, 1, 256, 1, 256, 1}, {}};
  moments.weight = {std::vector<double>(8, 0.0), {}};
  moments.n_pairs = 2;
  return moments;
}

TEST(KeyFactors, AreTheFourthRootOfWeightByVariance) {
  KeyMoments moments = two_heads();
  auto factors = key_factors(moments);
  ASSERT_EQ(factors.size(), 2u);
  EXPECT_TRUE(factors[1].empty());
  ASSERT_EQ(factors[0].size(), 8u);
  EXPECT_THAT(std::vector<std::int8_t>(factors[0].begin(), factors[0].begin() + 4),
              ElementsAre(0, 0, 0, 0));
  // 256 by 1, but for the floor: (2 + .01) by (1 / 128 + .01), a root of 3.26, 13.6 eighths.
  EXPECT_EQ(factors[0][4], factors[0][6]);
  EXPECT_EQ(factors[0][5], factors[0][7]);
  EXPECT_NEAR(factors[0][5] - factors[0][4], 13.6, 1);
  // Queries that look at one pair 16 times as much as at the other: twice the factor, less a floor.
  moments.weight[0] = {16, 1, 16, 1, 1, 1, 1, 1};
  factors = key_factors(moments);
  EXPECT_NEAR(factors[0][0] - factors[0][1], 7.05, 1);
  EXPECT_NEAR(factors[0][5] - factors[0][4], 13.6, 1);
}

// What a pair loses turns with the position, so only its sum counts.
TEST(KeyFactors, DoNotDependOnHowFarAPairTurned) {
  KeyMoments moments = two_heads();
  const auto straight = key_factors(moments);
  moments.left[0] = {1, 1, 1, 1, 500, 1, 12, 1};
  EXPECT_EQ(key_factors(moments), straight);
}

TEST(QuickProfile, IsOfTheModelAndOfItsCaches) {
  const model::Model& model = test::demo_model();
  const auto ids = test::encode(test::excerpt_text());
  const Profile profile = must(quick_profile(model, ids, {.window = 512, .max_windows = 1}));
  EXPECT_EQ(profile.n_windows, 1);
  EXPECT_EQ(profile.weights_fingerprint, model.identity.weights_fingerprint);
  ASSERT_EQ(profile.n_layers(), model.config.n_layers);
  for (const auto& factors : profile.key_factors) {
    ASSERT_EQ(factors.size(), 256u);
    for (std::size_t i = 0; i < 256; ++i) EXPECT_EQ(factors[i], factors[i ^ 64]) << i;
  }
  EXPECT_EQ(must(quick_profile(model, ids, {.window = 512, .max_windows = 1, .n_threads = 1})),
            profile);
  // Its own factors are a better codec than none, for text that they did not see.
  cache::Configuration with = must(cache::parse_configuration("turbo3,sink=4"));
  const cache::Configuration without = with;
  cache::Calibration calibration;
  calibration.key_factors = profile.key_factors;
  with.options.calibration = std::make_shared<const cache::Calibration>(calibration);
  const std::vector<cache::Configuration> ways = {without, with};
  const auto later = std::span(ids).subspan(2000, 513);
  const auto costs = must(measure_predictions(model, later, ways, {.window = 512}));
  EXPECT_EQ(costs.ways[0].size.k_bytes, costs.ways[1].size.k_bytes);
  EXPECT_LT(costs.ways[1].errors.total(0).relative(), 2 * costs.ways[0].errors.total(0).relative());
}

TEST(AddKeys, RefusesWhatHasNoDenseBlock) {
  KeyMoments moments;
  const auto expect_words = [&](const cache::Cache& cache, const char* words) {
    EXPECT_THAT(add_keys(*cache::reader_of(cache), moments, 1),
                test::FailsWith(ErrorCode::kInvalidArgument, HasSubstr(words)));
  };
  cache::Cache cache = test::CacheBuilder(300).dense({2, 64}, Dtype::kF16).build();
  expect_words(test::CacheBuilder(255).dense({2, 64}, Dtype::kF16).build(), "at least 256");
  expect_words(must(cache::convert(cache, {})), "quantized; a dense cache is wanted");
  EXPECT_TRUE(add_keys(*cache::reader_of(cache), moments, 1));
  expect_words(test::CacheBuilder(300).dense({1, 64}, Dtype::kF16).build(), "different models");
}

TEST(MeasureProfile, RefusesATextThatIsTooShort) {
  const auto measured = measure_profile(test::demo_model(), numbers(100), {.window = 256});
  ASSERT_FALSE(measured.ok());
  EXPECT_EQ(measured.error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(measure_profile(test::demo_model(), {}, {}).ok());
  EXPECT_FALSE(measure_profile(test::demo_model(), numbers(100), {.window = 0}).ok());
}

}  // namespace profile_test
}  // namespace tqcache::eval
