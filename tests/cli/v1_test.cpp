// Files of version 1: every verb reads them, with a warning, and none writes them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/v1_files.h"

namespace tqcache::test {
namespace v1_test {

namespace fs = std::filesystem;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

using Ids = std::vector<std::int32_t>;

std::string warning_of(const std::string& file) {
  return "tqcache: warning: " + file +
         ": version 1 (class_path) is deprecated and read only; tqcache migrate makes it version "
         "2\n";
}

class Version1 : public testing::Test {
 protected:
  TempDir dir_;
  std::string book_ = prefill_book(dir_, 300);  // of version 2
  std::string old_ = write_v1_twin(book_);
  std::string out_ = (dir_ / "out.tqkv").string();
};

TEST_F(Version1, CanBeResumedByGenerate) {
  const Output output =
      must({"generate", "-m", kModel, "--cache", old_, "-n", "6", "--json", "-q"});
  EXPECT_EQ(output.err, warning_of(old_));  // once, however quiet
  EXPECT_EQ(nlohmann::json::parse(output.out)["token_ids"].get<Ids>(),
            generate_ids({"--cache", book_, "-n", "6"}));
  EXPECT_EQ(generate_ids({"--cache", old_, "-n", "6", "--map"}),
            generate_ids({"--cache", book_, "-n", "6"}));
}

TEST_F(Version1, CanBeResumedByChat) {
  const std::string a = (dir_ / "a.kv").string();
  const std::string b = (dir_ / "b.kv").string();
  const std::string line = "Who is Alice?\n";
  const Output output =
      must({"chat", "-m", kModel, "-n", "4", "--cache", old_, "--save", a}, {.input = line});
  EXPECT_THAT(output.err, StartsWith(warning_of(old_)));
  must({"chat", "-m", kModel, "-n", "4", "--cache", book_, "--save", b}, {.input = line});
  EXPECT_EQ(tokens_of(a), tokens_of(b));
  EXPECT_EQ(info_of(a)["version"], 2);
}

TEST_F(Version1, IsConvertedAndCompared) {
  must({"convert", old_, out_});
  EXPECT_EQ(info_of(out_)["version"], 2);
  EXPECT_EQ(info_of(out_)["n_tokens"], 300);
  const Output output = must({"diff", old_, book_, "--json"});
  EXPECT_EQ(output.err, warning_of(old_));
  const nlohmann::json diff = nlohmann::json::parse(output.out);
  EXPECT_EQ(diff["k"]["max_abs"], 0);
  EXPECT_EQ(diff["v"]["max_abs"], 0);
  EXPECT_EQ(diff["n_tokens_checked"], 300);
}

TEST_F(Version1, GivesItsFirstTokens) {
  must({"convert", old_, out_, "--tokens", "260"});
  EXPECT_EQ(info_of(out_)["n_tokens"], 260);
  EXPECT_EQ(generate_ids({"--cache", old_, "-n", "4", "--tokens", "260"}),
            generate_ids({"--cache", book_, "-n", "4", "--tokens", "260"}));
}

TEST_F(Version1, ComesThroughAPipe) {
  const Bytes bytes = read_all(old_);
  const std::string input(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const Output output = must({"info", "-"}, {.input = input});
  EXPECT_EQ(output.err, warning_of("standard input"));
  EXPECT_THAT(output.out, HasSubstr("version 1"));
}

TEST_F(Version1, TellsItsClassesByLayer) {
  const Output text = must({"info", old_});
  EXPECT_EQ(text.err, warning_of(old_));
  EXPECT_THAT(text.out, ContainsRegex("\nformat +version 1, deprecated\n"));
  EXPECT_THAT(text.out, ContainsRegex("\nclass 0-7 +mlx_lm\\.models\\.cache\\.KVCache\n"));
  EXPECT_THAT(text.out, ContainsRegex("\nlayers 0-7 +attention, 2 kv heads of 128: k dense f16"));
  EXPECT_THAT(text.out, ContainsRegex("\ntokens +300\n"));
  EXPECT_THAT(text.out, Not(HasSubstr("version 2")));
  const nlohmann::json json = info_of(old_);
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["class_paths"],
            nlohmann::json(std::vector<std::string>(8, "mlx_lm.models.cache.KVCache")));
  EXPECT_EQ(json["n_tokens"], 300);
  EXPECT_EQ(json["bytes"]["file"], fs::file_size(old_));
  EXPECT_EQ(json["identity"]["weights_fingerprint"],
            info_of(book_)["identity"]["weights_fingerprint"]);
}

TEST_F(Version1, ShowsItsTokensOnlyWhenAsked) {
  const std::string ids = id_list(tokens_of(book_)).substr(0, 30);
  EXPECT_THAT(must({"info", old_}).out, Not(HasSubstr(ids)));
  EXPECT_THAT(must({"info", old_}).out, ContainsRegex("\nfacts +architecture, .*tokens"));
  EXPECT_THAT(must({"info", old_, "--json"}).out, Not(HasSubstr("token_ids")));
  EXPECT_TRUE(info_of(old_)["metadata"].back()["value"].is_null());
  EXPECT_EQ(tokens_of(old_), tokens_of(book_));
  EXPECT_EQ(text_of(old_), text_of(book_));
}

TEST_F(Version1, IsVerified) {
  const Output output = must({"verify", old_});
  EXPECT_THAT(output.out, HasSubstr(": whole, version 1, 8 layers and "));
  EXPECT_EQ(output.err, warning_of(old_));
  EXPECT_THAT(must({"verify", old_, "-m", kModel}).out, HasSubstr("by its last 16 tokens"));
  EXPECT_EQ(tqcache({"verify", old_, "-m", kOtherModel}).exit_code, 22);
  const nlohmann::json json = nlohmann::json::parse(must({"verify", old_, "--json"}).out);
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["bytes_checked"], fs::file_size(old_));
}

TEST_F(Version1, IsNeverWritten) {
  const Bytes before = read_all(old_);
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"generate", "-m", kModel, "--cache", old_, "-n", "1", "--append"},
        {"chat", "-m", kModel, "--cache", old_, "--save", old_},
        {"chat", "-m", kModel, "--cache", old_, "--save", old_, "-f"},
        {"compact", old_}}) {
    SCOPED_TRACE(testing::PrintToString(args));
    const Output output = tqcache(args, {.input = "Hi\n"});
    EXPECT_EQ(output.exit_code, 21);
    EXPECT_EQ(output.err, "tqcache: " + old_ +
                              ": version 1 is read only; tqcache migrate makes it version 2\n");
  }
  EXPECT_EQ(read_all(old_), before);
}

