// A file with other values than its content digest names, by every verb that makes something of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/demo.h"
#include "support/forged_file.h"
#include "tqcache/format/section_reader.h"

namespace tqcache::test {
namespace forged_test {

using testing::HasSubstr;
using Args = std::vector<std::string>;

class ForgedFile : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    files_ = new TempDir;
    honest_ = prefill_book(*files_, 300);
    forged_ = (*files_ / "forged.kv").string();
    const auto source = must(open_file(honest_));
    const auto reader = must(format::SectionReader::open(*source));
    write_all(forged_, forged_file(reader, {.compression = format::Compression::kNone}));
  }
  static void TearDownTestSuite() { delete files_; }

  std::string path(const std::string& name) const { return (dir_ / name).string(); }

  static void expect_refused(const Args& args) {
    const Output output = tqcache(args);
    EXPECT_EQ(output.exit_code, 20) << output.err;
    EXPECT_THAT(output.err, HasSubstr("SHA-256 of the content mismatch"));
  }

  static TempDir* files_;
  static std::string honest_, forged_;
  TempDir dir_;
};

TempDir* ForgedFile::files_ = nullptr;
std::string ForgedFile::honest_, ForgedFile::forged_;

TEST_F(ForgedFile, HasTheContentDigestOfTheTrueOne) {
  EXPECT_EQ(info_of(forged_)["content_name"], info_of(honest_)["content_name"]);
  expect_refused({"verify", forged_});
  expect_refused({"compact", forged_});
}

TEST_F(ForgedFile, IsNotConverted) {
  const std::string out = path("out");
  for (const Args& flags : {Args{"--bits", "4"}, Args{"--bits", "16"}, Args{"--config", "lossless"},
                            Args{"--config", "archive", "--target-mse", "0.01"},
                            Args{"--tokens", "256"}, Args{"--to", "mlx-lm"}, Args{"--to", "npz"}}) {
    Args args = {"convert", forged_, out};
    args.insert(args.end(), flags.begin(), flags.end());
    SCOPED_TRACE(flags[1]);
    expect_refused(args);
    EXPECT_EQ(dir_.entry_count(), 0u);
    args[1] = honest_;
    must(args);
    std::filesystem::remove(out);
  }
  expect_refused({"convert", forged_, "-"});
}

TEST_F(ForgedFile, IsNotCompared) {
  must({"diff", honest_, honest_});
  expect_refused({"diff", honest_, forged_});
  expect_refused({"eval", "cache", honest_, forged_});
}

TEST_F(ForgedFile, IsNotLoadedWithVerifyDigest) {
  for (const std::string verb : {"generate", "chat"}) {
    Args args = {verb, "-m", kModel, "--cache", forged_, "-p", "x", "-n", "1"};
    if (verb == "chat") args = {verb, "-m", kModel, "--cache", forged_};
    EXPECT_EQ(tqcache(args).exit_code, 0) << "a load alone compares checksums";
    args.push_back("--verify-digest");
    expect_refused(args);
    args.push_back("--map");
    expect_refused(args);
    args[4] = honest_;
    must(args);
  }
}

TEST_F(ForgedFile, IsNotAppendedTo) {
  const std::string file = path("grows.kv");
  std::filesystem::copy_file(forged_, file);
  expect_refused({"generate", "-m", kModel, "--cache", file, "-p", "x", "-n", "1", "--append"});
  EXPECT_EQ(read_all(file), read_all(forged_));
}

TEST_F(ForgedFile, IsNotPutIntoAStore) {
  const std::string store = "dir:" + path("store");
  const Args put = {"store", "put", forged_, "--store", store};
  for (const Args& name : {Args{"--no-name"}, Args{"--name", "book"}}) {
    Args args = put;
    args.insert(args.end(), name.begin(), name.end());
    expect_refused(args);
    // Nor where the store has the true blocks.
    args[2] = honest_;
    must(args);
    args[2] = forged_;
    expect_refused(args);
  }
}

}  // namespace forged_test
}  // namespace tqcache::test
