// `generate`, `chat` and `prefill` with --store.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "cli/demo.h"

namespace tqcache::test {
namespace prompt_store_test {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// A variable of the environment, for as long as this lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

std::size_t count(const std::string& text, const std::string& word) {
  std::size_t n = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

// Tokens of a text that nobody would write.
std::vector<std::int32_t> some_ids() {
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 1000; ++i) ids.push_back(400 + (i * i * 31 + i * 7) % 3000);
  return ids;
}

class PromptStore : public testing::Test {
 protected:
  // The first of them, as --ids takes them.
  std::string first_ids(std::size_t n_tokens) const {
    return id_list({ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(n_tokens)});
  }
  // The same; of these the last `n_other` are others.
  std::string other_ids(std::size_t n_tokens, std::size_t n_other) const {
    std::vector<std::int32_t> ids(ids_.begin(),
                                  ids_.begin() + static_cast<std::ptrdiff_t>(n_tokens));
    std::fill(ids.end() - static_cast<std::ptrdiff_t>(n_other), ids.end(), 300);
    return id_list(ids);
  }
  nlohmann::json from_store(const std::string& ids, std::vector<std::string> flags = {}) const {
    flags.insert(flags.begin(), {"--store", store_, "--ids", ids, "-n", "8"});
    return generate(flags);
  }
  // Blobs of the folder whose keys begin so.
  std::vector<std::filesystem::path> blobs(const std::string& prefix) const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ / "store")) {
      if (entry.path().filename().string().starts_with(prefix)) found.push_back(entry.path());
    }
    return found;
  }

  TempDir dir_;
  std::string store_ = "dir:" + (dir_ / "store").string();
  std::vector<std::int32_t> ids_ = some_ids();
};

TEST_F(PromptStore, IsReadInThePlaceOfThePrompt) {
  const auto alone = generate({"--ids", first_ids(700), "-n", "8"});
  EXPECT_FALSE(alone.contains("store"));
  const auto first = from_store(first_ids(700));
  EXPECT_EQ(first["store"]["url"], store_);
  EXPECT_EQ(first["store"]["reused_tokens"], 0);
  EXPECT_EQ(first["store"]["stored_blocks"], 2);
  EXPECT_EQ(first["prompt_tokens"], 700);
  EXPECT_EQ(first["token_ids"], alone["token_ids"]);
  const auto second = from_store(first_ids(700));
  EXPECT_EQ(second["store"]["reused_tokens"], 512);
  EXPECT_GT(second["store"]["read_bytes"], 512 * 1024);
  EXPECT_EQ(second["store"]["stored_blocks"], 0);
  EXPECT_TRUE(second["store"]["trouble"].is_null());
  EXPECT_EQ(second["cached_tokens"], 512);
  EXPECT_EQ(second["prompt_tokens"], 188);
  EXPECT_EQ(second["token_ids"], alone["token_ids"]);
}

TEST_F(PromptStore, GivesTheSameFileAsNone) {
  const auto bytes_of = [&](const std::string& ids, const std::vector<std::string>& flags) {
    const std::string path = (dir_ / "saved.tqkv").string();
    std::vector<std::string> all = {"--ids", ids, "-n", "8", "--save", path, "-f"};
    all.insert(all.end(), flags.begin(), flags.end());
    generate(all);
    return read_all(path);
  };
  from_store(first_ids(700));
  from_store(first_ids(700), {"--bits", "4"});
  const std::string ids = other_ids(700, 1);
  EXPECT_EQ(bytes_of(ids, {"--store", store_, "--config", "f32"}), bytes_of(ids, {}));
  EXPECT_EQ(bytes_of(ids, {"--store", store_, "--bits", "4"}), bytes_of(ids, {"--bits", "4"}));
}

TEST_F(PromptStore, SaysHowMuchWasReused) {
  const std::vector<std::string> args = {"generate", "-m",           kModel, "--store", store_,
                                         "--ids",    first_ids(700), "-n",   "2"};
  const Output first = must(args);
  EXPECT_THAT(first.err, HasSubstr("0 of 700 tokens of the prompt from the store\n"));
  EXPECT_THAT(first.err, HasSubstr("2 new token blocks in the store"));
  const Output second = must(args);
  EXPECT_THAT(second.err, HasSubstr("512 of 700 tokens of the prompt from the store (f16)\n"));
  EXPECT_THAT(second.err, HasSubstr("512 tokens from the store, 188 tokens of prompt"));
  EXPECT_EQ(second.out, first.out);
}

