// `convert --config archive` and `tqcache profile`: a file of the size, the error or the divergence
// that was asked for, and what is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/demo.h"
#include "support/cache_builder.h"
#include "support/small_profile.h"
#include "tqcache/file.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace archive_test {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// Of kModel, made as models/demo/README.md tells.
const std::string kProfile = TQCACHE_DEMO_MODEL "/tqcache-demo-17m.q8_0.tqprofile";

class Archive : public testing::Test {
 protected:
  std::vector<std::string> archive(const std::vector<std::string>& flags) const {
    std::vector<std::string> args = {"convert", dense_, output_, "--config", "archive"};
    args.insert(args.end(), flags.begin(), flags.end());
    return args;
  }
  json made(std::vector<std::string> flags) const {
    flags.insert(flags.end(), {"--json", "-f"});
    return json::parse(must(archive(flags)).out);
  }
  bool is_written() const { return std::filesystem::exists(output_); }

  TempDir dir_;
  std::string dense_ = prefill_book(dir_, 1040);
  std::string output_ = (dir_ / "archive.tqkv").string();
};

double bits_of(const json& result) { return result["bits_per_value"]; }

void expect_refusal(const std::vector<std::string>& args, int exit_code, const std::string& words) {
  const Output output = tqcache(args);
  EXPECT_EQ(output.exit_code, exit_code) << output.err;
  EXPECT_EQ(output.out, "");
  EXPECT_THAT(output.err, AllOf(StartsWith("tqcache: "), HasSubstr(words)));
}

TEST_F(Archive, HasTheBitsThatWereAskedFor) {
  for (const double bits : {5.0, 4.0}) {
    const json result = made({"--bits", std::to_string(bits)});
    EXPECT_LE(bits_of(result), bits * 1.003);
    EXPECT_GT(bits_of(result), bits * 0.97);
    EXPECT_EQ(result["archive"]["expected_kld"], nullptr);
  }
  must({"verify", output_, "-m", kModel});
}

TEST_F(Archive, HasTheErrorThatWasAskedFor) {
  // .02 is .1962 / 10 of the step, and the square of what vectors are drawn in by.
  EXPECT_THAT(made({"--target-mse", "0.02"})["archive"]["configuration"].get<std::string>(),
              HasSubstr("trellis:0.2729"));
}

TEST_F(Archive, WithAProfileHasTheSameBitsInOtherSteps) {
  const json result = made({"--bits", "4", "--profile", kProfile});
  EXPECT_LE(bits_of(result), 4 * 1.003);
  EXPECT_GT(bits_of(result), 4 * 0.97);
  EXPECT_THAT(result["archive"]["configuration"].get<std::string>(),
              AllOf(HasSubstr("k.weights="), HasSubstr("v.weights=")));
  EXPECT_GT(result["archive"]["expected_kld"], 0);
}

TEST_F(Archive, TellsTheDivergenceToExpect) {
  const Output output = must(archive({"--target-kld", "0.05", "--profile", kProfile}));
  EXPECT_THAT(output.err, HasSubstr("expected mean KL divergence: 0.05 nats"));
}

TEST_F(Archive, OfAnotherModelThanTheProfileIsRefused) {
  const std::string other = (dir_ / "other.kv").string();
  must({"prefill", "-m", kOtherModel, "--file", kBook, "--max-tokens", "300", "-o", other});
  expect_refusal({"convert", other, output_, "--config", "archive", "--profile", kProfile}, 22,
                 "the profile belongs to another model");
  EXPECT_FALSE(is_written());
}

