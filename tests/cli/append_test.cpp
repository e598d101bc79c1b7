// A cache file that grows in place, by `generate --append` and by a conversation that goes on in
// it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <set>

#include "cli/demo.h"

namespace tqcache::test {
namespace append_test {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;

using Ids = std::vector<std::int32_t>;

constexpr const char* kFact =
    "Hello! My name is Clara. I live in Lyon. I have a parrot called Max.\n";
constexpr const char* kQuestion = "What is the name of my parrot?\n";

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Ids ids_of(const std::string& cache, int n) {
  return generate_ids({"--cache", cache, "-n", std::to_string(n)});
}

Ids append(const std::string& cache, int n) {
  return generate_ids({"--cache", cache, "-n", std::to_string(n), "--append"});
}

std::uint64_t inode_of(const std::string& file) {
  struct stat status = {};
  if (::stat(file.c_str(), &status) != 0) throw std::runtime_error("cannot stat " + file);
  return status.st_ino;
}

class Append : public testing::TestWithParam<int> {
 protected:
  void expect_equal_to_one_run(const std::string& cache) const {
    const Ids one_run = ids_of(cache, 8);
    ASSERT_EQ(one_run.size(), 8u);
    const std::string saved = (dir_ / "saved.kv").string();
    generate({"--cache", cache, "-n", "4", "--save", saved});
    const Ids first = append(cache, 4);
    EXPECT_EQ(info_of(cache)["n_tokens"], GetParam() + 4);
    EXPECT_EQ(info_of(cache)["content_name"], info_of(saved)["content_name"]);
    must({"verify", cache, "-m", kModel});
    EXPECT_EQ(first + append(cache, 4), one_run);
    must({"verify", cache});
  }

