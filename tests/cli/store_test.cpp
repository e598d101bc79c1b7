// A library of prompts, as its verbs show it.

#include "tqcache/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "cli/demo.h"
#include "store/fake_server.h"
#include "support/long_file.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace store_test {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

using Args = std::vector<std::string>;

Args operator+(Args a, const Args& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Nothing here is about disks, and a store flushes every blob: folders that are made while this is
// there stand in memory, where there is such a place.
class FoldersInMemory {
 public:
  FoldersInMemory() {
    is_set_ = std::getenv("TMPDIR") == nullptr && ::access("/dev/shm", W_OK) == 0;
    if (is_set_) ::setenv("TMPDIR", "/dev/shm", 1);
  }
  ~FoldersInMemory() {
    if (is_set_) ::unsetenv("TMPDIR");
  }
  FoldersInMemory(const FoldersInMemory&) = delete;
  FoldersInMemory& operator=(const FoldersInMemory&) = delete;

 private:
  bool is_set_ = false;
};

class StoreVerbs : public testing::Test {
 protected:
  // The book's first 600 tokens, in two files, are made once for all tests, and so is an empty
  // store: its 256 folders are flushed to disk one by one.
  static void SetUpTestSuite() {
    const FoldersInMemory in_memory;
    files_ = new TempDir;
    dense_ = prefill_book(*files_, 600);
    turbo_ = pack(dense_);
    const std::string empty = "dir:" + (*files_ / "store").string();
    must({"store", "put", dense_, "--no-name", "--store", empty});
    must({"store", "gc", "--max-bytes", "0", "--grace", "0s", "--store", empty});
  }
  static void TearDownTestSuite() { delete files_; }

  void SetUp() override { fs::copy(*files_ / "store", folder_, fs::copy_options::recursive); }

  Output run(const Args& verb, const Args& args = {}) const {
    return tqcache(Args{"store"} + verb + args + Args{"--store", url_});
  }
  json json_of(const Args& verb, int exit_code = 0) const {
    const Output output = run(verb, {"--json"});
    EXPECT_EQ(output.exit_code, exit_code) << output.err;
    return json::parse(output.out);
  }
  void put(const std::string& file, const Args& flags = {}) const {
    const Output output = run({"put", file}, flags);
    ASSERT_EQ(output.exit_code, 0) << output.err;
  }

  // Files of the store's blobs whose keys begin so.
  std::vector<fs::path> blobs(const std::string& prefix) const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / "blobs")) {
      const bool is_one = entry.path().filename().string().starts_with(prefix);
      if (entry.is_regular_file() && is_one) found.push_back(entry.path());
    }
    return found;
  }

  static TempDir* files_;
  static std::string dense_, turbo_;
  FoldersInMemory in_memory_;
  TempDir dir_;
  fs::path folder_ = dir_ / "store";
  std::string url_ = "dir:" + folder_.string();
};

TempDir* StoreVerbs::files_ = nullptr;
std::string StoreVerbs::dense_, StoreVerbs::turbo_;

TEST_F(StoreVerbs, PutAndGetGiveBackTheSameContent) {
  for (const std::string& file : {dense_, turbo_}) {
    const json put = json_of({"put", file, "--name", "book", "--replace"});
    EXPECT_EQ(put["name"], "book");
    EXPECT_EQ(put["n_tokens"], 600);
    EXPECT_EQ(put["blocks"], 2);
    EXPECT_EQ(put["new_blocks"], 2);
    EXPECT_EQ(put["content_name"], info_of(file)["content_name"]);
    const std::string out = (dir_ / "out.tqkv").string();
    const json got = json_of({"get", "book", "-o", out, "-f"});
    EXPECT_EQ(got["n_tokens"], 600);
    EXPECT_EQ(got["prompt_tokens"], 600);
    EXPECT_EQ(got["bytes"], fs::file_size(out));
    EXPECT_EQ(info_of(out)["content_name"], info_of(file)["content_name"]);
    must({"verify", out, "-m", kModel, "--probe", "0"});
  }
}

TEST_F(StoreVerbs, PutAndGetTakeLittleMemory) {
  if (TQCACHE_IS_SANITIZED) GTEST_SKIP() << "a sanitizer takes memory of its own";
#ifdef TQCACHE_TEST_EMULATED
  GTEST_SKIP() << "an emulator takes memory of its own";
#endif
  constexpr std::uint64_t kMiB = 1 << 20;
  const std::string file = (dir_ / "long.tqkv").string();
  must(write_long_file(file, 4 * 300));
  EXPECT_GT(fs::file_size(file), 300 * kMiB);
  const auto peak_of_verb = [this](const Args& verb) {
    const Output output = run(verb);
    EXPECT_EQ(output.exit_code, 0) << output.err;
    return output.peak_bytes;
  };
  EXPECT_LT(peak_of_verb({"put", file}), 280 * kMiB);
  fs::remove(file);
  EXPECT_LT(peak_of_verb({"get", "long", "-o", file}), 150 * kMiB);
  must({"verify", file});
}