TEST_F(Archive, RefusesFlagsThatDoNotGoTogether) {
  expect_refusal(archive({"--bits", "3", "--target-mse", "0.1"}), 2, "exclude each other");
  expect_refusal(archive({"--bits", "3", "--target-kld", "0.1", "--profile", kProfile}), 2,
                 "exclude each other");
  expect_refusal(archive({"--target-kld", "0.1"}), 2, "needs a --profile");
  expect_refusal({"convert", dense_, output_, "--config", "archive,k=mse:4"}, 2,
                 "--config archive takes sink= and center= alone");
  expect_refusal(archive({"--compress", "none"}), 2, "--compress none");
  expect_refusal(archive({"--bits", "0.5"}), 2, "");
  expect_refusal(archive({"--target-mse", "0.9"}), 2, "not between 0.0001 and 0.5");
  expect_refusal(archive({"--target-kld", "90", "--profile", kProfile}), 2, "the profile knows");
  expect_refusal({"convert", dense_, output_, "--profile", kProfile}, 2, "without factors of keys");
  expect_refusal({"convert", dense_, output_, "--target-mse", "0.1"}, 2, "needs --config archive");
  expect_refusal({"convert", dense_, output_, "--target-kld", "0.1", "--profile", kProfile}, 2,
                 "needs --config archive");
  EXPECT_FALSE(is_written());
}

TEST_F(Archive, RefusesWhatIsNoProfile) {
  expect_refusal(archive({"--profile", kBook}), 20, "alice-excerpt.txt: not a profile");
  expect_refusal(archive({"--profile", (dir_ / "none").string()}), 10, "none");
  const std::string cut = (dir_ / "cut").string();
  const Bytes whole = read_all(kProfile);
  std::ofstream(cut).write(reinterpret_cast<const char*>(whole.data()),
                           static_cast<std::streamsize>(whole.size() - 1));
  expect_refusal(archive({"--profile", cut}), 20, "SHA-256");
}

// A profile of a window, a file made with it, and the file's configuration measured on that window.
TEST_F(Archive, HasTheDivergenceThatWasAskedFor) {
  const std::string sample = (dir_ / "sample.txt").string();
  const std::string profile = (dir_ / "model.tqprofile").string();
  std::ofstream(sample) << book_text(1200);
  must({"profile", "-m", kModel, "--file", sample, "--window", "256", "-o", profile});
  const json result = made({"--target-kld", "0.05", "--profile", profile});
  EXPECT_NEAR(result["archive"]["expected_kld"], 0.05, 1e-4);
  const json costs = json::parse(
      must({"eval", "kld", "-m", kModel, "--file", sample, "--window", "256", "--windows", "1",
            "--configs", result["archive"]["configuration"], "--json"})
          .out);
  EXPECT_NEAR(costs["configurations"][0]["kld"]["mean"], 0.05, 0.15 * 0.05);
}

TEST(Profile, IsRefusedBeforeAnythingIsMeasured) {
  expect_refusal({"profile", "-m", kModel, "--file", kBook, "-o", kProfile}, 2, "exists");
  expect_refusal({"profile", "-m", kModel, "--file", kBook, "-o", "-"}, 2, "standard output");
  const TempDir dir;
  expect_refusal(
      {"profile", "-m", kModel, "--file", kBook, "--window", "8000", "-o", (dir / "a").string()}, 2,
      "the text has");
}

// A profile of version 2, an archive made with it, and what reads it.
// --- factors of keys, for tier turbo

