// `tqcache migrate`: files and folders of version 1 become version 2.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "cli/v1_files.h"
#include "migrations/v1_to_v2.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace migrate_test {

namespace fs = std::filesystem;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

void expect_content(const fs::path& file, const migrations::V1File& old) {
  const auto cache = format::read_cache(*must(open_file(file)));
  ASSERT_TRUE(cache) << file << ": " << cache.error().message;
  const Result<void> same = migrations::check_migrated(old, *cache, 1);
  EXPECT_TRUE(same) << file << ": " << same.error().message;
}

nlohmann::json report_of(const Output& output) { return nlohmann::json::parse(output.out); }

// Everything in the folder and below, by names relative to it.
std::vector<std::string> tree(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_directory()) names.push_back(fs::relative(entry.path(), folder).string());
  }
  return names;
}

class Migrate : public testing::Test {
 protected:
  std::string path(std::string_view name) const { return (dir_ / name).string(); }
  std::string write(std::string_view name, std::uint64_t seed = 1) const {
    fs::create_directories((dir_ / name).parent_path());
    return write_v1_file(dir_ / name, small_v1(seed));
  }

  TempDir dir_;
};

TEST_F(Migrate, PutsANewFileBesideTheOldOne) {
  const std::string old = write("a.tqcache");
  const Bytes before = read_all(old);
  const Output output = must({"migrate", old, "-o", path("new"), "--json"});
  expect_content(dir_ / "new/a.tqkv", small_v1());
  must({"verify", path("new/a.tqkv")});
  EXPECT_EQ(read_all(old), before);
  EXPECT_THAT(tree(dir_.path()), UnorderedElementsAre("a.tqcache", "new/a.tqkv"));
  const nlohmann::json report = report_of(output);
  EXPECT_EQ(report["schema"], 1);
  ASSERT_EQ(report["files"].size(), 1u);
  const nlohmann::json file = report["files"][0];
  EXPECT_EQ(file["file"], old);
  EXPECT_EQ(file["status"], "migrated");
  EXPECT_EQ(file["written"], path("new/a.tqkv"));
  EXPECT_TRUE(file["backup"].is_null());
  EXPECT_EQ(file["bytes_before"], before.size());
  EXPECT_EQ(file["bytes_after"], fs::file_size(dir_ / "new/a.tqkv"));
  EXPECT_EQ(file["layers"], 2);
  EXPECT_EQ(file["tokens"], 300);
  EXPECT_TRUE(file["notes"].is_array());
  EXPECT_TRUE(file["error"].is_null());
}

TEST_F(Migrate, ReplacesAFileAndKeepsTheOldOne) {
  const std::string old = write("a.tqcache");
  const Bytes before = read_all(old);
  const Output output = must({"migrate", old, "--in-place", "--json"});
  expect_content(old, small_v1());
  EXPECT_EQ(read_all(old + ".v1.bak"), before);
  EXPECT_EQ(dir_.entry_count(), 2u);
  EXPECT_EQ(report_of(output)["files"][0]["backup"], old + ".v1.bak");
  EXPECT_EQ(report_of(output)["files"][0]["written"], old);
}

TEST_F(Migrate, KeepsNoBackupWhenToldSo) {
  const std::string old = write("a.tqcache");
  must({"migrate", old, "--in-place", "--no-backup"});
  expect_content(old, small_v1());
  EXPECT_EQ(dir_.entry_count(), 1u);
}

TEST_F(Migrate, WritesNothingInADryRun) {
  const std::string old = write("a.tqcache");
  const Bytes before = read_all(old);
  for (const std::vector<std::string>& where :
       {std::vector<std::string>{}, {"--in-place"}, {"-o", path("new")}}) {
    std::vector<std::string> args = {"migrate", old, "--dry-run"};
    args.insert(args.end(), where.begin(), where.end());
    const Output output = must(args);
    EXPECT_THAT(output.out, HasSubstr(": would be migrated, 2 layers, 300 tokens, "));
    EXPECT_THAT(output.err, HasSubstr("1 to migrate, 0 left"));
    args.push_back("--json");
    EXPECT_EQ(report_of(must(args))["files"][0]["status"], "would_migrate");
  }
  EXPECT_EQ(read_all(old), before);
  EXPECT_EQ(dir_.entry_count(), 1u);
}