TEST_F(PromptStore, GoesOnInTheFormThatIsThere) {
  from_store(first_ids(700), {"--config", "k=mse:4,v=mse:3"});
  const std::string saved = (dir_ / "saved.tqkv").string();
  const auto json = from_store(first_ids(800), {"--save", saved});
  EXPECT_EQ(json["store"]["reused_tokens"], 512);
  EXPECT_EQ(info_of(saved)["layers"][0]["k"]["cache_type_id"], "tqcache.turbo_mse.v1");
  // Another form is wanted: nothing of it is there.
  EXPECT_EQ(from_store(first_ids(700), {"--config", "f32"})["store"]["reused_tokens"], 0);
  EXPECT_EQ(from_store(first_ids(700), {"--bits", "4"})["store"]["reused_tokens"], 0);
}

TEST_F(PromptStore, GetsAnswersToo) {
  const auto json = generate({"--store", store_, "--ids", first_ids(500), "-n", "100"});
  EXPECT_GE(json["store"]["stored_blocks"], 1);
  const auto ids = json["token_ids"].get<std::vector<std::int32_t>>();
  std::vector<std::int32_t> all(ids_.begin(), ids_.begin() + 500);
  all.insert(all.end(), ids.begin(), ids.end());
  all.push_back(300);
  if (all.size() > 513) {
    EXPECT_EQ(from_store(id_list(all))["store"]["reused_tokens"], 512);
  }
}

TEST_F(PromptStore, IsNamedByAVariableToo) {
  const Variable store("TQCACHE_STORE", store_);
  const std::vector<std::string> flags = {"--ids", first_ids(600), "-n", "2"};
  EXPECT_EQ(generate(flags)["store"]["reused_tokens"], 0);
  EXPECT_EQ(generate(flags)["store"]["reused_tokens"], 512);
  std::vector<std::string> none = flags;
  none.push_back("--no-store");
  EXPECT_FALSE(generate(none).contains("store"));
  // Where it cannot be of use it is passed over.
  const std::string cache = prefill_book(dir_, 300);
  EXPECT_FALSE(generate({"--cache", cache, "-n", "2"}).contains("store"));
}

TEST_F(PromptStore, CanBeReadOnly) {
  from_store(first_ids(600));
  const auto n_before = blobs("").size();
  const auto json = from_store(first_ids(900), {"--store-read-only"});
  EXPECT_EQ(json["store"]["reused_tokens"], 512);
  EXPECT_EQ(json["store"]["stored_blocks"], 0);
  EXPECT_EQ(blobs("").size(), n_before);
  // Of one that is not there none is made.
  const auto none = generate({"--store", "dir:" + (dir_ / "none").string(), "--store-read-only",
                              "--ids", first_ids(300), "-n", "2"});
  EXPECT_FALSE(none.contains("store"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "none"));
}

TEST_F(PromptStore, TellsTenantsApart) {
  const std::string one = (dir_ / "one.salt").string();
  const std::string two = (dir_ / "two.salt").string();
  write_all(one, "the first\n");
  write_all(two, "the second\n");
  from_store(first_ids(600), {"--salt-file", one});
  EXPECT_EQ(from_store(first_ids(600), {"--salt-file", two})["store"]["reused_tokens"], 0);
  EXPECT_EQ(from_store(first_ids(600))["store"]["reused_tokens"], 0);
  EXPECT_EQ(from_store(first_ids(600), {"--salt-file", one})["store"]["reused_tokens"], 512);
  const Variable salt("TQCACHE_STORE_SALT", "the first");
  EXPECT_EQ(from_store(first_ids(600))["store"]["reused_tokens"], 512);
}

TEST_F(PromptStore, KeepsTheWholeUnderAName) {
  const std::vector<std::string> named = {"--store", store_, "--ids",        first_ids(300),
                                          "-n",      "8",    "--store-name", "talk"};
  generate(named);
  EXPECT_EQ(blobs("n,").size(), 1u);
  std::vector<std::string> args = {"generate", "-m", kModel};
  args.insert(args.end(), named.begin(), named.end());
  const Output refused = tqcache(args);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("has the name talk"));
  args.push_back("-f");
  EXPECT_THAT(must(args).err, HasSubstr("saved in the store as talk"));
}

TEST_F(PromptStore, NotesItsUse) {
  from_store(first_ids(300));
  from_store(first_ids(300));
  EXPECT_EQ(blobs("u,").size(), 2u);
}