TEST_F(Archive, NeedsMoreThanFactorsOfKeysAndTurboDoesNot) {
  const std::string profile = (dir_ / "quick.tqprofile").string();
  const std::string again = (dir_ / "from.tqprofile").string();
  must({"profile", "-m", kModel, "--file", kBook, "--quick", "--window", "512", "--max-windows",
        "1", "-o", profile});
  const Output from = must({"profile", "--from", dense_, "-o", again, "--json"});
  EXPECT_EQ(json::parse(from.out)["key_factors"].size(), 8u);
  expect_refusal(archive({"--profile", profile}), 2, "archives need one that tqcache profile made");
  const std::string plain = pack(dense_);
  for (const std::string& each : {profile, again}) {
    const Output converted = must({"convert", dense_, output_, "-f", "--profile", each});
    EXPECT_THAT(converted.err, HasSubstr("factors of keys from " + each));
    const json info = info_of(output_);
    EXPECT_EQ(info["layers"][0]["k"]["centring"], "pre_rope.v2");
    EXPECT_EQ(info["layers"][0]["v"]["centring"], "post_rope.v1");
    EXPECT_EQ(info["key_factors_sha256"].get<std::string>().size(), 64u);
    EXPECT_FALSE(info_of(plain).contains("key_factors_sha256"));
    must({"verify", output_});
    EXPECT_NE(read_all(output_), read_all(plain));
    // The same by a configuration, and by a folder that also holds what does not fit.
    const std::string other = (dir_ / "other.tqkv").string();
    must({"convert", dense_, other, "-f", "--config", "turbo4,sink=4,profile=" + each});
    EXPECT_EQ(read_all(other), read_all(output_));
    EXPECT_EQ(generate({"--cache", other, "--prompt", " The", "--max-new-tokens", "4"})["text"],
              generate({"--cache", dense_, "--prompt", " The", "--max-new-tokens", "4"})["text"]);
  }
  const std::string folder = (dir_ / "profiles").string();
  std::filesystem::create_directory(folder);
  std::ofstream(folder + "/a.tqprofile") << "no profile";
  const Output none = must({"convert", dense_, output_, "-f", "--profile", folder});
  EXPECT_THAT(none.err, HasSubstr("none is used"));
  EXPECT_EQ(read_all(output_), read_all(plain));
  std::filesystem::copy(profile, folder + "/b.tqprofile");
  EXPECT_THAT(must({"convert", dense_, output_, "-f", "--profile", folder}).err,
              HasSubstr("factors of keys from " + folder + "/b.tqprofile"));
  EXPECT_EQ(info_of(output_)["layers"][0]["k"]["centring"], "pre_rope.v2");
  // A damaged one may be the one that is wanted.
  Bytes damaged = read_all(profile);
  damaged[damaged.size() / 2] ^= std::byte{1};
  write_all(folder + "/c", damaged);
  expect_refusal({"convert", dense_, output_, "-f", "--profile", folder}, 20, "c: its SHA-256");
  expect_refusal({"convert", dense_, output_, "-f", "--profile", kProfile}, 2,
                 "without factors of keys");
  expect_refusal({"convert", dense_, output_, "-f", "--config", "lossless", "--profile", profile},
                 2, "does not go with --config lossless");
  expect_refusal({"profile", "--from", plain, "-o", again, "-f"}, 2, "a dense cache is wanted");
  expect_refusal({"profile", "-o", again, "-f"}, 2, "or --from with caches");
}