TEST_F(Migrate, IsSimplyRunAgain) {
  const std::string old = write("a.tqcache");
  must({"migrate", old, "-o", path("new")});
  const Bytes first = read_all(path("new/a.tqkv"));
  const Output again = must({"migrate", old, "-o", path("new"), "--json"});
  EXPECT_EQ(report_of(again)["files"][0]["status"], "done");
  EXPECT_EQ(read_all(path("new/a.tqkv")), first);
  must({"migrate", old, "--in-place"});
  const Output current = must({"migrate", old, "--in-place", "--json"});
  EXPECT_EQ(report_of(current)["files"][0]["status"], "current");
  EXPECT_THAT(must({"migrate", old, "--in-place"}).err, HasSubstr(": already version 2\n"));
  EXPECT_THAT(tree(dir_.path()),
              UnorderedElementsAre("a.tqcache", "a.tqcache.v1.bak", "new/a.tqkv"));
}

// As a run leaves it that was killed between the two.
TEST_F(Migrate, TakesABackupThatIsThereAlready) {
  const std::string old = write("a.tqcache");
  const Bytes before = read_all(old);
  fs::create_hard_link(old, old + ".v1.bak");
  must({"migrate", old, "--in-place"});
  EXPECT_EQ(read_all(old + ".v1.bak"), before);
  const std::string other = write("b.tqcache");
  write_all(other + ".v1.bak", read_all(other));  // a copy, not a link
  must({"migrate", other, "--in-place"});
  expect_content(other, small_v1());
}

TEST_F(Migrate, ReplacesNoOtherFile) {
  const std::string old = write("a.tqcache");
  const Bytes before = read_all(old);
  write_all(old + ".v1.bak", "precious");
  for (const std::string flag : {"--dry-run", "-q"}) {
    const Output backup = tqcache({"migrate", old, "--in-place", flag});
    EXPECT_EQ(backup.exit_code, 2);
    EXPECT_THAT(backup.err, HasSubstr(old + ".v1.bak: another file exists there"));
  }
  EXPECT_EQ(read_all(old), before);
  EXPECT_EQ(dir_.entry_count(), 2u);

  write("new/a.tqkv", 2);
  for (const std::string flag : {"--dry-run", "-q"}) {
    const Output target = tqcache({"migrate", old, "-o", path("new"), flag});
    EXPECT_EQ(target.exit_code, 2);
    EXPECT_THAT(target.err, HasSubstr("new/a.tqkv: another file exists there"));
  }
  must({"migrate", old, "-o", path("new"), "-f"});
  expect_content(path("new/a.tqkv"), small_v1());
}

TEST_F(Migrate, TakesTheCachesInAFolder) {
  write("in/a.tqcache", 1);
  write("in/b", 2);
  write("in/deep/er/c.kv", 3);
  write("in/.hidden", 4);
  write("in/old.v1.bak", 5);
  write("elsewhere/d.tqcache", 6);
  must(format::write_cache_file(CacheBuilder(3).dense({1, 64}).build(), dir_ / "in/new.tqkv", {}));
  write_all(dir_ / "in/readme.txt", "no cache");
  write_all(dir_ / "in/empty", "");
  fs::create_directory_symlink(dir_ / "elsewhere", dir_ / "in/link");
  fs::create_symlink(dir_ / "elsewhere/d.tqcache", dir_ / "in/link.tqcache");
  const Output flat = must({"migrate", path("in"), "-o", path("flat"), "--json"});
  EXPECT_THAT(tree(dir_ / "flat"), UnorderedElementsAre("a.tqkv", "b.tqkv"));
  EXPECT_EQ(report_of(flat)["files"].size(), 3u);
  EXPECT_EQ(report_of(flat)["files"][2]["status"], "current");
  EXPECT_GT(report_of(flat)["skipped"], 2);
  must({"migrate", path("in"), "-o", path("all"), "--recursive"});
  EXPECT_THAT(tree(dir_ / "all"), UnorderedElementsAre("a.tqkv", "b.tqkv", "deep/er/c.tqkv"));
  expect_content(path("all/deep/er/c.tqkv"), small_v1(3));
  EXPECT_EQ(tree(dir_ / "elsewhere").size(), 1u);
}