TEST_F(PromptStore, MayLackABlock) {
  const auto alone = from_store(first_ids(600));
  for (const auto& path : blobs("b,000001")) std::filesystem::remove(path);
  const auto json = from_store(first_ids(600));
  EXPECT_EQ(json["store"]["reused_tokens"], 256);
  EXPECT_EQ(json["token_ids"], alone["token_ids"]);
  EXPECT_EQ(from_store(first_ids(600))["store"]["reused_tokens"], 512);
}

TEST_F(PromptStore, MayBeDamaged) {
  const auto alone = from_store(first_ids(600));
  const auto damaged = blobs("b,000001");
  for (const auto& path : damaged) {
    Bytes bytes = read_all(path);
    bytes[bytes.size() / 2] ^= std::byte{1};
    write_all(path, bytes);
  }
  const Output output = must(
      {"generate", "-m", kModel, "--json", "--store", store_, "--ids", first_ids(600), "-n", "8"});
  const auto json = nlohmann::json::parse(output.out);
  EXPECT_EQ(json["store"]["reused_tokens"], 256);
  EXPECT_EQ(json["token_ids"], alone["token_ids"]);
  EXPECT_TRUE(json["store"]["trouble"].is_string());
  EXPECT_EQ(count(output.err, "warning"), 1u);
  // What was bad is made anew.
  EXPECT_EQ(from_store(first_ids(600))["store"]["reused_tokens"], 512);
}

TEST_F(PromptStore, ThatIsReadOnlyKeepsItsDamage) {
  from_store(first_ids(600));
  const auto damaged = blobs("b,000001").at(0);
  write_all(damaged, "damage");
  const auto json = from_store(first_ids(600), {"--store-read-only"});
  EXPECT_EQ(json["store"]["reused_tokens"], 256);
  EXPECT_TRUE(json["store"]["trouble"].is_string());
  EXPECT_EQ(read_all(damaged).size(), 6u);
}

TEST_F(PromptStore, MayBeGone) {
  const auto alone = generate({"--ids", first_ids(600), "-n", "8"});
  const std::string file = (dir_ / "file").string();
  write_all(file, "no folder");
  for (const std::string& url : {std::string("redis://127.0.0.1:1"), "dir:" + file + "/store"}) {
    const Output output = tqcache(
        {"generate", "-m", kModel, "--json", "--store", url, "--ids", first_ids(600), "-n", "8"});
    if (output.err.find("not built in") != std::string::npos) continue;
    ASSERT_EQ(output.exit_code, 0) << output.err;
    EXPECT_EQ(nlohmann::json::parse(output.out)["token_ids"], alone["token_ids"]);
    EXPECT_EQ(count(output.err, "warning"), 1u) << output.err;
    EXPECT_THAT(output.err, HasSubstr("continuing without it"));
  }
}

// Prompts have other names with another key: nothing is found, and nothing is added beside them.
TEST_F(PromptStore, OfAnotherKeyIsNotUsed) {
  const auto key_file = [&](const char* name, char digit) {
    const std::filesystem::path path = dir_ / name;
    write_all(path.string(), std::string(64, digit) + "\n");
    std::filesystem::permissions(path, std::filesystem::perms(0600));
    return path.string();
  };
  const std::string one = key_file("one.key", '1'), two = key_file("two.key", '2');
  const auto first = from_store(first_ids(700), {"--key-file", one});
  const std::size_t n = blobs("").size();
  for (const std::vector<std::string>& key :
       std::vector<std::vector<std::string>>{{}, {"--key-file", two}}) {
    std::vector<std::string> command{"generate", "-m",           kModel, "--store", store_,
                                     "--ids",    first_ids(700), "-n",   "8",       "--json"};
    command.insert(command.end(), key.begin(), key.end());
    const Output output = tqcache(command);
    EXPECT_EQ(output.exit_code, 0) << output.err;
    EXPECT_THAT(output.err, HasSubstr("which is not given; continuing without it"));
    EXPECT_EQ(nlohmann::json::parse(output.out)["token_ids"], first["token_ids"]);
    EXPECT_EQ(blobs("").size(), n);
    command.insert(command.end(), {"--store-name", "mine"});
    EXPECT_EQ(tqcache(command).exit_code, 22);
  }
  EXPECT_EQ(from_store(first_ids(700), {"--key-file", one})["store"]["reused_tokens"], 512);
}

TEST_F(PromptStore, FailsOnlyWhereANameWasPromised) {
  const std::string file = (dir_ / "file").string();
  write_all(file, "no folder");
  const Output output = tqcache({"generate", "-m", kModel, "--store", "dir:" + file + "/store",
                                 "--store-name", "a", "-p", "Hello", "-n", "2"});
  EXPECT_NE(output.exit_code, 0);
}