  TempDir dir_;
};

TEST_P(Append, ToADenseFileEqualsOneRun) {
  expect_equal_to_one_run(prefill_book(dir_, GetParam()));
}

TEST_P(Append, ToATurboFileEqualsOneRun) {
  expect_equal_to_one_run(pack(prefill_book(dir_, GetParam())));
}

INSTANTIATE_TEST_SUITE_P(AtTokens, Append, testing::Values(1, 254, 255, 256, 257, 510),
                         testing::PrintToStringParamName());

TEST(AppendOnce, LeavesOldBlocksWhereTheyAre) {
  const TempDir dir;
  const std::string cache = pack(prefill_book(dir, 1600), {"--compress", "none"});
  const std::uint64_t inode = inode_of(cache);
  const auto size = fs::file_size(cache);
  const Bytes before = read_all(cache);
  const nlohmann::json json = generate({"--cache", cache, "-n", "4", "--append"})["append"];
  EXPECT_EQ(inode_of(cache), inode);
  const Bytes after = read_all(cache);
  // All that was there but the header: another process may have it mapped.
  EXPECT_TRUE(std::equal(before.begin() + 128, before.end(), after.begin() + 128));
  EXPECT_EQ(json["file"], cache);
  EXPECT_EQ(json["tokens_before"], 1600);
  EXPECT_EQ(json["tokens"], 1604);
  EXPECT_EQ(json["file_bytes"], fs::file_size(cache));
  EXPECT_EQ(json["dead_bytes"], info_of(cache)["bytes"]["dead"]);
  EXPECT_GT(json["dead_bytes"], 0);
  EXPECT_LE(json["bytes_written"], fs::file_size(cache) - size + 128);
  EXPECT_LT(json["bytes_written"], size / 2);  // the tail of 64 tokens, and the manifest
}

TEST(AppendOnce, CompressesAsTheFileDoes) {
  const TempDir dir;
  const auto methods = [](const std::string& file) {
    std::set<std::string> names;
    const nlohmann::json sections = info_of(file, {"--sections"})["sections"];
    for (const nlohmann::json& section : sections) {
      names.insert(section["compression"]);
    }
    return names;
  };
  const std::string stored = prefill_book(dir, 300);
  const std::string zstd = pack(stored);
  append(stored, 2);
  append(zstd, 2);
  EXPECT_EQ(methods(stored), std::set<std::string>{"none"});
  EXPECT_TRUE(methods(zstd).contains("zstd"));
  generate({"--cache", stored, "-n", "1", "--append", "--compress", "zstd"});
  EXPECT_TRUE(methods(stored).contains("zstd"));
}

TEST(AppendOnce, TellsWhatItAdded) {
  const TempDir dir;
  const std::string cache = prefill_book(dir, 20);
  const Output output = must({"generate", "-m", kModel, "--cache", cache, "-n", "3", "--append"});
  EXPECT_THAT(output.err, HasSubstr(cache + ": 20 -> 23 tokens, "));
  EXPECT_THAT(output.err, HasSubstr(" bytes added\n"));
}

TEST(AppendOnce, TakesThePromptWithTheAnswer) {
  const TempDir dir;
  const std::string prompt = parrot_prompt();
  const std::size_t question = prompt.rfind("<|im_start|>user\n");
  const std::string cache = (dir / "a.kv").string();
  must({"prefill", "-m", kModel, "-p", prompt.substr(0, question), "-o", cache});
  generate({"--cache", cache, "-p", prompt.substr(question), "-n", "40", "--append"});
  EXPECT_EQ(text_of(cache), prompt + kAnswer + "<|im_end|>");
}

TEST(AppendOnce, OfAMappedFileReadsItInstead) {
  const TempDir dir;
  const std::string cache = pack(prefill_book(dir, 300), {"--compress", "none"});
  const Ids ids = ids_of(cache, 4);
  const Output output =
      must({"generate", "-m", kModel, "--cache", cache, "-n", "4", "--append", "--map", "--json"});
  EXPECT_EQ(nlohmann::json::parse(output.out)["token_ids"].get<Ids>(), ids);
  EXPECT_THAT(output.err, HasSubstr("--map is ignored"));
}

TEST(AppendOnce, KeepsWhatAnInterruptedGenerationWrote) {
  const TempDir dir;
  const std::string cache = prefill_book(dir, 300);
  Conversation run({"generate", "-m", kModel, "--cache", cache, "-n", "9000", "--append"},
                   Conversation::At::kPipe);
  run.wait_for(" ");
  run.send_signal(SIGINT);
  EXPECT_EQ(run.finish(), 130);
  EXPECT_GT(info_of(cache)["n_tokens"], 300);
  must({"verify", cache, "-m", kModel});
  EXPECT_EQ(dir.entry_count(), 1u);
}

// The slot may have been the newer one, so that something is lost: here it is.
TEST(AppendOnce, OfWhichAHeaderSlotIsDamagedGivesTheStateBefore) {
  const TempDir dir;
  const std::string cache = prefill_book(dir, 20);
  const Ids ids = ids_of(cache, 4);
  append(cache, 3);
  Bytes bytes = read_all(cache);
  bytes[64 + 20] ^= std::byte{1};
  write_all(cache, bytes);
  const std::string warning = "tqcache: warning: " + cache + ": header slot 1: ";
  const Output output = must({"generate", "-m", kModel, "--cache", cache, "-n", "4", "--json"});
  EXPECT_EQ(nlohmann::json::parse(output.out)["token_ids"].get<Ids>(), ids);
  EXPECT_THAT(output.err, HasSubstr(warning));
  EXPECT_THAT(must({"info", cache}).err, HasSubstr(warning));
  const nlohmann::json now = info_of(cache);
  EXPECT_EQ(now["n_tokens"], 20);
  EXPECT_EQ(now["damage"].size(), 1u);
  EXPECT_GT(now["bytes"]["behind_the_end"], 0);
  EXPECT_EQ(tqcache({"verify", cache}).exit_code, 20);
  must({"compact", cache});
  must({"verify", cache, "-m", kModel});
}

TEST(AppendOnce, IsRefusedWhereItCannotBeMeant) {
  const TempDir dir;
  const std::string cache = prefill_book(dir, 20);
  const Bytes before = read_all(cache);
  const std::vector<std::vector<std::string>> lines = {
      {"-p", "Hi", "--append"},
      {"--cache", "-", "--append"},
      {"--cache", cache, "--append", "--save", (dir / "b.kv").string()},
      {"--cache", cache, "--append", "--tokens", "10"},
      {"--cache", cache, "--append", "--no-tokens"}};
  for (const std::vector<std::string>& line : lines) {
    SCOPED_TRACE(testing::PrintToString(line));
    std::vector<std::string> args = {"generate", "-m", kModel, "-n", "1"};
    args.insert(args.end(), line.begin(), line.end());
    const Output output = tqcache(args);
    EXPECT_EQ(output.exit_code, 2) << output.err;
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
  }
  EXPECT_EQ(read_all(cache), before);
  EXPECT_EQ(tqcache({"generate", "-m", kModel, "-n", "1", "--append", "--cache",
                     (dir / "none.kv").string()})
                .exit_code,
            10);
}

TEST(Growth, OfAConversationEqualsOneWholeConversation) {
  const TempDir dir;
  const std::string talk = (dir / "talk.kv").string();
  const std::string whole = (dir / "whole.kv").string();
  must({"chat", "-m", kModel, "--temperature", "0", "--save", whole},
       {.input = std::string(kFact) + kQuestion});
  must({"chat", "-m", kModel, "--temperature", "0", "--save", talk}, {.input = kFact});
  const std::uint64_t inode = inode_of(talk);
  const Output output =
      must({"chat", "-m", kModel, "--temperature", "0", "--cache", talk, "--save", talk},
           {.input = kQuestion});
  EXPECT_EQ(output.out, kAnswer + "\n");
  EXPECT_THAT(output.err, HasSubstr(" bytes added\n"));
  EXPECT_EQ(inode_of(talk), inode);
  EXPECT_EQ(text_of(talk), text_of(whole));
  EXPECT_EQ(info_of(talk)["generation"], 2);
  must({"verify", talk, "-m", kModel});
}

TEST(Growth, GoesOnAfterEverySave) {
  const TempDir dir;
  const std::string talk = (dir / "talk.kv").string();
  must({"chat", "-m", kModel, "--save", talk}, {.input = kFact});
  // By another name of the same file, too.
  const std::string same = (dir.path() / "." / "talk.kv").string();
  const Output output = must({"chat", "-m", kModel, "-n", "4", "--cache", talk, "--save", same},
                             {.input = "Hi\n/save\nHi\n/save " + talk + "\n/save\n"});
  EXPECT_THAT(output.err, HasSubstr("no new ones"));
  EXPECT_EQ(info_of(talk)["generation"], 3);
  must({"verify", talk, "-m", kModel});
  EXPECT_EQ(dir.entry_count(), 1u);
}

TEST(Growth, ComesWithSaveAndTheNameOfTheCache) {
  const TempDir dir;
  const std::string talk = (dir / "talk.kv").string();
  must({"chat", "-m", kModel, "--temperature", "0", "--save", talk}, {.input = kFact});
  must({"chat", "-m", kModel, "--temperature", "0", "--cache", talk},
       {.input = std::string(kQuestion) + "/save " + talk});
  EXPECT_EQ(info_of(talk)["generation"], 2);
  EXPECT_THAT(text_of(talk), HasSubstr(kAnswer));
}

TEST(Growth, ShutsOutASecondWriterAndNoReader) {
  const TempDir dir;
  const std::string talk = prefill_book(dir, 300);
  const std::string other = prefill_book(dir, 20);
  Conversation chat({"chat", "-m", kModel, "-n", "4", "--cache", talk, "--save", talk},
                    Conversation::At::kPipe);
  chat.type("Hi\n");
  chat.wait_for("\n");  // it has answered, so it holds the file
  const Bytes before = read_all(talk);
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"generate", "-m", kModel, "--cache", talk, "-n", "1", "--append"},
        {"generate", "-m", kModel, "--cache", other, "-n", "1", "--save", talk, "-f"},
        {"chat", "-m", kModel, "--cache", talk, "--save", talk},
        {"convert", other, talk, "-f"},
        {"compact", talk}}) {
    SCOPED_TRACE(args.front());
    const Output output = tqcache(args);
    EXPECT_EQ(output.exit_code, 11) << output.err;
    EXPECT_THAT(output.err, StartsWith("tqcache: " + talk + ": "));
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
  }
  EXPECT_EQ(read_all(talk), before);
  must({"verify", talk, "-m", kModel});
  must({"generate", "-m", kModel, "--cache", talk, "-n", "1"});
  EXPECT_EQ(nlohmann::json::parse([&] {
              const std::string err = tqcache({"compact", talk, "--json"}).err;
              return err.substr(err.find('\n') + 1);
            }())["error"]["code"],
            "busy");

  chat.type("/save\n");
  chat.wait_for(" bytes added");
  chat.send_signal(SIGTERM);
  EXPECT_EQ(chat.finish(), 130);
  append(talk, 1);  // the lock went with the process
  must({"verify", talk, "-m", kModel});
}