TEST_F(Migrate, WorksOnSeveralFilesAtATime) {
  for (int i = 0; i < 6; ++i) write("in/f" + std::to_string(i), static_cast<std::uint64_t>(i + 1));
  const Output output = must({"migrate", path("in"), "--in-place", "--jobs", "3", "--json"});
  const nlohmann::json files = report_of(output)["files"];
  ASSERT_EQ(files.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(files[i]["file"], path("in/f" + std::to_string(i)));
    EXPECT_EQ(files[i]["status"], "migrated");
    expect_content(path("in/f" + std::to_string(i)), small_v1(i + 1));
  }
}

TEST_F(Migrate, GoesOnAfterABadFile) {
  const std::string bad = write("in/a");
  Bytes bytes = read_all(bad);
  bytes[bytes.size() / 2] ^= std::byte{1};
  write_all(bad, bytes);
  write("in/b");
  const Output output = tqcache({"migrate", path("in"), path("none"), "--in-place", "--json"});
  EXPECT_EQ(output.exit_code, 3);
  const nlohmann::json files = report_of(output)["files"];
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files[0]["status"], "failed");
  EXPECT_EQ(files[0]["error"]["exit_code"], 20);
  EXPECT_EQ(files[1]["status"], "migrated");
  EXPECT_EQ(files[2]["error"]["code"], "not_found");
  EXPECT_THAT(output.err, HasSubstr("tqcache: " + bad + ": "));
  EXPECT_EQ(read_all(bad), bytes);
  EXPECT_THAT(tree(dir_ / "in"), UnorderedElementsAre("a", "b", "b.v1.bak"));
  // When all fail, the first one's code tells why.
  EXPECT_EQ(tqcache({"migrate", bad, path("none"), "--in-place"}).exit_code, 20);
  EXPECT_EQ(tqcache({"migrate", path("none"), bad, "--in-place"}).exit_code, 10);
}

TEST_F(Migrate, RefusesANamedFileThatIsNoCache) {
  write_all(dir_ / "text", "no cache");
  const Output output = tqcache({"migrate", path("text"), "-o", path("new")});
  EXPECT_EQ(output.exit_code, 20);
  EXPECT_THAT(output.err, HasSubstr("tqcache: " + path("text") + ": not a cache file"));
}

TEST_F(Migrate, RefusesTwoFilesOfOneOutput) {
  write("in/a.x", 1);
  write("in/a.y", 2);
  const Output output = tqcache({"migrate", path("in"), path("in/a.x"), "-o", path("new")});
  EXPECT_EQ(output.exit_code, 3);
  EXPECT_THAT(output.err, HasSubstr("is already the output of " + path("in/a.x")));
  expect_content(path("new/a.tqkv"), small_v1(1));
  // A file that is named twice is taken once.
  EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 3) << output.err;
}

TEST_F(Migrate, RefusesTheFileItselfAsItsOutput) {
  const std::string old = write("a.tqkv");
  const Output output = tqcache({"migrate", old, "-o", dir_.path().string(), "-f"});
  EXPECT_EQ(output.exit_code, 2);
  EXPECT_THAT(output.err, HasSubstr("--in-place"));
  EXPECT_EQ(info_of(old)["version"], 1);
}

TEST_F(Migrate, RefusesWhatCannotBeMeant) {
  const std::string old = write("a");
  write_all(dir_ / "file", "");
  for (const std::vector<std::string>& args : {std::vector<std::string>{"migrate", old},
                                               {"migrate"},
                                               {"migrate", old, "-o", path("new"), "--in-place"},
                                               {"migrate", old, "-o", path("new"), "--no-backup"},
                                               {"migrate", old, "-o", path("file")},
                                               {"migrate", "-", "--in-place"},
                                               {"migrate", old, "--in-place", "--jobs", "0"},
                                               {"migrate", old, "--in-place", "--level", "20"}}) {
    SCOPED_TRACE(testing::PrintToString(args));
    const Output output = tqcache(args);
    EXPECT_EQ(output.exit_code, 2) << output.err;
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
  }
  EXPECT_EQ(info_of(old)["version"], 1);
}

TEST_F(Migrate, LeavesALinkAlone) {
  const std::string old = write("a");
  fs::create_symlink(old, path("link"));
  EXPECT_EQ(tqcache({"migrate", path("link"), "--in-place"}).exit_code, 1);
  EXPECT_EQ(info_of(old)["version"], 1);
  EXPECT_EQ(dir_.entry_count(), 2u);
  must({"migrate", path("link"), "-o", path("new")});
  expect_content(path("new/link.tqkv"), small_v1());
}

