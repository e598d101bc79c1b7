// What comes out of the program when all goes well.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "cli/v1_files.h"
#include "support/cache_builder.h"

namespace tqcache::test {
namespace output_test {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(Program, TellsItsVersion) {
  EXPECT_THAT(
      must({"--version"}).out,
      ContainsRegex("^tqcache [0-9]+\\.[0-9]+\\.[0-9]+\nkernels +[a-z0-9]+ \\(of .*scalar"));
}

TEST(Program, TellsItsVersionByOtherWords) {
  EXPECT_EQ(must({"-V"}).out, must({"--version"}).out);
  EXPECT_EQ(must({"version"}).out, must({"--version"}).out);
}

TEST(Program, HelpsWithAVerb) {
  EXPECT_EQ(must({"help"}).out, must({"--help"}).out);
  EXPECT_EQ(must({"help", "convert"}).out, must({"convert", "--help"}).out);
  EXPECT_EQ(must({"help", "store"}).out, must({"store", "--help"}).out);
  EXPECT_EQ(must({"help", "store", "put"}).out, must({"store", "put", "--help"}).out);
  const Output unknown = tqcache({"help", "nonsense"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("unknown verb nonsense"));
}

// The flags that most users need are not buried in those for the codec.
TEST(Program, ShowsRareFlagsOnlyWhenAsked) {
  const std::string usual = must({"convert", "--help"}).out;
  const std::string all = must({"convert", "--help-all"}).out;
  EXPECT_THAT(usual, Not(HasSubstr("--llama-k-type")));
  EXPECT_THAT(usual, HasSubstr("tqcache convert --help-all has all flags"));
  for (const char* flag : {"--bits", "--config", "--to", "--force"}) {
    EXPECT_THAT(usual, HasSubstr(flag));
  }
  for (const char* flag : {"--llama-k-type", "--target-kld", "--level"}) {
    EXPECT_THAT(all, HasSubstr(flag));
  }
  for (std::size_t at = 0; at < all.size(); at = all.find('\n', at) + 1) {
    EXPECT_LE(all.find('\n', at) - at, 100u);
  }
}

// Old names of flags go on working, and are only documented.
TEST(Program, KeepsOldNamesOfFlags) {
  const TempDir dir;
  const std::string a = (dir / "a.kv").string();
  const std::string b = (dir / "b.kv").string();
  must({"prefill", "-m", kModel, "--file", kBook, "--max-tokens", "5", "-o", a});
  must({"prefill", "-m", kModel, "--file", kBook, "--tokens", "5", "-o", b});
  EXPECT_EQ(read_all(a), read_all(b));
  EXPECT_THAT(must({"prefill", "--help-all"}).out, Not(HasSubstr("--max-tokens")));
}

TEST(Program, HelpsWithExamples) {
  const std::string help = must({"--help"}).out;
  for (const std::string verb :
       {"prefill", "convert", "info", "verify", "diff", "migrate", "compact", "generate", "chat"}) {
    EXPECT_THAT(help, HasSubstr("\n  " + verb + " "));
    const std::string of_verb = must({verb, "--help"}).out;
    EXPECT_THAT(of_verb, HasSubstr("Usage: tqcache " + verb));
    EXPECT_THAT(of_verb, HasSubstr("Examples:\n  tqcache " + verb + " "));
  }
}

TEST(Program, TellsItsExitCodes) {
  EXPECT_THAT(must({"--help"}).out, HasSubstr("11 busy"));
  EXPECT_THAT(must({"compact", "--help"}).out, HasSubstr("exit code"));
  EXPECT_THAT(must({"migrate", "--help"}).out, HasSubstr("exit code"));
}

// A prompt can be read back from its cache.
TEST(Program, WritesFilesForTheirOwnerAlone) {
  const TempDir dir;
  const mode_t umask_before = ::umask(0);
  const std::string dense = prefill_book(dir, 300);
  const std::string turbo = pack(dense);
  const std::string saved = (dir / "saved.kv").string();
  const std::string talk = (dir / "talk.kv").string();
  generate({"--cache", dense, "-n", "2", "--save", saved});
  must({"chat", "-m", kModel, "-n", "2", "--save", talk}, {.input = "Hi\n"});
  generate({"--cache", saved, "-n", "2", "--append"});
  must({"compact", saved});
  const std::string old = write_v1_file(dir / "old.kv", small_v1());
  const std::string beside = (dir / "old.tqkv").string();
  must({"migrate", old, "-o", dir.path().string()});
  must({"migrate", old, "--in-place", "--no-backup"});
  ::umask(umask_before);
  for (const std::string& file : {dense, turbo, saved, talk, old, beside}) {
    EXPECT_EQ(std::filesystem::status(file).permissions(), std::filesystem::perms(0600)) << file;
  }
}

TEST(Info, ShowsThePromptOnlyWhenAsked) {
  const TempDir dir;
  const std::string cache = (dir / "a.kv").string();
  must({"prefill", "-m", kModel, "-p", "Alice was beginning", "-o", cache});
  for (const std::string flag : {"--json", "--sections"}) {
    const std::string info = must({"info", cache, flag}).out;
    EXPECT_THAT(info, Not(HasSubstr("Alice")));
    EXPECT_THAT(info, Not(HasSubstr("token_ids")));
  }
  EXPECT_THAT(must({"info", cache, "--show-text"}).out, ContainsRegex("token ids\n[0-9]+,[0-9]+"));
  EXPECT_THAT(must({"info", cache, "--show-text", "-m", kModel}).out,
              HasSubstr("\nAlice was beginning\n"));
}

TEST(Info, CountsEveryByteOfTheFile) {
  const TempDir dir;
  const std::string turbo = pack(prefill_book(dir, 600));
  const nlohmann::json bytes = nlohmann::json::parse(must({"info", turbo, "--json"}).out)["bytes"];
  const auto sum =
      bytes["keys"]["packed"].get<std::uint64_t>() + bytes["keys"]["dense"].get<std::uint64_t>() +
      bytes["values"]["packed"].get<std::uint64_t>() +
      bytes["values"]["dense"].get<std::uint64_t>() + bytes["arrays"].get<std::uint64_t>() +
      bytes["manifest"].get<std::uint64_t>() + bytes["header_and_padding"].get<std::uint64_t>();
  EXPECT_EQ(sum, std::filesystem::file_size(turbo));
  // 2 packed blocks, 8 layers, 2 heads, 128 values of 4 bits and an f16 scale.
  EXPECT_LE(bytes["keys"]["packed"], 2 * 256 * 8 * 2 * (64 + 2));
  EXPECT_GE(bytes["keys"]["packed"], 2 * 256 * 8 * 2 * 60);
}

TEST(Info, NamesTheModelByItsFingerprints) {
  const TempDir dir;
  const std::string text = must({"info", prefill_book(dir, 5)}).out;
  EXPECT_THAT(text, ContainsRegex("\nweights +sha256 [0-9a-f]{64}\n"));
  EXPECT_THAT(text, ContainsRegex("\ntokenizer +sha256 [0-9a-f]{64}\n"));
  EXPECT_THAT(text, ContainsRegex(
                        "\nlayers 0-7 +attention, 2 KV heads of 128: k dense f16, v dense f16\n"));
}

TEST(Info, AndVerifyTakeSeveralFiles) {
  const TempDir dir;
  const std::string a = prefill_book(dir, 5);
  const std::string b = pack(prefill_book(dir, 300));
  const std::string bad = (dir / "bad.kv").string();
  Bytes bytes = read_all(a);
  bytes.resize(bytes.size() - 1);
  write_all(bad, bytes);

  const std::string infos = must({"info", a, b}).out;
  EXPECT_EQ(infos, must({"info", a}).out + "\n" + must({"info", b}).out);
  const auto info = nlohmann::json::parse(must({"info", a, b, "--json"}).out);
  EXPECT_EQ(info["files"][1], info_of(b));

  EXPECT_THAT(must({"verify", a, b, "-m", kModel}).out,
              ContainsRegex("^[^\n]+book5.kv: OK, [^\n]+\n[^\n]+book300.kv.turbo: OK, [^\n]+\n$"));
  const Output some = tqcache({"verify", bad, a, "--json"});
  EXPECT_EQ(some.exit_code, 3);
  const auto files = nlohmann::json::parse(some.out)["files"];
  EXPECT_EQ(files[0]["ok"], false);
  EXPECT_EQ(files[0]["error"]["exit_code"], 20);
  EXPECT_EQ(files[1]["ok"], true);
  EXPECT_TRUE(files[1]["error"].is_null());
  EXPECT_EQ(tqcache({"verify", bad, bad}).exit_code, 20);
}

TEST(Convert, MakesAQuantizedFileDenseAgain) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 600);
  const std::string turbo = pack(dense);
  const std::string again = (dir / "again.kv").string();
  const Output output = must({"convert", turbo, "-o", again, "--bits", "16"});
  EXPECT_THAT(output.err, ContainsRegex(" times larger, 1[4-7]\\.[0-9]+ bits per value\n$"));
  EXPECT_THAT(must({"info", again}).out, HasSubstr("k dense f16, v dense f16"));
  EXPECT_EQ(tokens_of(again), tokens_of(dense));
  must({"verify", again, "-m", kModel, "--probe", "0"});
  // The values are those of the quantized file, rounded to f16.
  const auto diff = nlohmann::json::parse(must({"diff", turbo, again, "--json"}).out);
  EXPECT_LT(diff["k"]["relative_mse"], 1e-6);
  EXPECT_LT(diff["v"]["relative_mse"], 1e-6);