TEST(Growth, SavesAfterCtrlC) {
  const TempDir dir;
  const std::string talk = prefill_book(dir, 30);
  Conversation chat({"chat", "-m", kModel, "-n", "4", "--cache", talk, "--save", talk},
                    Conversation::At::kPipe);
  chat.type(kFact);
  chat.wait_for("\n");
  chat.send_signal(SIGINT);
  EXPECT_EQ(chat.finish(), 130);
  EXPECT_THAT(text_of(talk), HasSubstr("Clara"));
}

TEST(Compact, DropsWhatLaterSavesLeftDead) {
  const TempDir dir;
  const std::string cache = pack(prefill_book(dir, 300));
  for (int i = 0; i < 3; ++i) append(cache, 2);
  const nlohmann::json grown = info_of(cache);
  ASSERT_GT(grown["bytes"]["dead"], 0);
  EXPECT_EQ(grown["generation"], 4);
  const auto size = fs::file_size(cache);
  const Ids ids = ids_of(cache, 4);

  const Output output = must({"compact", cache, "--json"});
  const nlohmann::json report = nlohmann::json::parse(output.out)["files"][0];
  EXPECT_EQ(report["file"], cache);
  EXPECT_EQ(report["status"], "compacted");
  EXPECT_EQ(report["bytes_before"], size);
  EXPECT_EQ(report["bytes_after"], fs::file_size(cache));
  EXPECT_TRUE(report["error"].is_null());
  EXPECT_LT(fs::file_size(cache), size);

  const nlohmann::json compacted = info_of(cache);
  EXPECT_EQ(compacted["bytes"]["dead"], 0);
  EXPECT_EQ(compacted["content_name"], grown["content_name"]);
  must({"verify", cache, "-m", kModel});
  EXPECT_EQ(ids_of(cache, 4), ids);
  EXPECT_EQ(dir.entry_count(), 2u);
}