TEST_F(StoreVerbs, PutTellsWhatIsNew) {
  const Output first = run({"put", dense_});
  EXPECT_THAT(first.err, AllOf(HasSubstr("600 tokens, named book600"), HasSubstr("2 of 2")));
  EXPECT_EQ(first.out, "");
  EXPECT_THAT(run({"put", dense_}).err, HasSubstr("0 of 2 blocks new"));
}

TEST_F(StoreVerbs, PutTakesStandardInput) {
  const Bytes bytes = read_all(dense_);
  const std::string input(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const Args args = {"store", "put", "-", "--store", url_};
  EXPECT_EQ(tqcache(args, {.input = input}).exit_code, 2);  // it has no name
  must(args + Args{"--name", "piped"}, {.input = input});
  EXPECT_EQ(json_of({"ls"})["prompts"][0]["name"], "piped");
}

TEST_F(StoreVerbs, GetGivesToStandardOutput) {
  put(dense_, {"--name", "book"});
  const std::string out = (dir_ / "out").string();
  must({"store", "get", "book", "-o", "-", "--store", url_}, {.out_path = out});
  EXPECT_EQ(info_of(out)["content_name"], info_of(dense_)["content_name"]);
}

TEST_F(StoreVerbs, TheLongestBeginningOfAPromptIsFound) {
  put(dense_, {"--no-name"});
  const std::string ids = id_list(tokens_of(prefill_book(dir_, 700)));
  const json found = json_of({"find", "-m", kModel, "--ids", ids});
  EXPECT_EQ(found["prompt_tokens"], 700);
  EXPECT_EQ(found["found_tokens"], 600);
  EXPECT_EQ(found["n_blocks"], 2);
  EXPECT_EQ(found["ends_with_state"], true);
  const std::string out = (dir_ / "out.tqkv").string();
  const Output got = run({"get", "-m", kModel, "--ids", ids, "-o", out});
  EXPECT_EQ(got.exit_code, 0);
  EXPECT_THAT(got.err, HasSubstr("600 of 700 tokens"));
  EXPECT_EQ(info_of(out)["content_name"], info_of(dense_)["content_name"]);
  EXPECT_THAT(run({"find", "-m", kModel, "--file", kBook}).out,
              AllOf(StartsWith("600 of "), HasSubstr("dense f16")));
  // Another way after 300 tokens: one whole block is of use.
  const std::string other = id_list(tokens_of(prefill_book(dir_, 300))) + ",5,6";
  EXPECT_EQ(json_of({"find", "-m", kModel, "--ids", other})["found_tokens"], 256);
}

TEST_F(StoreVerbs, AllOfAPromptCanBeFound) {
  put(dense_);
  const std::string ids = id_list(tokens_of(dense_));
  EXPECT_EQ(json_of({"find", "-m", kModel, "--ids", ids})["found_tokens"], 600);
}

TEST_F(StoreVerbs, AStoreThatIsNotThereIsNamed) {
  const std::string url = "dir:" + (dir_ / "nope").string();
  EXPECT_THAT(tqcache({"store", "ls", "--store", url}).err,
              testing::StartsWith("tqcache: " + url + ": "));
  EXPECT_THAT(tqcache({"store", "ls", "--store", "redis://me:HunterTwo@localhost:1/"}).err,
              AllOf(HasSubstr("redis://localhost:1"), Not(HasSubstr("HunterTwo"))));
}

TEST_F(StoreVerbs, WhatIsNotThereHasAnExitCode) {
  put(dense_, {"--name", "book"});
  const std::string out = (dir_ / "out.tqkv").string();
  for (const Args& verb : std::vector<Args>{{"get", "other", "-o", out},
                                            {"find", "other"},
                                            {"info", "other"},
                                            {"rm", "other"},
                                            {"find", "-m", kModel, "-p", "Nobody said this."},
                                            {"get", "-m", kModel, "-p", "Nor this.", "-o", out}}) {
    SCOPED_TRACE(testing::PrintToString(verb));
    const Output output = run(verb);
    EXPECT_EQ(output.exit_code, 10);
    EXPECT_THAT(output.err, HasSubstr("tqcache: " + url_ + ": no"));
    EXPECT_FALSE(fs::exists(out));
  }
  // The same prompt for another model is another prompt.
  const std::string ids = id_list(tokens_of(dense_));
  EXPECT_EQ(run({"find", "-m", kOtherModel, "--ids", ids}).exit_code, 10);
}

TEST_F(StoreVerbs, ListsWhatIsKept) {
  put(dense_, {"--name", "b"});
  put(turbo_, {"--name", "a"});
  put(turbo_, {"--no-name"});
  const json prompts = json_of({"ls"})["prompts"];
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[0]["name"], "a");
  EXPECT_EQ(prompts[1]["name"], "b");
  EXPECT_EQ(prompts[0]["n_tokens"], 600);
  EXPECT_GT(prompts[1]["bytes"], prompts[0]["bytes"]);
  EXPECT_GT(prompts[0]["created"], 0);
  EXPECT_TRUE(prompts[0]["idle_seconds"].is_number());
  EXPECT_THAT(run({"ls"}).out,
              AllOf(HasSubstr("name"), HasSubstr("600"), HasSubstr("tqcache"), HasSubstr(" MiB ")));
  EXPECT_EQ(json_of({"ls", "--model-name", "tqcache"})["prompts"].size(), 2u);
  EXPECT_TRUE(json_of({"ls", "--model-name", "another"})["prompts"].empty());
}

