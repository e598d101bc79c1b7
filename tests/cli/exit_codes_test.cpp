// docs/reference/exit_codes.md: every cause of its table is brought about.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cache/random_cache.h"
#include "cli/demo.h"
#include "tqcache/hash.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace exit_codes_test {

namespace fs = std::filesystem;

using Table = std::map<std::string, int>;

// The rows "| cause | code |".
Table read_table() {
  Table table;
  std::ifstream file(TQCACHE_EXIT_CODES);
  bool is_inside = false;
  for (std::string line; std::getline(file, line);) {
    is_inside = (is_inside && line.starts_with("| ")) || line.starts_with("|---");
    if (!is_inside || line.starts_with("|---")) continue;
    const std::size_t middle = line.find(" | "), end = line.rfind(" |");
    const bool is_new =
        table.emplace(line.substr(2, middle - 2), std::stoi(line.substr(middle + 3, end))).second;
    EXPECT_TRUE(is_new) << line;
  }
  return table;
}

class ExitCodes : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return (dir_ / name).string(); }

  std::string write(const std::string& name, const std::string& text, int mode = 0600) const {
    write_all(path(name), text);
    fs::permissions(path(name), static_cast<fs::perms>(mode));
    return path(name);
  }
  // A file of two token blocks and a tail, of no model.
  std::string cache(const std::string& name) const {
    must(format::write_cache_file(
        random_cache(1, 600), path(name),
        {.compression = format::Compression::kNone, .overwrite = Overwrite::kAllow}));
    return path(name);
  }
  std::string changed(const std::string& name,
                      const std::function<void(Bytes& bytes)>& change) const {
    Bytes bytes = read_all(cache(name));
    change(bytes);
    write_all(path(name), bytes);
    return path(name);
  }
  std::string key(const std::string& name) const { return write(name, std::string(64, '7')); }
  std::string book() const { return prefill_book(dir_, 300); }

  // A store with one prompt of the book under the name "book".
  std::string store(const std::vector<std::string>& flags = {}) const {
    const std::string url = "dir:" + path("store");
    std::vector<std::string> put{"store", "put", book(), "--name", "book", "--store", url};
    put.insert(put.end(), flags.begin(), flags.end());
    must(put);
    return url;
  }

  int interrupted(int signal) const {
    std::string ids = "1";
    for (int i = 0; i < 15'000; ++i) ids += ",1";
    Conversation run({"prefill", "-m", kModel, "--ids", ids, "-t", "1", "-o", path("new.kv")},
                     Conversation::At::kTerminal);
    run.wait_for("prefill");
    run.send_signal(signal);
    return run.finish();
  }

  TempDir dir_;
};