TEST(Compact, LeavesAFileAloneThatHasNothingDead) {
  const TempDir dir;
  const std::string cache = prefill_book(dir, 20);
  const Bytes before = read_all(cache);
  EXPECT_EQ(must({"compact", cache}).err, cache + ": no dead space\n");
  EXPECT_EQ(read_all(cache), before);
}

TEST(Compact, GoesOnAfterABadFile) {
  const TempDir dir;
  const std::string cache = prefill_book(dir, 20);
  append(cache, 2);
  const std::string missing = (dir / "none.kv").string();
  write_all(dir / "text", "no cache");
  const std::string text = (dir / "text").string();
  const Output some = tqcache({"compact", missing, cache, text, "--json"});
  EXPECT_EQ(some.exit_code, 3);
  const nlohmann::json files = nlohmann::json::parse(some.out)["files"];
  EXPECT_EQ(files[0]["error"]["code"], "not_found");
  EXPECT_EQ(files[1]["status"], "compacted");
  EXPECT_EQ(files[2]["error"]["exit_code"], 20);
  EXPECT_EQ(info_of(cache)["bytes"]["dead"], 0);
  EXPECT_EQ(tqcache({"compact", missing, text}).exit_code, 10);
  EXPECT_EQ(tqcache({"compact", text, missing}).exit_code, 20);
}

}  // namespace append_test
}  // namespace tqcache::test