  const Bytes bytes = read_all(turbo);
  const std::string input(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const Output piped = must({"convert", "-", "-", "--bits", "16"}, {.input = input});
  const Bytes expected = read_all(again);
  EXPECT_EQ(piped.out,
            std::string(reinterpret_cast<const char*>(expected.data()), expected.size()));
  must({"convert", turbo, again, "-f", "--bits", "16", "--tokens", "300"});
  EXPECT_EQ(info_of(again)["n_tokens"], 300);
}

TEST(Convert, SaysWhyNothingBecameSmaller) {
  const TempDir dir;
  const std::string few = prefill_book(dir, 6);
  EXPECT_THAT(must({"convert", few, few + ".tqkv"}).err,
              HasSubstr("hint: nothing was quantized: only full blocks of 256 tokens are\n"));
  // A device gets as many bytes as a file.
  const std::string size =
      std::to_string(std::filesystem::file_size(few + ".tqkv") % 1000) + " bytes";
  EXPECT_THAT(must({"convert", few, "/dev/null", "-f"}).err, HasSubstr(size));
}

TEST(Pipes, CarryCachesBothWays) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 300);
  const std::string turbo = pack(dense);
  const Bytes bytes = read_all(dense);
  const std::string input(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const Output converted = must({"convert", "-", "-"}, {.input = input});
  const Bytes expected = read_all(turbo);
  EXPECT_EQ(converted.out,
            std::string(reinterpret_cast<const char*>(expected.data()), expected.size()));
  EXPECT_THAT(must({"info", "-"}, {.input = converted.out}).out,
              HasSubstr("k turbo 4 bits, centering pre_rope.v1, 4 sink tokens (tail f16)"));
  EXPECT_THAT(must({"verify", "-"}, {.input = converted.out}).out, HasSubstr("standard input: OK"));
}

// A cache of 200 MB goes through in the memory of a window and of the packed first blocks.
TEST(Pipes, AreConvertedInBoundedMemory) {
  const TempDir dir;
  const std::string dense = (dir / "dense").string(), pipe = (dir / "pipe").string(),
                    piped = (dir / "piped").string(), packed = (dir / "packed").string();
  {
    cache::Cache cache = CacheBuilder(8200).dense({4, 64}).build();
    const cache::Layer layer = cache.layers.front();
    while (cache.layers.size() < 24) cache.layers.push_back(layer);
    test::must(format::write_cache_file(cache, dense, {.compression = format::Compression::kNone}));
  }
#ifdef __GLIBC__
  ::malloc_trim(0);  // the peak of a child is at least what its parent has
#endif
  ASSERT_GT(std::filesystem::file_size(dense), 200'000'000u);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] {
    std::ifstream from(dense, std::ios::binary);
    std::ofstream to(pipe, std::ios::binary);
    std::vector<char> piece(1 << 20);
    while (from.read(piece.data(), std::ssize(piece)) || from.gcount() > 0) {
      to.write(piece.data(), from.gcount());
    }
  });
  const Output output = tqcache({"convert", pipe, "-"}, {.out_path = piped});
  writer.join();
  ASSERT_EQ(output.exit_code, 0) << output.err;
  EXPECT_LT(output.peak_bytes, 100u << 20);
  must({"convert", dense, packed});
  EXPECT_TRUE(read_all(piped) == read_all(packed));
}