// By every verb that reads a cache file.
void expect_all_readers_refuse(const std::string& file, int exit_code) {
  const TempDir dir;
  const std::string out = (dir / "out.kv").string();
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"info", file},
        {"verify", file},
        {"diff", file, file},
        {"convert", file, out},
        {"migrate", file, "-o", dir.path().string()},
        {"chat", "-m", kModel, "--cache", file},
        {"generate", "-m", kModel, "-n", "1", "--cache", file}}) {
    SCOPED_TRACE(args.front());
    const Output output = tqcache(args);
    EXPECT_EQ(output.exit_code, exit_code) << output.err;
    EXPECT_THAT(output.err, HasSubstr("tqcache: " + file + ": "));
    EXPECT_EQ(output.out, "");
    EXPECT_EQ(dir.entry_count(), 0u);
  }
}

TEST(Version1Refused, WhenItIsDamaged) {
  const TempDir dir;
  const std::string file = write_v1_file(dir / "a.tqcache", small_v1());
  Bytes bytes = read_all(file);
  bytes[bytes.size() / 2] ^= std::byte{1};
  write_all(file, bytes);
  expect_all_readers_refuse(file, 20);
  bytes[bytes.size() / 2] ^= std::byte{1};
  bytes.pop_back();
  write_all(file, bytes);
  expect_all_readers_refuse(file, 20);
}

TEST(Version1Refused, WhenAClassIsNotKnown) {
  const TempDir dir;
  migrations::V1File file = small_v1();
  file.entries[1].class_path = "os.system";
  expect_all_readers_refuse(write_v1_file(dir / "a.tqcache", file), 21);
}

TEST(Version1Refused, ByModelsWhenItNamesNone) {
  const TempDir dir;
  const std::string file = write_v1_file(dir / "a.tqcache", small_v1());
  EXPECT_TRUE(info_of(file)["identity"].is_null());
  EXPECT_EQ(info_of(file)["token_hashes"], 0);
  EXPECT_THAT(must({"info", file}).out, HasSubstr("300, nobody knows which\n"));
  EXPECT_EQ(tqcache({"generate", "-m", kModel, "-n", "1", "--cache", file}).exit_code, 22);
  EXPECT_EQ(tqcache({"info", file, "--show-text"}).exit_code, 21);
}

}  // namespace v1_test
}  // namespace tqcache::test