TEST_F(Migrate, LeavesAFileToWhoeverIsWritingIt) {
  const std::string old = write("a");
  const auto lock = must(LockedFile::open(old));
  const Output output = tqcache({"migrate", old, "--in-place"});
  EXPECT_EQ(output.exit_code, 11);
  EXPECT_THAT(output.err, HasSubstr("tqcache: " + old + ": "));
  EXPECT_EQ(info_of(old)["version"], 1);
  EXPECT_EQ(dir_.entry_count(), 1u);
}

// Files of every kind that there was, as they were written once.
TEST_F(Migrate, CarriesEveryKindOver) {
  const std::string golden = TQCACHE_GOLDEN_V1_FILES;
  const Output output = must({"migrate", golden, "-o", path("new"), "--json"});
  const nlohmann::json files = report_of(output)["files"];
  ASSERT_GE(files.size(), 10u);
  for (const nlohmann::json& file : files) {
    const std::string old = file["file"];
    const std::string written = file["written"];
    SCOPED_TRACE(old);
    EXPECT_EQ(file["status"], "migrated");
    EXPECT_EQ(info_of(old)["layers"], info_of(written)["layers"]);
    EXPECT_EQ(info_of(old)["class_paths"].size(), file["layers"]);
    must({"verify", old});
    must({"verify", written});
    const nlohmann::json diff = nlohmann::json::parse(must({"diff", old, written, "--json"}).out);
    EXPECT_EQ(diff["k"]["max_abs"], 0);
    EXPECT_EQ(diff["v"]["max_abs"], 0);
    EXPECT_EQ(diff["arrays_equal"], true);
  }
}

TEST_F(Migrate, HidesTokensWhenAsked) {
  write_v1_file(dir_ / "a", V1Builder(300).dense({2, 64}, V1Dtype::kF16).facts().build());
  must({"migrate", path("a"), "-o", path("plain")});
  must({"migrate", path("a"), "-o", path("hidden"), "--no-tokens"});
  EXPECT_TRUE(info_of(path("plain/a.tqkv"))["token_hashes"].is_null());
  EXPECT_EQ(info_of(path("hidden/a.tqkv"))["token_hashes"], 2);
}

TEST_F(Migrate, CompressesAsAsked) {
  const std::string old = write("a");
  must({"migrate", old, "-o", path("stored"), "--compress", "none"});
  const nlohmann::json sections = info_of(path("stored/a.tqkv"), {"--sections"})["sections"];
  for (const nlohmann::json& section : sections) EXPECT_EQ(section["compression"], "none");
}

TEST_F(Migrate, LeavesFinishedFilesWhenInterrupted) {
  for (int i = 0; i < 80; ++i) write("in/f" + std::to_string(1000 + i));
  Conversation run({"migrate", path("in"), "--in-place", "--no-backup"}, Conversation::At::kPipe);
  run.wait_for("f1002: ");
  run.send_signal(SIGINT);
  EXPECT_EQ(run.finish(), 130);
  EXPECT_THAT(run.screen(), HasSubstr("tqcache: interrupted\n"));
  EXPECT_THAT(run.screen(), ContainsRegex(", 0 failed, [0-9]+ not reached; 0 other files\n"));
  EXPECT_EQ(tree(dir_ / "in").size(), 80u);  // no temporary file
  EXPECT_EQ(info_of(path("in/f1001"))["version"], 2);
  EXPECT_EQ(info_of(path("in/f1079"))["version"], 1);
  must({"migrate", path("in"), "--in-place", "--no-backup"});
  EXPECT_EQ(info_of(path("in/f1079"))["version"], 2);
}

TEST_F(Migrate, SaysNothingWhenQuiet) {
  EXPECT_EQ(must({"migrate", write("a"), "--in-place", "-q"}).err, "");
}

TEST_F(Migrate, CarriesAConversationOver) {
  const std::string book = prefill_book(dir_, 300);
  const std::string old = write_v1_twin(book);
  must({"migrate", old, "--in-place"});
  EXPECT_EQ(generate_ids({"--cache", old, "-n", "6"}), generate_ids({"--cache", book, "-n", "6"}));
  must({"verify", old, "-m", kModel});
}

}  // namespace migrate_test
}  // namespace tqcache::test