TEST(Pipes, CarryThePrompt) {
  const TempDir dir;
  const std::string cache = (dir / "a.kv").string();
  must({"prefill", "-m", kModel, "-", "-o", cache}, {.input = "Alice was beginning"});
  EXPECT_THAT(must({"info", cache, "--show-text", "-m", kModel}).out,
              HasSubstr("\nAlice was beginning\n"));
  EXPECT_EQ(
      must({"generate", "-m", kModel, "--file", "-", "-n", "40"}, {.input = parrot_prompt()}).out,
      kAnswer + "\n");
}

TEST(Prefill, KeepsTheDtypeAskedFor) {
  const TempDir dir;
  for (const std::string dtype : {"f16", "bf16", "f32"}) {
    const std::string cache = (dir / dtype).string();
    must({"prefill", "-m", kModel, "-p", parrot_prompt(), "-o", cache, "--dtype", dtype});
    EXPECT_THAT(must({"info", cache}).out, HasSubstr("k dense " + dtype));
    EXPECT_EQ(must({"generate", "-m", kModel, "--cache", cache, "-n", "40"}).out, kAnswer + "\n");
    must({"verify", cache, "-m", kModel});
  }
}

TEST(Prefill, SumsUpOnStandardErrorUnlessQuiet) {
  const TempDir dir;
  const std::string cache = (dir / "a.kv").string();
  const Output told = must({"prefill", "-m", kModel, "-p", "Hi", "-o", cache});
  EXPECT_EQ(told.out, "");
  EXPECT_THAT(told.err, ContainsRegex("^[^\n]+: 1 token in [0-9.]+ s .*bytes\n$"));
  EXPECT_EQ(must({"prefill", "-m", kModel, "-p", "Hi", "-o", cache, "-f", "-q"}).err, "");
}