TEST_F(StoreVerbs, SayWhatWasNotChecked) {
  cache::Cache cache = format::read_cache(*open_file(dense_).value()).value();
  const auto with = [&](cache::Standing standing, const std::string& name) {
    cache.identity.standing = standing;
    const std::string path = (*files_ / name).string();
    EXPECT_TRUE(format::write_cache_file(cache, path, {}));
    return path;
  };
  const Output shifted = run({"put", with(cache::Standing::kShifted, "shifted.tqkv")});
  EXPECT_EQ(shifted.exit_code, 21);
  EXPECT_THAT(shifted.err, HasSubstr("its context was shifted"));
  const std::string unchecked = with(cache::Standing::kUnchecked, "unchecked.tqkv");
  EXPECT_EQ(run({"put", unchecked}, {"--no-name"}).exit_code, 21);
  put(unchecked);
  EXPECT_THAT(run({"ls"}).out, HasSubstr("(not checked)"));
  EXPECT_THAT(run({"info", "unchecked"}).out, HasSubstr("stated, not checked"));
  EXPECT_EQ(json_of({"ls"})["prompts"][0]["standing"], "unchecked");
  const std::string again = (*files_ / "again.tqkv").string();
  ASSERT_EQ(run({"get", "unchecked", "-o", again}).exit_code, 0);
  EXPECT_THAT(tqcache({"info", again}).out, HasSubstr("identity stated, not checked"));
}