TEST_F(ExitCodes, AreThoseOfTheirCauses) {
  using Args = std::vector<std::string>;
  const auto code = [](const Args& args, const RunOptions& options = {}) {
    const Output output = tqcache(args, options);
    EXPECT_NE(output.err, "") << args[0];
    return output.exit_code;
  };
  const std::map<std::string, std::function<int()>> causes = {
      {"an unknown verb", [&] { return code({"quantise"}); }},
      {"an unknown flag",
       [&] {
         return code({"info", cache("a"), "--color"});
       }},
      {"a value that a flag does not take",
       [&] {
         return code({"convert", cache("a"), path("b"), "--bits", "17"});
       }},
      {"flags that exclude each other",
       [&] {
         return code({"generate", "-m", kModel, "--prompt", "a", "--store", "dir:" + path("s"),
                      "--no-store"});
       }},
      {"a prompt that the context of the model has no room for",
       [&] {
         std::string text;
         for (int i = 0; i < 9000; ++i) text += " parrot";
         return code({"generate", "-m", kModel, "--file", write("long.txt", text), "-n", "1"});
       }},
      {"the output exists, and -f is not given",
       [&] {
         return code({"convert", cache("a"), cache("b"), "--bits", "4"});
       }},
      {"the key file can be read by others",
       [&] {
         return code({"convert", cache("a"), path("b"), "--bits", "4", "--key-file",
                      write("key", std::string(64, '7'), 0644)});
       }},
      {"the input does not exist",
       [&] {
         return code({"info", path("none")});
       }},
      {"the folder of the output does not exist",
       [&] {
         return code({"convert", cache("a"), path("none/b"), "--bits", "4"});
       }},
      {"the input is a folder",
       [&] {
         return code({"info", dir_.path().string()});
       }},
      {"the disk is full",
       [&] {
         return code({"convert", cache("a"), "-", "--bits", "16"}, {.out_path = "/dev/full"});
       }},
      {"the process may not use as much memory as it needs",
       [&] {
         if (TQCACHE_IS_SANITIZED) return 1;  // a sanitizer takes terabytes
         return code({"generate", "-m", kModel, "--file", kBook, "-n", "1"},
                     {.address_space = std::uint64_t{100} << 20});
       }},
      {"a store that does not answer",
       [&] {
         return code({"store", "ls", "--store", "redis://127.0.0.1:1"});
       }},
      {"a store that does not exist, for a verb that reads",
       [&] {
         return code({"store", "ls", "--store", "dir:" + path("none")});
       }},
      {"no prompt has the name",
       [&] {
         return code({"store", "info", "x", "--store", store()});
       }},
      {"nothing of the prompt is stored",
       [&] {
         return code({"store", "find", "-m", kModel, "--prompt", "other", "--store", store()});
       }},
      {"some of several names do not exist",
       [&] {
         return code({"store", "rm", "book", "x", "--store", store()});
       }},
      {"some of several files are damaged",
       [&] {
         return code({"verify", cache("a"),
                      changed("b", [](Bytes& bytes) { bytes[200] ^= std::byte{1}; })});
       }},
      {"a limit of size that named prompts need to exceed",
       [&] {
         return code({"store", "gc", "--max-bytes", "1", "--store", store()});
       }},
      {"another process appends to the file",
       [&] {
         const std::string file = book();
         const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
         ::flock(fd, LOCK_EX);
         const int result =
             code({"generate", "-m", kModel, "--cache", file, "--append", "-n", "1"});
         ::close(fd);
         return result;
       }},
      {"a damaged byte",
       [&] {
         return code({"verify", changed("a", [](Bytes& bytes) { bytes[200] ^= std::byte{1}; })});
       }},
      {"a truncated file",
       [&] {
         return code({"info", changed("a", [](Bytes& bytes) { bytes.pop_back(); })});
       }},
      {"a damaged blob of a store",
       [&] {
         const std::string url = store();
         for (const auto& entry : fs::recursive_directory_iterator(dir_ / "store/blobs")) {
           const std::string name = entry.path().filename().string();
           if (!entry.is_regular_file() || !name.starts_with("b")) continue;
           Bytes bytes = read_all(entry.path());
           bytes.back() ^= std::byte{1};
           write_all(entry.path().string(), bytes);
         }
         return code({"store", "check", "--read-data", "--store", url});
       }},
      {"a file that is no cache",
       [&] {
         return code({"convert", write("a", "no cache at all, but text"), path("b")});
       }},
      {"a model file in the place of a cache",
       [&] {
         return code({"convert", kModel, path("b"), "--bits", "4"});
       }},
      {"a later version of the format",
       [&] {
         return code({"verify", changed("a", [](Bytes& bytes) {
                        bytes[8] = std::byte{9};
                        const std::uint64_t sum = xxh3_64(ByteView(bytes).first(56));
                        std::memcpy(bytes.data() + 56, &sum, sizeof(sum));
                      })});
       }},
      {"a pickle",
       [&] {
         return code({"convert",
                      write("a.pkl",
                            "\x80\x02"
                            "cbuiltins\nprint\n."),
                      path("b")});
       }},
      {"a cache above --max-memory",
       [&] {
         return code(
             {"generate", "-m", kModel, "--cache", book(), "-n", "1", "--max-memory", "1KB"});
       }},
      {"a cache of another model",
       [&] {
         return code({"verify", book(), "-m", kOtherModel});
       }},
      {"an encrypted file without its key",
       [&] {
         must({"convert", cache("a"), path("b"), "--bits", "16", "--key-file", key("key")});
         return code({"info", path("b")});
       }},
      {"an encrypted store without its key",
       [&] {
         return code({"store", "ls", "--store", store({"--key-file", key("key")})});
       }},
      {"a plain file with --require-encrypted",
       [&] {
         return code({"info", cache("a"), "--require-encrypted", "--key-file", key("key")});
       }},
      {"SIGINT", [&] { return interrupted(SIGINT); }},
      {"SIGTERM", [&] { return interrupted(SIGTERM); }},
  };
  const Table table = read_table();
  for (const auto& [cause, expected] : table) {
    SCOPED_TRACE(cause);
    ASSERT_TRUE(causes.count(cause) == 1) << "no test brings it about";
    for (const auto& entry : fs::directory_iterator(dir_.path())) fs::remove_all(entry.path());
    EXPECT_EQ(causes.at(cause)(), expected);
  }
  EXPECT_EQ(table.size(), causes.size());
}

}  // namespace exit_codes_test
}  // namespace tqcache::test
