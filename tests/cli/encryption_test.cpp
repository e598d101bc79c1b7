// Encrypted files, by every verb that reads or writes one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/demo.h"
#include "program.h"
#include "support/temp_dir.h"

namespace tqcache::test {
namespace encryption_cli_test {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class Encryption : public testing::Test {
 protected:
  Encryption() {
    add_key("a.key", std::string(64, 'a'));
    add_key("b.key", std::string(64, 'b'));
  }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  void add_key(const std::string& name, const std::string& text) const {
    write_all(dir_ / name, as_bytes(text + "\n"));
    ASSERT_EQ(::chmod(path(name).c_str(), 0600), 0);
  }
  std::vector<std::string> with_key(std::vector<std::string> args,
                                    const std::string& key = "a.key") const {
    args.insert(args.end(), {"--key-file", path(key)});
    return args;
  }
  // A cache of some tokens, encrypted.
  std::string prefill(const std::string& name) const {
    must(with_key({"prefill", "-m", kModel, "-p", "Once upon a time there was", "-o", path(name)}));
    return path(name);
  }
  json info(const std::string& file, const std::string& key = "a.key") const {
    return json::parse(must(with_key({"info", file, "--json"}, key)).out);
  }
  TempDir dir_;
};

TEST_F(Encryption, HoldsForEveryVerb) {
  const std::string file = prefill("a.tqkv");
  const json facts = info(file);
  EXPECT_EQ(facts["required_features"].get<int>() & 16, 16);
  const std::string key_id = facts["key_id"];
  EXPECT_EQ(key_id.size(), 32u);
  EXPECT_THAT(must(with_key({"info", file})).out, HasSubstr("AES-256-GCM, key " + key_id));

  // Each verb, with its key, and what it writes.
  const std::vector<std::vector<std::string>> verbs = {
      {"verify", file},
      {"verify", file, "-m", kModel},
      {"convert", file, path("c.tqkv")},
      {"convert", file, path("d.tqkv"), "--config", "lossless"},
      {"diff", file, file},
      {"compact", file},
      {"generate", "-m", kModel, "--cache", file, "-n", "3"},
      {"generate", "-m", kModel, "--cache", file, "-n", "3", "--map"},
      {"generate", "-m", kModel, "--cache", file, "-n", "3", "--save", path("e.tqkv")},
      {"generate", "-m", kModel, "--cache", file, "-n", "3", "--append"},
      {"compact", file},
      {"verify", file},
      {"rekey", file, path("f.tqkv")},
  };
  for (const auto& verb : verbs) {
    for (const Output& output : {tqcache(verb), tqcache(with_key(verb, "b.key"))}) {
      EXPECT_EQ(output.exit_code,
                verb[0] == "rekey" && output.err.find("no key:") != std::string::npos ? 2 : 22)
          << verb[0] << ": " << output.err;
      if (output.exit_code == 22) {
        EXPECT_THAT(output.err, HasSubstr(key_id)) << verb[0];
        EXPECT_EQ(std::ranges::count(output.err, '\n'), 1) << output.err;
      }
    }
    must(with_key(verb));
  }
  for (const char* name : {"a.tqkv", "c.tqkv", "d.tqkv", "e.tqkv", "f.tqkv"}) {
    EXPECT_EQ(info(path(name))["key_id"], key_id) << name;
    EXPECT_EQ(tqcache({"info", path(name)}).exit_code, 22) << name;
  }
}

TEST_F(Encryption, TakesTheKeyFromTheEnvironment) {
  const std::string file = prefill("a.tqkv");
  const RunOptions options{.environment = {"TQCACHE_KEY_FILE=" + path("a.key")}};
  EXPECT_EQ(tqcache({"verify", file}, options).exit_code, 0);
  must({"convert", file, path("b.tqkv")}, options);
  EXPECT_EQ(tqcache({"verify", path("b.tqkv")}).exit_code, 22);
  // The flag goes before it.
  EXPECT_EQ(tqcache(with_key({"verify", file}, "b.key"), options).exit_code, 22);
  const Output failed =
      tqcache({"info", file, "--json"}, {.environment = {"TQCACHE_KEY_FILE=" + path("none")}});
  EXPECT_EQ(failed.exit_code, 10);
}

TEST_F(Encryption, SaysInJsonThatAKeyIsMissing) {
  const Output output = tqcache({"info", prefill("a.tqkv"), "--json"});
  EXPECT_EQ(output.exit_code, 22);
  EXPECT_THAT(output.err, HasSubstr("\"code\":\"no_key\""));
}

TEST_F(Encryption, RefusesAKeyThatOthersMayRead) {
  const std::string file = prefill("a.tqkv");
  ASSERT_EQ(::chmod(path("a.key").c_str(), 0644), 0);
  const Output output = tqcache(with_key({"info", file}));
  EXPECT_EQ(output.exit_code, 2);
  EXPECT_THAT(output.err, HasSubstr("chmod 600"));
  EXPECT_THAT(output.err, Not(HasSubstr("aaaa")));
}

TEST_F(Encryption, KeysAreChangedAndTakenAway) {
  const std::string file = prefill("a.tqkv");
  const json before = info(file);
  must({"rekey", file, "--key-file", path("b.key"), "--old-key-file", path("a.key")});
  EXPECT_EQ(tqcache(with_key({"info", file})).exit_code, 22);
  EXPECT_EQ(info(file, "b.key")["content_name"], before["content_name"]);
  // With both keys in a file: the new one encrypts, both decrypt.
  add_key("both.key", std::string(64, 'c') + "\n" + std::string(64, 'b'));
  must({"rekey", file, "--key-file", path("both.key")});
  EXPECT_EQ(tqcache(with_key({"info", file}, "b.key")).exit_code, 22);
  EXPECT_EQ(tqcache(with_key({"info", file}, "both.key")).exit_code, 0);
  must({"rekey", file, path("plain.tqkv"), "--decrypt", "--key-file", path("both.key")});
  EXPECT_EQ(json::parse(must({"info", path("plain.tqkv"), "--json"}).out)["content_name"],
            before["content_name"]);
  must({"rekey", path("plain.tqkv"), "--key-file", path("a.key")});
  EXPECT_EQ(info(path("plain.tqkv"))["content_name"], before["content_name"]);
  EXPECT_EQ(tqcache({"rekey", file}).exit_code, 2);
  EXPECT_EQ(tqcache({"rekey", file, "--decrypt"}).exit_code, 2);
}

// Whoever can write can exchange an encrypted file for a plain one.
TEST_F(Encryption, TellsOfAPlainFileWhereAKeyIsGiven) {
  const std::string plain = path("plain.tqkv");
  must({"prefill", "-m", kModel, "-p", "Once upon a time there was", "-o", plain});
  const std::string sealed = prefill("sealed.tqkv");
  const auto verbs = [&](const std::string& file, const std::string& store) {
    return std::vector<std::vector<std::string>>{
        {"generate", "-m", kModel, "--cache", file, "-n", "2", "-q"},
        {"generate", "-m", kModel, "--cache", file, "-n", "2", "--map"},
        {"chat", "-m", kModel, "--cache", file},
        {"verify", file},
        {"verify", file, "-m", kModel},
        {"info", file},
        {"convert", file, path("out.tqkv"), "-f"},
        {"diff", file, file},
        {"compact", file},
        {"eval", "cache", file, file},
        {"store", "put", file, "--store", "dir:" + path(store), "--name", "a"}};
  };
  const std::string told = "tqcache: warning: " + plain + ": not encrypted, though a key is given";
  for (const auto& verb : verbs(plain, "plain")) {
    SCOPED_TRACE(verb[0]);
    const Output warned = tqcache(with_key(verb));
    EXPECT_EQ(warned.exit_code, 0) << warned.err;
    EXPECT_THAT(warned.err, HasSubstr(told));
    auto strict = with_key(verb);
    strict.push_back("--require-encrypted");
    const Output refused = tqcache(strict);
    EXPECT_EQ(refused.exit_code, 22) << refused.err;
    EXPECT_EQ(refused.err,
              "tqcache: " + plain + ": not encrypted, and --require-encrypted is given\n");
    EXPECT_EQ(refused.out, "");
  }
  for (const auto& verb : verbs(sealed, "sealed")) {
    SCOPED_TRACE(verb[0]);
    auto strict = with_key(verb);
    strict.push_back("--require-encrypted");
    const Output output = tqcache(strict);
    EXPECT_EQ(output.exit_code, 0) << output.err;
    EXPECT_THAT(output.err, Not(HasSubstr("not encrypted")));
  }
  for (const auto& verb : verbs(plain, "none")) {
    EXPECT_THAT(tqcache(verb).err, Not(HasSubstr("not encrypted"))) << verb[0];
  }
  const Output no_key = tqcache({"info", sealed, "--require-encrypted"});
  EXPECT_EQ(no_key.exit_code, 2);
  EXPECT_THAT(no_key.err, HasSubstr("--key-file"));
}

// A file of another program is plain by its nature: it is refused on demand, and no warning.
TEST_F(Encryption, IsNotAskedOfFilesOfOtherPrograms) {
  const std::string slot = path("slot.ggsq");
  must({"prefill", "-m", kModel, "-p", "Once upon a time there was", "-o", path("plain.tqkv")});
  must({"convert", path("plain.tqkv"), slot, "-m", kModel});
  EXPECT_THAT(must(with_key({"info", slot})).err, Not(HasSubstr("not encrypted")));
  for (const std::vector<std::string>& verb : std::vector<std::vector<std::string>>{
           {"info", slot}, {"convert", slot, path("out.tqkv"), "-m", kModel}}) {
    auto strict = with_key(verb);
    strict.push_back("--require-encrypted");
    EXPECT_EQ(tqcache(strict).exit_code, 22) << verb[0];
  }
}

TEST_F(Encryption, RekeyNamesTheFileThatExists) {
  const std::string file = prefill("a.tqkv");
  const std::string out = path("out.tqkv");
  write_all(out, "precious");
  const std::vector<std::string> verb = with_key({"rekey", file, "-o", out, "--decrypt"});
  const Output output = tqcache(verb);
  EXPECT_EQ(output.exit_code, 2);
  EXPECT_EQ(output.err, "tqcache: " + out + ": exists already; -f overwrites it\n");
  EXPECT_EQ(read_all(out).size(), 8u);
  auto forced = verb;
  forced.push_back("-f");
  must(forced);
  must({"verify", out});
  must(with_key({"rekey", out}));  // in place, without -f
  EXPECT_EQ(tqcache({"verify", out}).exit_code, 22);
  EXPECT_EQ(tqcache(with_key({"rekey", file, path("b.tqkv"), "-o", path("c.tqkv")})).exit_code, 2);
}

TEST_F(Encryption, DoesNotAppendPlainly) {
  const std::string plain = path("plain.tqkv");
  must({"prefill", "-m", kModel, "-p", "Once upon a time", "-o", plain});
  const Output output =
      tqcache(with_key({"generate", "-m", kModel, "--cache", plain, "-n", "2", "--append"}));
  EXPECT_EQ(output.exit_code, 2);
  EXPECT_THAT(output.err, HasSubstr("not encrypted"));
  must(with_key({"generate", "-m", kModel, "--cache", plain, "-n", "2"}));  // reading is fine
}

TEST_F(Encryption, MigratesIntoEncryptedFiles) {
  const std::string old = TQCACHE_GOLDEN_V1_FILES "/dense.tqcache";
  must(with_key({"migrate", old, "-o", path("new")}));
  EXPECT_EQ(tqcache({"verify", path("new/dense.tqkv")}).exit_code, 22);
  must(with_key({"verify", path("new/dense.tqkv")}));
}

TEST_F(Encryption, GoesThroughAPipe) {
  const std::string file = prefill("a.tqkv");
  must(with_key({"convert", file, "-"}), {.out_path = path("piped.tqkv")});
  EXPECT_EQ(tqcache({"verify", path("piped.tqkv")}).exit_code, 22);
  must(with_key({"verify", path("piped.tqkv")}));
}

}  // namespace encryption_cli_test
}  // namespace tqcache::test