TEST_F(StoreVerbs, ListsSayWhatHasNoName) {
  EXPECT_THAT(run({"ls"}).err, HasSubstr("no named prompts; nothing is stored"));
  put(turbo_, {"--no-name"});
  const std::size_t n_blobs = blobs("").size();
  const Output output = run({"ls"});
  EXPECT_EQ(output.exit_code, 0);
  EXPECT_EQ(output.out, "");
  EXPECT_THAT(output.err, AllOf(HasSubstr(std::to_string(n_blobs) + " blobs, "),
                                HasSubstr("of prompts without a name: tqcache store stats")));
  const json unlisted = json_of({"ls"})["unlisted"];
  EXPECT_EQ(unlisted["blobs"], n_blobs);
  EXPECT_GT(unlisted["bytes"], 100'000);
  EXPECT_EQ(unlisted["names_of_other_salts"], 0);
  put(turbo_, {"--name", "book"});
  EXPECT_FALSE(json_of({"ls"}).contains("unlisted"));
  EXPECT_THAT(run({"ls"}).err, IsEmpty());
  EXPECT_THAT(run({"ls", "--model-name", "another"}).err,
              HasSubstr("1 named prompt of other models"));
  ::setenv("TQCACHE_STORE_SALT", "another", 1);
  EXPECT_THAT(run({"ls"}).err, HasSubstr("1 prompt named with other salts"));
  ::unsetenv("TQCACHE_STORE_SALT");
}

// As a server that saves a prompt long after it was looked up.
TEST_F(StoreVerbs, StatsCountBytesWithoutALookup) {
  const auto backend = must(store::open_backend(url_, {.create = true}));
  store::Library library(*backend, {});
  must(library.note_usage({1, 600, 512, 1000, 0}));
  must(library.note_usage({2, 0, 0, 0, 77}));
  const json runs = json_of({"stats"})["runs"];
  EXPECT_EQ(runs["count"], 1);
  EXPECT_EQ(runs["that_found"], 1);
  EXPECT_EQ(runs["read_bytes"], 1000);
  EXPECT_EQ(runs["stored_bytes"], 77);
  EXPECT_THAT(run({"stats"}).out, HasSubstr("1,000 read, 77 stored"));
}

// Names and blocks have other keys then, so that nothing is found.
TEST_F(StoreVerbs, AStoreOfAnotherKeyDoesNotLookEmpty) {
  const auto key_file = [&](const std::string& name, char digit) {
    const fs::path path = dir_ / name;
    write_all(path.string(), std::string(64, digit) + "\n");
    fs::permissions(path, fs::perms(0600));
    return path.string();
  };
  const std::string one = key_file("one.key", '1'), two = key_file("two.key", '2');
  put(dense_, {"--name", "book", "--key-file", one});
  const std::string ids = id_list(tokens_of(dense_));
  const std::string out = (dir_ / "out.tqkv").string();
  for (const Args& verb : std::vector<Args>{{"ls"},
                                            {"get", "book", "-o", out},
                                            {"info", "book"},
                                            {"find", "book"},
                                            {"find", "-m", kModel, "--ids", ids},
                                            {"check"},
                                            {"stats"},
                                            {"gc"},
                                            {"rm", "other"},
                                            {"put", dense_, "--name", "plain"}}) {
    for (const Args& key : {Args{}, Args{"--key-file", two}}) {
      SCOPED_TRACE(testing::PrintToString(verb + key));
      const Output output = run(verb + key);
      EXPECT_EQ(output.exit_code, 22);
      EXPECT_THAT(output.err,
                  AllOf(HasSubstr("encrypted with the key "), HasSubstr("which is not given")));
    }
    if (verb[0] == "get" || verb[0] == "rm") continue;
    EXPECT_EQ(run(verb + Args{"--key-file", one}).exit_code, 0);
  }
  EXPECT_EQ(run({"rm", "other", "--key-file", one}).exit_code, 10);
  // Without names, too.
  EXPECT_EQ(run({"rm", "book", "--key-file", one}).exit_code, 0);
  for (const Args& verb : std::vector<Args>{{"check"}, {"stats"}, {"gc"}}) {
    EXPECT_EQ(run(verb).exit_code, 22) << verb[0];
    EXPECT_EQ(run(verb + Args{"--key-file", two}).exit_code, 22) << verb[0];
    EXPECT_EQ(run(verb + Args{"--key-file", one}).exit_code, 0) << verb[0];
  }
  // A plain store and a key.
  must({"store", "put", dense_, "--no-name", "--store", "dir:" + (dir_ / "plain").string()});
  const Output output = tqcache({"store", "put", dense_, "--no-name", "--store",
                                 "dir:" + (dir_ / "plain").string(), "--key-file", one});
  EXPECT_EQ(output.exit_code, 22);
  EXPECT_THAT(output.err, HasSubstr("not encrypted, though a key is given"));
  EXPECT_EQ(run({"find", "other", "--key-file", one}).exit_code, 10);
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(StoreVerbs, InfoTellsOfOnePromptWithoutItsText) {
  put(turbo_, {"--name", "book"});
  const json info = json_of({"info", "book"});
  EXPECT_EQ(info["n_tokens"], 600);
  EXPECT_EQ(info["n_blocks"], 2);
  EXPECT_EQ(info["content_name"], info_of(turbo_)["content_name"]);
  EXPECT_EQ(info["layers"], info_of(turbo_)["layers"]);
  const Output text = run({"info", "book"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("turbo 4 bits"), Not(HasSubstr("Alice"))));
}

TEST_F(StoreVerbs, WhatIsRemovedIsFoundByItsTokensUntilGc) {
  put(dense_, {"--name", "book"});
  EXPECT_EQ(json_of({"rm", "book"})["removed"], json({"book"}));
  EXPECT_THAT(json_of({"ls"})["prompts"], IsEmpty());
  const std::string ids = id_list(tokens_of(dense_));
  EXPECT_EQ(json_of({"find", "-m", kModel, "--ids", ids})["found_tokens"], 600);
  EXPECT_EQ(run({"gc", "--max-bytes", "0", "--grace", "0s"}).exit_code, 0);
  EXPECT_EQ(run({"find", "-m", kModel, "--ids", ids}).exit_code, 10);
  EXPECT_THAT(blobs(""), IsEmpty());
}

TEST_F(StoreVerbs, ForgetRemovesAllOfOneTenant) {
  const auto file_of_text = [&](const std::string& name, const std::string& text) {
    const fs::path path = dir_ / name;
    write_all(path.string(), text);
    fs::permissions(path, fs::perms(0600));
    return path.string();
  };
  const std::string alice = file_of_text("alice.salt", "alice\n");
  put(dense_, {"--name", "book"});
  put(dense_, {"--name", "book", "--salt-file", alice});
  put(turbo_, {"--no-name", "--salt-file", alice});
  const std::size_t n = blobs("").size();
  const Output usage = run({"forget"});
  EXPECT_EQ(usage.exit_code, 2);
  EXPECT_THAT(usage.err, HasSubstr("no tenant: --salt-file or --api-key-file is required"));
  const Output dry = run({"forget", "--salt-file", alice, "--dry-run"});
  EXPECT_EQ(dry.exit_code, 0);
  EXPECT_THAT(dry.out, AllOf(HasSubstr("would be removed"), HasSubstr("1 prompt with a name")));
  EXPECT_EQ(blobs("").size(), n);
  const json report = json_of({"forget", "--salt-file", alice});
  EXPECT_EQ(report["prompts_removed"], 1);
  EXPECT_EQ(report["unread"], 0);
  EXPECT_LT(blobs("").size(), n);
  EXPECT_EQ(run({"forget", "--salt-file", alice}).exit_code, 10);
  EXPECT_THAT(json_of({"ls", "--salt-file", alice})["prompts"], IsEmpty());
  EXPECT_EQ(json_of({"ls"})["prompts"].size(), 1u);
  EXPECT_EQ(run({"check", "--read-data"}).exit_code, 0);
  // Clients of serve: the keys of http.md, of this store without a salt.
  const std::string salt = std::string("\0serve client\0", 14) + to_hex(sha256(as_bytes("k1")));
  const auto backend = must(store::open_backend(url_, {}));
  store::Library library(*backend, {.salt = salt});
  must(library.put_file(*memory_source(read_all(dense_)), "", {}, {}));
  const std::string keys = file_of_text("keys", "k2\nk1\n");
  EXPECT_EQ(run({"forget", "--api-key-file", keys}).exit_code, 0);
  EXPECT_EQ(run({"forget", "--api-key-file", keys}).exit_code, 10);
  EXPECT_EQ(json_of({"ls"})["prompts"].size(), 1u);
}

TEST_F(StoreVerbs, RmOfSeveralTellsWhichWereNotThere) {
  put(dense_, {"--name", "a"});
  const Output output = run({"rm", "a", "b"});
  EXPECT_EQ(output.exit_code, 3);
  EXPECT_THAT(output.err, HasSubstr("no prompt has the name b"));
}

TEST_F(StoreVerbs, GcKeepsWhatPromptsNeed) {
  put(dense_, {"--name", "book"});
  const Output output = run({"gc", "--max-bytes", "1MB", "--grace", "0s"});
  EXPECT_EQ(output.exit_code, 3);
  EXPECT_THAT(output.err, HasSubstr("named prompts need"));
  const json report = json_of({"gc", "--max-bytes", "1KiB", "--grace", "0s"}, 3);
  EXPECT_EQ(report["above_limit"], true);
  EXPECT_EQ(report["max_bytes"], 1024);
  EXPECT_EQ(report["bytes_needed"], report["bytes_after"]);
  must({"store", "get", "book", "-o", (dir_ / "out").string(), "--store", url_});
}

TEST_F(StoreVerbs, GcDropsPromptsWhenAsked) {
  put(dense_, {"--name", "book"});
  const Args gc = {"gc", "--max-bytes", "0", "--grace", "0s", "--drop-prompts"};
  const json dry = json_of(gc + Args{"--dry-run"});
  EXPECT_EQ(dry["prompts_removed"], json({"book"}));
  EXPECT_EQ(dry["dry_run"], true);
  EXPECT_EQ(json_of({"ls"})["prompts"].size(), 1u);
  const json wet = json_of(gc);
  EXPECT_EQ(wet["removed"], dry["removed"]);
  EXPECT_EQ(wet["bytes_after"], 0);
  EXPECT_THAT(blobs(""), IsEmpty());
}

TEST_F(StoreVerbs, GcLeavesWhatWasJustUsed) {
  put(dense_, {"--no-name"});
  const json report = json_of({"gc", "--max-bytes", "0"}, 3);
  EXPECT_EQ(report["bytes_in_grace"], report["bytes_before"]);
  EXPECT_EQ(run({"gc", "--max-age", "1d"}).exit_code, 0);
  EXPECT_EQ(blobs("b,").size(), 2u);
}

TEST_F(StoreVerbs, CheckFindsAWholeStoreWhole) {
  put(dense_, {"--name", "a"});
  put(turbo_, {"--name", "b"});
  const json report = json_of({"check", "--read-data"});
  EXPECT_EQ(report["whole"], true);
  EXPECT_EQ(report["prompts"], 2);
  EXPECT_EQ(report["read"], report["stored"]);
  EXPECT_THAT(report["findings"], IsEmpty());
  EXPECT_THAT(run({"check"}).out, StartsWith("OK: 2 prompts"));
}

TEST_F(StoreVerbs, CheckTellsOfDamageAndRepairs) {
  put(dense_, {"--name", "book"});
  const fs::path block = blobs("b,000001").at(0);
  Bytes bytes = read_all(block);
  bytes[bytes.size() / 2] ^= std::byte{1};
  write_all(block, bytes);
  EXPECT_EQ(run({"check"}).exit_code, 0);  // it is there
  const Output output = run({"check", "--read-data"});
  EXPECT_EQ(output.exit_code, 20);
  EXPECT_THAT(output.err, AllOf(HasSubstr("b/000001/"), HasSubstr("prompt book: "),
                                HasSubstr("1 damaged blob,")));
  const json report = json_of({"check", "--read-data", "--repair"}, 20);
  EXPECT_EQ(report["repaired"], 1);
  EXPECT_EQ(report["findings"][0]["code"], "corrupt");
  EXPECT_EQ(report["findings"][0]["repaired"], true);
  EXPECT_FALSE(fs::exists(block));
  EXPECT_EQ(json_of({"check"}, 20)["missing"], 1);
  put(dense_, {"--name", "book"});
  EXPECT_EQ(run({"check", "--read-data"}).exit_code, 0);
}

TEST_F(StoreVerbs, StatsTellWhatSharingSaves) {
  put(dense_, {"--name", "a"});
  const json one = json_of({"stats"});
  EXPECT_EQ(one["bytes_saved"], 0);
  EXPECT_EQ(one["kinds"]["block"]["blobs"], 2);
  const std::string longer = prefill_book(dir_, 700);
  put(longer, {"--name", "b"});
  const json two = json_of({"stats"});
  EXPECT_EQ(two["prompts"], 2);
  EXPECT_GT(two["bytes_saved"], 0);
  EXPECT_EQ(two["bytes_alone"].get<int>() - two["bytes_needed"].get<int>(), two["bytes_saved"]);
  EXPECT_THAT(run({"stats"}).out, AllOf(HasSubstr("sharing saves"), HasSubstr("2, of 1,300")));
}

TEST_F(StoreVerbs, CopyBringsPromptsElsewhere) {
  put(dense_, {"--name", "a"});
  put(turbo_, {"--name", "b"});
  const std::string other = "dir:" + (dir_ / "other").string();
  const json one = json::parse(must({"store", "copy", url_, other, "a", "--json"}).out);
  EXPECT_EQ(one["prompts"], 1);
  const json all = json::parse(must({"store", "copy", url_, other, "--json"}).out);
  EXPECT_EQ(all["prompts"], 1);
  EXPECT_EQ(all["prompts_existed"], 1);
  must({"store", "check", "--read-data", "--store", other});
  const std::string out = (dir_ / "out").string();
  must({"store", "get", "b", "-o", out, "--store", other});
  EXPECT_EQ(info_of(out)["content_name"], info_of(turbo_)["content_name"]);
  EXPECT_EQ(tqcache({"store", "copy", url_, other, "nobody"}).exit_code, 10);
  EXPECT_EQ(tqcache({"store", "copy", url_, url_}).exit_code, 2);
}

TEST_F(StoreVerbs, CopyLeavesOutWhatIsDamaged) {
  put(dense_, {"--name", "a"});
  write_all(blobs("b,000001").at(0), "damage");
  const std::string other = "dir:" + (dir_ / "other").string();
  const Output output = tqcache({"store", "copy", url_, other});
  EXPECT_EQ(output.exit_code, 3);
  EXPECT_THAT(output.err, AllOf(HasSubstr("b/000001/"), HasSubstr("prompt a: ")));
  must({"store", "check", "--read-data", "--store", other});
}

TEST_F(StoreVerbs, TenantsDoNotFindEachOther) {
  const std::string salt = (dir_ / "salt").string();
  write_all(salt, "our salt\n");
  put(dense_, {"--name", "book", "--salt-file", salt});
  EXPECT_EQ(run({"info", "book"}).exit_code, 10);
  EXPECT_THAT(json_of({"ls"})["prompts"], IsEmpty());
  const std::string ids = id_list(tokens_of(dense_));
  EXPECT_EQ(run({"find", "-m", kModel, "--ids", ids}).exit_code, 10);
  EXPECT_EQ(json_of({"ls", "--salt-file", salt})["prompts"].size(), 1u);
  ::setenv("TQCACHE_STORE_SALT", "our salt", 1);
  EXPECT_EQ(json_of({"find", "-m", kModel, "--ids", ids})["found_tokens"], 600);
  ::setenv("TQCACHE_STORE_SALT", "another", 1);
  EXPECT_EQ(run({"info", "book"}).exit_code, 10);
  EXPECT_EQ(run({"info", "book", "--salt-file", salt}).exit_code, 0);
  ::unsetenv("TQCACHE_STORE_SALT");
  EXPECT_EQ(json_of({"stats"})["prompts"], 1);  // of all
}

TEST_F(StoreVerbs, SaltsAreChecked) {
  const std::string salt = (dir_ / "salt").string();
  write_all(salt, "\n");
  EXPECT_EQ(run({"ls", "--salt-file", salt}).exit_code, 2);
  write_all(salt, std::string(4097, 'x'));
  EXPECT_EQ(run({"ls", "--salt-file", salt}).exit_code, 21);
  EXPECT_EQ(run({"ls", "--salt-file", "/nonexistent"}).exit_code, 10);
}

// An empty variable is probably a secret that was not set: its prompts would be those of all.
TEST_F(StoreVerbs, AnEmptySaltVariableIsRefused) {
  ::setenv("TQCACHE_STORE_SALT", "", 1);
  const Output output = run({"ls"});
  ::unsetenv("TQCACHE_STORE_SALT");
  EXPECT_EQ(output.exit_code, 2);
  EXPECT_THAT(output.err, HasSubstr("TQCACHE_STORE_SALT is set but empty"));
}

TEST_F(StoreVerbs, ASaltThatOthersCanReadGivesAWarning) {
  const fs::path salt = dir_ / "salt";
  write_all(salt, "our salt\n");
  fs::permissions(salt, fs::perms(0644));
  const Output open = run({"ls", "--salt-file", salt.string()});
  EXPECT_EQ(open.exit_code, 0);
  EXPECT_THAT(open.err, HasSubstr("mode 0644"));
  fs::permissions(salt, fs::perms(0600));
  EXPECT_THAT(run({"ls", "--salt-file", salt.string()}).err, Not(HasSubstr("mode")));
}

TEST_F(StoreVerbs, LookingRemovesNothing) {
  put(dense_, {"--name", "book"});
  std::vector<fs::path> damaged;
  for (const char* const kind : {"b,000001", "s,"}) damaged.push_back(blobs(kind).at(0));
  for (const fs::path& path : damaged) write_all(path, "<html>Sign in to use this network</html>");
  const std::string ids = id_list(tokens_of(dense_));
  const std::string out = (dir_ / "out.tqkv").string();
  EXPECT_EQ(json_of({"find", "-m", kModel, "--ids", ids})["found_tokens"], 512);
  EXPECT_EQ(run({"get", "book", "-o", out}).exit_code, 20);
  EXPECT_EQ(run({"get", "-m", kModel, "--ids", ids, "-o", out, "-f"}).exit_code, 0);
  EXPECT_EQ(run({"check", "--read-data"}).exit_code, 20);
  for (const fs::path& path : damaged) EXPECT_TRUE(fs::exists(path)) << path;
  EXPECT_EQ(run({"check", "--read-data", "--repair"}).exit_code, 20);
  for (const fs::path& path : damaged) EXPECT_FALSE(fs::exists(path)) << path;
}

TEST_F(StoreVerbs, TheStoreCanBeAVariable) {
  put(dense_, {"--name", "book"});
  EXPECT_EQ(tqcache({"store", "ls"}).exit_code, 2);
  ::setenv("TQCACHE_STORE", url_.c_str(), 1);
  EXPECT_THAT(must({"store", "ls"}).out, HasSubstr("book"));
  ::unsetenv("TQCACHE_STORE");
}

TEST_F(StoreVerbs, LookingMakesNoStore) {
  fs::remove_all(folder_);
  for (const Args& verb : std::vector<Args>{
           {"ls"}, {"stats"}, {"check"}, {"gc"}, {"info", "x"}, {"rm", "x"}, {"find", "x"}}) {
    SCOPED_TRACE(testing::PrintToString(verb));
    EXPECT_EQ(run(verb).exit_code, 10);
    EXPECT_FALSE(fs::exists(folder_));
  }
  EXPECT_EQ(tqcache({"store", "copy", url_, "dir:" + (dir_ / "other").string()}).exit_code, 10);
  EXPECT_FALSE(fs::exists(dir_ / "other"));
}

TEST_F(StoreVerbs, WhatCannotBePutIsRefused) {
  put(dense_, {"--name", "book"});
  EXPECT_EQ(run({"put", kBook}).exit_code, 21);
  EXPECT_EQ(run({"put", "/nonexistent"}).exit_code, 10);
  const std::string hidden = (dir_ / "hidden.kv").string();
  must({"convert", dense_, hidden, "--bits", "16", "--no-tokens"});
  EXPECT_EQ(run({"put", hidden}).exit_code, 21);
  // The name of another prompt.
  const std::string other = prefill_book(dir_, 40);
  const Output taken = run({"put", other}, {"--name", "book"});
  EXPECT_EQ(taken.exit_code, 2);
  EXPECT_THAT(taken.err, HasSubstr("book"));
  EXPECT_THAT(taken.err, HasSubstr("; --replace gives it to this one\n"));
  EXPECT_EQ(json_of({"info", "book"})["n_tokens"], 600);
  put(other, {"--name", "book", "--replace"});
  EXPECT_EQ(json_of({"info", "book"})["n_tokens"], 40);
  must({"store", "get", "book", "-o", (dir_ / "out").string(), "--store", url_});
}

TEST_F(StoreVerbs, MistakesOfUsage) {
  const std::vector<Args> lines = {
      {"put"},
      {"put", dense_, "--name", "a", "--no-name"},
      {"get", "a"},
      {"get", "-o", "x"},
      {"get", "a", "-m", kModel, "-o", "x"},
      {"get", "a", "-p", "Hi", "-o", "x"},
      {"get", "-p", "Hi", "-o", "x"},
      {"find", "-m", kModel, "-p", "Hi", "--ids", "1"},
      {"get", "a", "-o", "-", "--json"},
      {"gc", "--max-bytes", "many"},
      {"gc", "--max-bytes", "99999999999999999999"},
      {"gc", "--max-bytes", "9999999999TiB"},
      {"gc", "--max-age", "3"},
      {"gc", "--max-age", "3y"},
      {"gc", "--drop-prompts"},
      {"rm"},
      {"ls", "--salt", "x"},
  };
  for (const Args& line : lines) {
    SCOPED_TRACE(testing::PrintToString(line));
    EXPECT_EQ(run(line).exit_code, 2);
  }
  EXPECT_EQ(tqcache({"store", "ls", "--store", "ftp://x"}).exit_code, 2);
  EXPECT_EQ(tqcache({"store"}).exit_code, 2);
  EXPECT_THAT(tqcache({"store", "pt"}).err, HasSubstr("did you mean put"));
}

TEST_F(StoreVerbs, PasswordsAreNotShown) {
  const Output output =
      tqcache({"store", "ls", "--store", "redis://user:secret@127.0.0.1:1", "--json"});
  EXPECT_NE(output.exit_code, 0);
  EXPECT_THAT(output.err + output.out, Not(HasSubstr("secret")));
}

TEST_F(StoreVerbs, EveryVerbHasHelpWithExamples) {
  EXPECT_THAT(must({"store", "--help"}).out, HasSubstr("tqcache store VERB [FLAGS]"));
  for (const char* const verb :
       {"put", "get", "find", "ls", "info", "rm", "gc", "stats", "check", "copy"}) {
    EXPECT_THAT(must({"store", verb, "--help"}).out,
                AllOf(HasSubstr("Examples:\n  "), HasSubstr(std::string("tqcache store ") + verb)));
  }
}

// A server that never ends its answer, and a user who does not want to wait.
TEST(StoreServers, CtrlCAndSigtermEndAWaitForAServer) {
  if (must({"--version"}).out.find("redis") == std::string::npos) GTEST_SKIP();
  for (const int signal : {SIGINT, SIGTERM}) {
    const FakeServer server(Script{{kTrickle + "$1000\r\n"}});
    Conversation user({"store", "stats", "--store", "redis://" + server.address()},
                      Conversation::At::kPipe);
    while (server.asked().empty()) ::usleep(1000);
    user.send_signal(signal);
    EXPECT_EQ(user.finish(), 130);
    EXPECT_FALSE(server.has_given_up());
  }
}

}  // namespace store_test
}  // namespace tqcache::test