TEST_F(PromptStore, RefusesWhatCannotBeMeant) {
  const std::string cache = prefill_book(dir_, 300);
  const auto refused = [&](std::vector<std::string> flags, const std::string& words) {
    flags.insert(flags.begin(), {"generate", "-m", kModel, "-n", "2"});
    const Output output = tqcache(flags);
    EXPECT_EQ(output.exit_code, 2) << output.err;
    EXPECT_THAT(output.err, HasSubstr(words));
  };
  refused({"-p", "x", "--store", "nonsense"}, "store");
  refused({"-p", "x", "--store", "ftp://host"}, "ftp");
  refused({"-p", "x", "--store", store_, "--no-store"}, "--no-store");
  refused({"--cache", cache, "--store", store_}, "--cache");
  refused({"-p", "x", "--store", store_, "--save", "y", "--no-tokens"}, "--no-tokens");
  refused({"-p", "x", "--store-name", "a"}, "--store");
  refused({"-p", "x", "--store-read-only"}, "--store");
  refused({"-p", "x", "--store", store_, "--store-name", "a", "--store-read-only"}, "read-only");
  refused({"--cache", cache, "--bits", "4"}, "--bits");
  refused({"-p", "x", "--config", "archive", "--bits", "4"}, "--config archive");
  refused({"-p", "x", "--bits", "9"}, "--bits");
}

TEST_F(PromptStore, BeginsAConversation) {
  const std::string system = book_text(2600);
  const std::vector<std::string> args = {"chat", "-m",       kModel, "--store",
                                         store_, "--system", system};
  const std::string input = "What is the name of my parrot?\nAnd of my cat?\n";
  const Output alone = must({"chat", "-m", kModel, "--system", system}, {.input = input});
  const Output first = must(args, {.input = input});
  EXPECT_THAT(first.err, HasSubstr("0 of "));
  EXPECT_THAT(first.err, ContainsRegex("new token blocks? in the store"));
  const Output second = must(args, {.input = input});
  EXPECT_THAT(second.err, HasSubstr("512 of "));
  EXPECT_EQ(count(second.err, "from the store"), 1u);
  EXPECT_EQ(first.out, alone.out);
  EXPECT_EQ(second.out, alone.out);
}

TEST_F(PromptStore, GetsTheTurnsOfAConversation) {
  const std::vector<std::string> args = {"chat",         "-m",     kModel, "--store", store_,
                                         "--store-name", "parrot", "-n",   "20"};
  std::string input;
  for (int i = 0; i < 12; ++i) input += "Hello! My name is Clara. I have a parrot called Max.\n";
  const Output output = must(args, {.input = input});
  EXPECT_THAT(output.err, ContainsRegex("new token blocks? in the store"));
  EXPECT_THAT(output.err, HasSubstr("saved in the store as parrot"));
}

TEST_F(PromptStore, GivesPrefillWhatItHas) {
  const std::string one = (dir_ / "one.kv").string();
  const std::string two = (dir_ / "two.kv").string();
  const auto read_book = [&](const std::string& to, const std::vector<std::string>& flags) {
    std::vector<std::string> args = {"prefill", "-m",           kModel, "--json",
                                     "--ids",   first_ids(700), "-o",   to};
    args.insert(args.end(), flags.begin(), flags.end());
    return nlohmann::json::parse(must(args).out);
  };
  EXPECT_EQ(read_book(one, {"--store", store_})["store"]["stored_blocks"], 2);
  EXPECT_EQ(read_book(two, {"--store", store_})["store"]["reused_tokens"], 512);
  EXPECT_EQ(read_all(one), read_all(two));
  const auto other = read_book((dir_ / "three.kv").string(), {"--store", store_, "--dtype", "f32"});
  EXPECT_EQ(other["store"]["reused_tokens"], 0);
}

TEST_F(PromptStore, HasWhatAnInterruptedRunRead) {
  std::vector<std::int32_t> many;
  for (int i = 0; i < 12; ++i) many.insert(many.end(), ids_.begin(), ids_.end());
  Conversation run(
      {"generate", "-m", kModel, "--store", store_, "--ids", id_list(many), "-n", "4", "-t", "1"},
      Conversation::At::kPipe);
  run.wait_for("0 of 12,000 tokens");
  for (int i = 0; i < 30000 && blobs("b,000001").empty(); ++i) ::usleep(1000);
  run.send_signal(SIGINT);
  EXPECT_EQ(run.finish(), 130);
  EXPECT_EQ(from_store(first_ids(600))["store"]["reused_tokens"], 512);
}

}  // namespace prompt_store_test
}  // namespace tqcache::test