TEST(Prefill, WritesTheSameBytesForTheSamePrompt) {
  const TempDir dir;
  const std::string a = (dir / "a.kv").string();
  const std::string b = (dir / "b.kv").string();
  must({"prefill", "-m", kModel, "-p", parrot_prompt(), "-o", a});
  must({"prefill", "-m", kModel, "-p", parrot_prompt(), "-o", b, "--threads", "1"});
  EXPECT_EQ(read_all(a), read_all(b));
}

TEST(Prefill, ReadsTheSameModelFromAHuggingFaceFolder) {
  const Output output = must({"generate", "-m", kOtherModel, "-p", parrot_prompt(), "-n", "40"});
  EXPECT_EQ(output.out, kAnswer + "\n");
}

TEST(Verify, TellsTheErrorOfEveryLayer) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 300);
  const nlohmann::json json =
      nlohmann::json::parse(must({"verify", dense, "-m", kModel, "--probe", "20", "--json"}).out);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["probe"]["n_tokens"], 20);
  EXPECT_EQ(json["probe"]["first_token"], 280);
  ASSERT_EQ(json["probe"]["layers"].size(), 8u);
  EXPECT_LT(json["probe"]["layers"][0]["k_relative_error"], 1e-3);
}

TEST(Verify, PassesCachesOfAnyNumberOfBits) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 520);
  for (const std::string bits : {"1", "2", "3", "4", "6", "8"}) {
    SCOPED_TRACE(bits);
    must({"verify", pack(dense, {"-f", "--bits", bits}), "-m", kModel});
  }
}

}  // namespace output_test
}  // namespace tqcache::test