TEST_F(Archive, IsPredictedWithAProfileOfVersion2) {
  const auto folder = dir_ / "profiles";
  std::filesystem::create_directory(folder);
  const std::string profile = (folder / "model.tqprofile").string();
  const json calibrated =
      json::parse(must({"profile", "-m", kModel, "--file", kBook, "--depth", "1", "--features", "8",
                        "--tokens", "512", "--window", "512", "-o", profile, "--json"})
                      .out);
  EXPECT_EQ(calibrated["version"], 2);
  EXPECT_GT(calibrated["layers"][3]["value_explained"], 0.8);

  // The same profile serves codes in memory, alone and out of a folder.
  EXPECT_EQ(calibrated["key_factors"].size(), 8u);
  for (const std::string& each : {profile, folder.string()}) {
    const Output converted = must({"convert", dense_, output_, "-f", "--profile", each});
    EXPECT_THAT(converted.err, HasSubstr("factors of keys from " + profile));
    EXPECT_EQ(info_of(output_)["layers"][0]["k"]["centring"], "pre_rope.v2");
  }

  const json result = made({"--bits", "2.2", "--profile", profile});
  EXPECT_LE(bits_of(result), 2.2 * 1.01);
  EXPECT_GT(bits_of(result), 2.2 * 0.9);
  EXPECT_EQ(result["archive"]["profile"], calibrated["digest"]);
  const json info = json::parse(must({"info", output_, "--json"}).out);
  EXPECT_EQ(info["prediction"]["profile"], calibrated["digest"]);

  expect_refusal({"verify", output_}, 21, calibrated["digest"]);
  ::setenv("TQCACHE_PROFILES", folder.c_str(), 1);
  must({"verify", output_, "-m", kModel});
  const json diff = json::parse(must({"diff", dense_, output_, "--json"}).out);
  EXPECT_LT(diff["k"]["relative_mse"], 0.1);
  ::unsetenv("TQCACHE_PROFILES");

  const auto report = json::parse(
      must({"eval", "kld", "-m", kModel, "--file", kBook, "--window", "512", "--max-windows", "1",
            "--profile", profile, "--configs", "turbo4;predicted:0.05", "--json"})
          .out);
  EXPECT_GT(report["configurations"][1]["kld"]["mean"], 0);
  EXPECT_LT(report["configurations"][1]["bits_per_value"], 4);

  // A divergence to aim at, by what the profile measured.
  ASSERT_GE(calibrated["curve"].size(), 3u);
  const double wanted = calibrated["curve"][1]["kld_mean"];
  const json aimed = made({"--target-kld", std::to_string(wanted), "--profile", profile});
  EXPECT_NEAR(aimed["archive"]["expected_kld"], wanted, wanted / 100);
  ::setenv("TQCACHE_PROFILES", folder.c_str(), 1);
  const json known = json::parse(must({"info", output_, "--json"}).out)["prediction"];
  EXPECT_NEAR(known["expected_kld"], wanted, wanted / 100);
  EXPECT_NEAR(known["step"], calibrated["curve"][1]["step"], wanted / 10);
  ::unsetenv("TQCACHE_PROFILES");
  EXPECT_EQ(info["prediction"]["expected_kld"], nullptr);
  expect_refusal(archive({"--target-kld", "5", "--profile", profile, "-f"}), 2,
                 "divergence of 5 nats");
  expect_refusal(archive({"--target-kld", "0.1", "--bits", "2", "--profile", profile}), 2,
                 "--bits, --target-mse and --target-kld exclude each other");
  expect_refusal(archive({"--target-mse", "0.1", "--profile", profile}), 2, "no --target-mse");

  // Of a folder the profile with the least divergence at these bits, here the one that predicts.
  must({"profile", "-m", kModel, "--file", kBook, "--depth", "0", "--features", "0", "--tokens",
        "512", "--window", "512", "-o", (folder / "a.tqprofile").string()});
  const json chosen = made({"--bits", "2.2", "--profile", folder.string()});
  EXPECT_EQ(chosen["archive"]["profile"], calibrated["digest"]);
  const json fewest = made({"--target-kld", std::to_string(wanted), "--profile", folder.string()});
  EXPECT_EQ(fewest["archive"]["profile"], calibrated["digest"]);
  EXPECT_EQ(bits_of(fewest), bits_of(aimed));

  const std::string other = (dir_ / "other.tqprofile").string();
  std::string bytes;
  {
    std::ifstream in(profile, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(other, std::ios::binary) << bytes;
  expect_refusal(archive({"--profile", other}), 20, "SHA-256");
  bytes[16] = '4';
  std::ofstream(other, std::ios::binary) << bytes;
  expect_refusal(archive({"--profile", other}), 21, "version");
}

// A store holds no profiles: what it takes and gives back are the decoded values.
TEST(PredictedArchive, IsStoredAsItsDecodedValues) {
  const TempDir dir;
  const auto folder = dir / "profiles";
  std::filesystem::create_directory(folder);
  const std::string profile = (folder / "small.tqprofile").string();
  must(write_file_atomically(profile, predict::profile_bytes(small_profile()), Overwrite::kRefuse));
  const std::string dense = (dir / "dense.kv").string(), archive = (dir / "a.tqkv").string();
  const std::string back = (dir / "back.kv").string(), url = "dir:" + (dir / "store").string();
  must(format::write_cache_file(predicted_model_cache(600), dense, {}));
  must({"convert", dense, archive, "--config", "archive", "--bits", "3", "--profile", profile});
  expect_refusal({"store", "put", archive, "--store", url}, 21, "TQCACHE_PROFILES");

  ::setenv("TQCACHE_PROFILES", folder.c_str(), 1);
  const Output output = must({"store", "put", archive, "--store", url, "--json"});
  ::unsetenv("TQCACHE_PROFILES");
  EXPECT_THAT(output.err, HasSubstr("its values were stored as decoded"));
  const json told = json::parse(output.out);
  EXPECT_EQ(told["was_predicted"], true);
  EXPECT_GT(told["bytes"], 2 * std::filesystem::file_size(archive));
  must({"store", "get", "a", "--store", url, "-o", back});
  const json info = json::parse(must({"info", back, "--json"}).out);
  EXPECT_FALSE(info.contains("prediction"));
  EXPECT_EQ(info["content_name"],
            json::parse(must({"info", archive, "--json"}).out)["content_name"]);

  const Output of_dense =
      must({"store", "put", dense, "--store", "dir:" + (dir / "other").string(), "--json"});
  EXPECT_EQ(json::parse(of_dense.out)["was_predicted"], false);
  EXPECT_EQ(of_dense.err.find("decoded"), std::string::npos);
}

// Caches that a profile cannot predict become archives as they are without one, and convert says
// so.
TEST(PredictedArchive, FallsBackToAnArchiveWithoutPrediction) {
  const TempDir dir;
  const std::string profile = (dir / "small.tqprofile").string();
  must(write_file_atomically(profile, predict::profile_bytes(small_profile()), Overwrite::kRefuse));
  const std::string dense = (dir / "dense.kv").string(), output = (dir / "a.tqkv").string();
  const auto convert = [&](const cache::Cache& cache, const std::string& with) {
    must(format::write_cache_file(cache, dense, {.overwrite = Overwrite::kAllow}));
    const Output made = must({"convert", dense, output, "--config", "archive", "--bits", "3",
                              "--profile", with, "--json", "-f"});
    EXPECT_FALSE(json::parse(made.out)["archive"].contains("profile"));
    must({"verify", output});
    return made.err;
  };
  constexpr const char* kSaid = "an archive without prediction is made";

  EXPECT_THAT(convert(predicted_model_cache(3), profile),
              AllOf(HasSubstr("the cache has 3 tokens"), HasSubstr(kSaid)));
  EXPECT_THAT(convert(predicted_model_cache(255), profile), HasSubstr(kSaid));

  // Windows and recurrent state.
  cache::Cache mixed =
      CacheBuilder(600).dense({2, 32}).turbo_rotating({{2, 32}, 300, 0}, 8, 8).arrays().build();
  make_dense(std::get<cache::WindowLayer>(mixed.layers[1]), 600);
  for (cache::NamedArray& array : std::get<cache::StateLayer>(mixed.layers[2]).arrays) {
    std::ranges::fill(array.data, std::byte{0});
  }
  mixed.identity = predicted_identity();
  EXPECT_THAT(convert(mixed, profile),
              AllOf(HasSubstr("layers without full attention"), HasSubstr(kSaid)));

  // Hidden tokens.
  cache::Cache hidden = predicted_model_cache(300);
  cache::hide_tokens(hidden);
  EXPECT_THAT(convert(hidden, profile),
              AllOf(HasSubstr("the token ids are hidden"), HasSubstr(kSaid)));

  // A model without a profile: a folder may lack it, a profile that is named has to fit.
  cache::Cache other = predicted_model_cache(300);
  other.identity.weights_fingerprint.fill(std::byte{3});
  EXPECT_THAT(convert(other, dir.path().string()),
              AllOf(HasSubstr("no profile in the folder"), HasSubstr(kSaid)));
  expect_refusal({"convert", dense, output, "--config", "archive", "--profile", profile, "-f"}, 22,
                 "another model");

  // A divergence to aim at is known for predicted archives alone.
  const Output aimed = must({"convert", dense, output, "--config", "archive", "--target-kld", "0.1",
                             "--profile", dir.path().string(), "-f"});
  EXPECT_THAT(aimed.err, HasSubstr("is made with 3 bits per value"));
}

}  // namespace archive_test
}  // namespace tqcache::test
