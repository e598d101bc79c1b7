// Wrong inputs: one clear line, the right exit code, and nothing left behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "cache/random_cache.h"
#include "cli/demo.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace refusals_test {

namespace fs = std::filesystem;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// What every refusal looks like: no result, one line that begins with our name.
void expect_refusal(const Output& output, int exit_code, const std::string& begins) {
  EXPECT_EQ(output.exit_code, exit_code) << output.err;
  EXPECT_EQ(output.out, "");
  EXPECT_THAT(output.err, StartsWith("tqcache: " + begins));
  EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
}

// A small cache file that needs no model: two blocks and a tail.
std::string write_cache(const fs::path& path, const cache::Cache& cache = random_cache(1, 600)) {
  const Result<void> written = format::write_cache_file(
      cache, path, {.compression = format::Compression::kNone, .overwrite = Overwrite::kAllow});
  if (!written) throw std::runtime_error(written.error().message);
  return path.string();
}

// By every verb that reads a cache file.
void expect_all_readers_refuse(const std::string& file, int exit_code) {
  const TempDir dir;
  for (std::vector<std::string> args : {std::vector<std::string>{"info", file},
                                        {"verify", file},
                                        {"diff", file, file},
                                        {"convert", file, (dir / "out.kv").string()},
                                        {"chat", "-m", kModel, "--cache", file},
                                        {"generate", "-m", kModel, "-n", "1", "--cache", file}}) {
    SCOPED_TRACE(args.front());
    expect_refusal(tqcache(args), exit_code, file + ": ");
    EXPECT_EQ(dir.entry_count(), 0u);
  }
}

TEST(Refusals, MissingFile) {
  const TempDir dir;
  expect_all_readers_refuse((dir / "none.kv").string(), 10);
}

TEST(Refusals, Folder) {
  const TempDir dir;
  expect_all_readers_refuse(dir.path().string(), 1);
}

TEST(Refusals, EmptyFile) {
  const TempDir dir;
  write_all(dir / "empty.kv", "");
  expect_all_readers_refuse((dir / "empty.kv").string(), 20);
}

// What is clearly something else is not a damaged cache.
TEST(Refusals, OtherFiles) {
  expect_all_readers_refuse(kBook, 21);
  expect_all_readers_refuse(kModel, 21);
  EXPECT_THAT(tqcache({"info", kBook}).err, HasSubstr(": this is text, not a cache\n"));
  EXPECT_THAT(tqcache({"info", kModel}).err,
              HasSubstr(": this is a GGUF model (--model takes it), not a cache\n"));
  const TempDir dir;
  write_all(dir / "a.kv", std::string("\x28\xb5\x2f\xfd\x01\x02", 6));
  EXPECT_THAT(tqcache({"verify", (dir / "a.kv").string()}).err,
              HasSubstr("this is data compressed by zstd, not a cache"));
  write_all(dir / "b.kv", std::string("\x01\x02\x03", 3));  // may have been anything
  EXPECT_EQ(tqcache({"verify", (dir / "b.kv").string()}).exit_code, 20);
}

TEST(Refusals, CutFile) {
  const TempDir dir;
  const std::string file = write_cache(dir / "a.kv");
  fs::resize_file(file, fs::file_size(file) - 1);
  expect_all_readers_refuse(file, 20);
}

TEST(Refusals, FlippedByteInASection) {
  const TempDir dir;
  const std::string file = write_cache(dir / "a.kv");
  const nlohmann::json info =
      nlohmann::json::parse(must({"info", file, "--sections", "--json"}).out);
  Bytes bytes = read_all(file);
  bytes[info["sections"][1]["file_offset"].get<std::size_t>() + 5] ^= std::byte{1};
  write_all(file, bytes);
  const Output output = tqcache({"convert", file, (dir / "out.kv").string()});
  expect_refusal(output, 20, file + ": section 1 (layer 0 ");
  EXPECT_EQ(dir.entry_count(), 1u);
}

TEST(Refusals, VerifyTellsOfEveryDamage) {
  const TempDir dir;
  const std::string file = write_cache(dir / "a.kv");
  const nlohmann::json info =
      nlohmann::json::parse(must({"info", file, "--sections", "--json"}).out);
  Bytes bytes = read_all(file);
  for (const std::size_t section : {1u, 3u}) {
    bytes[info["sections"][section]["file_offset"].get<std::size_t>()] ^= std::byte{0x80};
  }
  write_all(file, bytes);
  const Output output = tqcache({"verify", file, "--json"});
  EXPECT_EQ(output.exit_code, 20);
  EXPECT_THAT(output.err, HasSubstr("tqcache: " + file + ": section 1 (layer 0 "));
  EXPECT_THAT(output.err, HasSubstr("tqcache: " + file + ": section 3 (layer 1 "));
  const nlohmann::json json = nlohmann::json::parse(output.out);
  EXPECT_EQ(json["ok"], false);
  EXPECT_GE(json["damage"].size(), 2u);
}

// Every byte of a file belongs to something that is checked.
TEST(Refusals, VerifyFindsAFlippedByteAnywhere) {
  const TempDir dir;
  const std::string file = write_cache(dir / "a.kv", random_cache(1, 3));
  const Bytes good = read_all(file);
  for (std::size_t i = 0; i < 40; ++i) {
    Bytes bytes = good;
    bytes[i * (good.size() - 1) / 39] ^= std::byte{0x10};
    write_all(file, bytes);
    const int code = tqcache({"verify", file}).exit_code;
    EXPECT_TRUE(code == 20 || code == 21) << "byte " << i * (good.size() - 1) / 39 << ": " << code;
  }
}

TEST(Refusals, ConvertNamesTheValueThatIsNotFinite) {
  const TempDir dir;
  cache::Cache cache = random_cache(1, 600, Dtype::kF32);
  auto& tensor = std::get<cache::DenseTensor>(attention(cache, 1).v);
  const std::vector<float> row(64, std::numeric_limits<float>::quiet_NaN());
  store_f32(Dtype::kF32, row, tensor.blocks[0].data() + std::size_t{7} * 64 * sizeof(float));
  const std::string file = write_cache(dir / "nan.kv", cache);
  const Output output = tqcache({"convert", file, (dir / "out.kv").string()});
  expect_refusal(output, 20, file + ": layer 1 v");
  EXPECT_THAT(output.err, HasSubstr("token 7"));
  EXPECT_EQ(tqcache({"verify", file}).exit_code, 20);
  EXPECT_EQ(dir.entry_count(), 1u);
}

// The bundled model with its last weight changed.
std::string write_changed_model(const TempDir& dir) {
  Bytes model = read_all(kModel);
  model.back() ^= std::byte{1};
  const std::string path = (dir / "changed.gguf").string();
  write_all(path, model);
  return path;
}

TEST(Refusals, CacheOfAnotherModelNamesBothFingerprints) {
  const TempDir dir;
  const std::string cache = prefill_book(dir, 20);
  const nlohmann::json info = nlohmann::json::parse(must({"info", cache, "--json"}).out);
  const std::string fingerprint = info["identity"]["weights_fingerprint"];
  for (const std::string& model : {write_changed_model(dir), kOtherModel}) {
    for (const std::vector<std::string>& args :
         {std::vector<std::string>{"generate", "-m", model, "-n", "1", "--cache", cache},
          {"chat", "-m", model, "--cache", cache},
          {"verify", cache, "-m", model}}) {
      const Output output = tqcache(args);
      expect_refusal(output, 22, cache + ": ");
      EXPECT_THAT(output.err, HasSubstr(fingerprint));
      EXPECT_THAT(output.err, ContainsRegex("model [0-9a-f]{64}"));
    }
  }
}

// The bundled model with another number in its metadata; its weights are the same.
std::string write_model_with_epsilon(const TempDir& dir, float epsilon) {
  Bytes model = read_all(kModel);
  const std::string key = "qwen3.attention.layer_norm_rms_epsilon";
  const auto found =
      std::search(model.begin(), model.end(), as_bytes(key).begin(), as_bytes(key).end());
  if (found == model.end()) throw std::runtime_error("no epsilon in the model");
  std::memcpy(&*found + key.size() + 4, &epsilon, sizeof(epsilon));  // after the type
  const std::string path = (dir / "epsilon.gguf").string();
  write_all(path, model);
  return path;
}

TEST(Refusals, CacheOfAModelWithAnotherConfiguration) {
  const TempDir dir;
  const std::string cache = prefill_book(dir, 20);
  const std::string model = write_model_with_epsilon(dir, 0.5f);
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"generate", "-m", model, "-n", "1", "--cache", cache},
        {"chat", "-m", model, "--cache", cache},
        {"verify", cache, "-m", model, "--probe", "0"}}) {
    const Output output = tqcache(args);
    expect_refusal(output, 22, cache + ": ");
    EXPECT_THAT(output.err, HasSubstr("fingerprint of configuration and weights"));
  }
  // A store has nothing of the other model.
  const std::string url = "dir:" + (dir / "store").string();
  const std::string prompt = (dir / "prompt.txt").string();
  std::ofstream(prompt) << book_text(2000);
  const auto reused = [&](const std::string& of) -> int {
    const Output output =
        must({"generate", "-m", of, "--file", prompt, "-n", "1", "--store", url, "--json"});
    return nlohmann::json::parse(output.out)["store"]["reused_tokens"];
  };
  EXPECT_EQ(reused(kModel), 0);
  EXPECT_EQ(reused(model), 0);
  EXPECT_GT(reused(kModel), 0);
}

// Files of older versions have no fingerprint of the configuration. They are used, and verify says
// what it could not compare.
TEST(Refusals, OlderFilesAreComparedByWhatTheyHave) {
  const TempDir dir;
  const std::string file = prefill_book(dir, 40);
  EXPECT_EQ(
      nlohmann::json::parse(must({"info", file, "--json"}).out)["identity"]["fingerprint_version"],
      2);
  EXPECT_THAT(must({"verify", file, "-m", kModel}).out, Not(HasSubstr("may differ")));
  cache::Cache cache = format::read_cache(*open_file(file).value()).value();
  cache.identity.model_fingerprint.reset();
  write_cache(file, cache);
  EXPECT_THAT(must({"verify", file, "-m", kModel}).out,
              HasSubstr("fingerprints match (the file has none of the configuration"));
  const auto info = nlohmann::json::parse(must({"info", file, "--json"}).out);
  EXPECT_EQ(info["identity"]["fingerprint_version"], 1);
  EXPECT_TRUE(info["identity"]["model_fingerprint"].is_null());
  EXPECT_THAT(must({"info", file}).out, HasSubstr("version 1"));
  must({"generate", "-m", kModel, "-n", "1", "--cache", file});
}

// A file must not choose how exactly it is compared.
TEST(Refusals, VerifyChoosesTheLimitOfTheProbe) {
  const TempDir dir;
  const std::string file = prefill_book(dir, 40);
  cache::Cache cache = format::read_cache(*open_file(file).value()).value();
  auto& values = std::get<cache::DenseTensor>(attention(cache, 2).v);
  for (AlignedBytes& block : values.blocks) {
    std::vector<float> rows(block.size() / dtype_size(values.dtype));
    load_f32(values.dtype, block.data(), rows);
    for (float& value : rows) value *= 1.3f;
    store_f32(values.dtype, rows, block.data());
  }
  for (const char* origin : {"tqcache", "mlx-lm", "evil (quantized)"}) {
    cache.identity.source_format = origin;
    write_cache(file, cache);
    expect_refusal(tqcache({"verify", file, "-m", kModel}), 22, file + ": layer 2 v: ");
  }
  must({"verify", file, "-m", kModel, "--limit", "0.7"});
}

// A cache that claims to be of the model but holds other values: only the probe can tell.
TEST(Refusals, VerifyProbesTheValues) {
  const TempDir dir;
  const std::string file = prefill_book(dir, 40);
  cache::Cache cache = format::read_cache(*open_file(file).value()).value();
  std::swap(attention(cache, 2).v, attention(cache, 3).v);
  write_cache(file, cache);
  must({"verify", file});
  const Output output = tqcache({"verify", file, "-m", kModel});
  expect_refusal(output, 22, file + ": layer 2 v: ");
}

TEST(Refusals, MissingOrBrokenModel) {
  const TempDir dir;
  expect_refusal(tqcache({"generate", "-m", "/nonexistent", "-p", "Hi", "-n", "1"}), 10,
                 "/nonexistent: ");
  expect_refusal(tqcache({"generate", "-m", kBook, "-p", "Hi", "-n", "1"}), 21, kBook + ": ");
  const std::string cut = (dir / "cut.gguf").string();
  fs::copy_file(kModel, cut);
  fs::resize_file(cut, 1'000'000);
  expect_refusal(tqcache({"generate", "-m", cut, "-p", "Hi", "-n", "1"}), 20, cut + ": ");
}

TEST(Refusals, UnknownVerb) {
  expect_refusal(tqcache({"convret", "a", "b"}), 2, "unknown verb convret, did you mean convert?");
  expect_refusal(tqcache({"gen"}), 2, "unknown verb gen, did you mean generate?");
  expect_refusal(tqcache({"xyzzy"}), 2, "unknown verb xyzzy, see tqcache --help");
  expect_refusal(tqcache({"--frobnicate"}), 2, "unknown flag --frobnicate");
  expect_refusal(tqcache({}), 2, "no verb, see tqcache --help");
}

TEST(Refusals, UnknownFlag) {
  expect_refusal(tqcache({"convert", "a", "b", "--bist", "4"}), 2,
                 "unknown flag --bist, did you mean --bits?");
  expect_refusal(tqcache({"info", "--frobnicate"}), 2, "unknown flag --frobnicate (see");
  expect_refusal(tqcache({"diff", "a", "b", "c"}), 2, "unexpected argument c");
}

TEST(Refusals, FlagsOfOtherProgramsAndWithOneDash) {
  expect_refusal(tqcache({"generate", "-m", kModel, "-p", "x", "--n-predict", "4"}), 2,
                 "unknown flag --n-predict, did you mean --max-new-tokens?");
  expect_refusal(tqcache({"generate", "-m", kModel, "-p", "x", "--max-tokens", "4"}), 2,
                 "unknown flag --max-tokens, did you mean --max-new-tokens?");
  expect_refusal(tqcache({"convert", "a", "b", "-bits", "4"}), 2,
                 "unknown flag -bits, did you mean --bits?");
  expect_refusal(tqcache({"info", "a", "-s", "3"}), 2, "unknown flag -s (see");
  expect_refusal(tqcache({"--verison"}), 2, "unknown flag --verison, did you mean --version?");
}

TEST(Refusals, NumbersThatAreTooLarge) {
  expect_refusal(tqcache({"generate", "-m", kModel, "-p", "x", "-n", "99999999999999999999"}), 2,
                 "--max-new-tokens: 99999999999999999999 is not a whole number");
  const TempDir dir;
  const std::string cache = write_cache(dir / "a.kv");
  expect_refusal(tqcache({"convert", cache, "b.kv", "--config", "archive", "--bits", "20"}), 2,
                 cache + ": 20 bits per value is not between 1 and 8\n");
}

// Before any work is done: the model does not exist.
TEST(Refusals, AWriteLimitThatIsNoSizeWithAPeriod) {
  if (tqcache({"serve", "--help-all"}).out.find("--max-write") == std::string::npos) GTEST_SKIP();
  const TempDir dir;
  const auto serve = [&](const std::string& limit) {
    return tqcache({"serve", "--upstream", "http://127.0.0.1:1", "--slot-dir", dir.path(),
                    "--store", "dir:" + (dir / "store").string(), "--max-write", limit});
  };
  for (const std::string limit : {"40G", "40G/week", "/day", "x/day", "40G/", "40G/day/day",
                                  "-1G/day", "40G /day", "99999999T/day"}) {
    expect_refusal(serve(limit), 2, "--max-write: " + limit + " is not a size with a period");
  }
  expect_refusal(serve("0/hour"), 2, "--max-write: with 0 bytes no prompt would be kept");
  expect_refusal(tqcache({"serve", "-m", kModel, "--max-write", "1G/day"}), 2,
                 "--max-write needs --upstream");
  expect_refusal(tqcache({"serve", "--upstream", "http://127.0.0.1:1", "--max-write", "1G/day"}), 2,
                 "--max-write needs --slot-dir");
}

TEST(Refusals, ABenchThatQuantizesNothing) {
  expect_refusal(tqcache({"bench", "-m", "/nonexistent", "--prompt-tokens", "100",
                          "--generation-tokens", "4"}),
                 2, "--prompt-tokens and --generation-tokens: 104 tokens in all");
}

TEST(Refusals, MissingFlag) {
  expect_refusal(tqcache({"prefill", "-p", "Hi", "-o", "a.kv"}), 2, "--model is required");
  expect_refusal(tqcache({"prefill", "-m", kModel, "-o", "a.kv"}), 2, "no prompt: ");
  expect_refusal(tqcache({"generate", "-m", kModel, "-n", "1"}), 2, "no input");
}

TEST(Refusals, ValueOutOfRange) {
  const std::vector<std::vector<std::string>> lines = {
      {"convert", "a", "b", "--bits", "9"},
      {"convert", "a", "b", "--bits", "0"},
      {"convert", "a", "b", "--bits", "12,4"},
      {"convert", "a", "b", "--bits", "four"},
      {"convert", "a", "b", "--level", "20"},
      {"convert", "a", "b", "--compress", "gzip"},
      {"prefill", "-m", kModel, "-p", "Hi", "-o", "a.kv", "--dtype", "f64"},
      {"prefill", "-m", kModel, "-p", "Hi", "-o", "a.kv", "--max-tokens", "0"},
      {"prefill", "-m", kModel, "-p", "", "-o", "-"},
      {"prefill", "-m", kModel, "-p", "Hi", "--ids", "1", "-o", "-"},
      {"generate", "-m", kModel, "-p", "Hi", "-n", "0"},
      {"generate", "-m", kModel, "--ids", "8192", "-n", "1"},
      {"generate", "-m", kModel, "--ids", "-1", "-n", "1"},
      {"generate", "-m", kModel, "--ids", "1,,2", "-n", "1"},
      {"generate", "-m", kModel, "-p", "Hi", "-n", "1", "--temperature", "nan"},
      {"generate", "-m", kModel, "-p", "Hi", "-n", "1", "--top-p", "1.5"},
      {"generate", "-m", kModel, "-p", "Hi", "-n", "1", "--threads", "-1"},
      {"generate", "-m", kModel, "-p", "Hi", "-n", "1", "--cache", ""},
      {"verify", "a", "--probe", "-1"},
  };
  for (const std::vector<std::string>& line : lines) {
    SCOPED_TRACE(testing::PrintToString(line));
    expect_refusal(tqcache(line), 2, "");
  }
}

TEST(Refusals, PromptThatIsNotText) {
  const TempDir dir;
  const std::string file = (dir / "latin1.txt").string();
  write_all(file, "caf\xe9");
  expect_refusal(tqcache({"generate", "-m", kModel, "--file", file, "-n", "1"}), 21, file + ": ");
  expect_refusal(tqcache({"generate", "-m", kModel, "--file", "/nonexistent.txt", "-n", "1"}), 10,
                 "/nonexistent.txt: ");
}

TEST(Refusals, PromptBeyondTheContext) {
  const TempDir dir;
  std::string ids = "5";
  for (int i = 0; i < 16384; ++i) ids += ",5";
  const std::string out = (dir / "a.kv").string();
  const Output output = tqcache({"prefill", "-m", kModel, "--ids", ids, "-o", out});
  expect_refusal(output, 2,
                 "the prompt has 16,385 tokens, the context of the model 16,384; "
                 "--tokens 16384 takes the first");
  expect_refusal(tqcache({"generate", "-m", kModel, "--ids", ids, "-n", "1"}), 2,
                 "the prompt has 16,385 tokens, and 16,384 of the 16,384 that the model's context "
                 "holds are free");
  EXPECT_EQ(dir.entry_count(), 0u);
}

TEST(Refusals, FullDisk) {
  const TempDir dir;
  const std::string cache = write_cache(dir / "a.kv");
  expect_refusal(tqcache({"convert", cache, "/dev/full", "-f"}), 1, "/dev/full: ");
  const Output full = tqcache({"info", cache}, {.out_path = "/dev/full"});
  expect_refusal(full, 1, "standard output: No space left on device");
}

TEST(Refusals, ReaderThatWentAway) {
  const TempDir dir;
  const std::string cache = write_cache(dir / "a.kv");
  const Output output = tqcache({"info", cache}, {.out_closed = true});
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_EQ(output.err, "");
}

TEST(Refusals, UnwritableFolder) {
  const TempDir dir;
  const std::string cache = write_cache(dir / "a.kv");
  for (const std::string out : {"/nonexistent/out.kv", "/proc/out.kv"}) {
    const Output output = tqcache({"convert", cache, out});
    expect_refusal(output, output.exit_code == 10 ? 10 : 1, out + ": ");
    // Before any work is done.
    expect_refusal(tqcache({"prefill", "-m", "/no-model", "-p", "Hi", "-o", out}), output.exit_code,
                   out + ": ");
  }
}

TEST(Refusals, ExistingFileUnlessForced) {
  const TempDir dir;
  const std::string cache = write_cache(dir / "a.kv");
  const std::string out = (dir / "out.kv").string();
  write_all(out, "precious");
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"convert", cache, out},
        {"convert", cache, "-o", out},
        {"eval", "cache", cache, cache, "--html", out},
        {"store", "get", "a", "-o", out, "--store", "dir:" + dir.path().string()}}) {
    const Output output = tqcache(args);
    expect_refusal(output, 2, out + ": ");
    EXPECT_THAT(output.err, HasSubstr("; -f overwrites it\n"));
  }
  EXPECT_EQ(read_all(out).size(), 8u);
  must({"convert", cache, out, "-f"});
  must({"verify", out});
  EXPECT_EQ(dir.entry_count(), 2u);
}

TEST(Refusals, SymbolicLinkAsOutput) {
  const TempDir dir;
  const std::string cache = write_cache(dir / "a.kv");
  write_all(dir / "target", "precious");
  fs::create_symlink(dir / "target", dir / "link");
  const std::string link = (dir / "link").string();
  const Output output = tqcache({"convert", cache, link, "-f"});
  EXPECT_NE(output.exit_code, 0);
  EXPECT_THAT(output.err, StartsWith("tqcache: " + link + ": "));
  EXPECT_EQ(read_all(dir / "target").size(), 8u);
}

TEST(Refusals, ControlCharactersInANameAreEscaped) {
  expect_refusal(tqcache({"info", "/tmp/a\nb\x1b[31m"}), 10, "/tmp/a\\x0ab\\x1b[31m: ");
  // C1 as one byte and as two, a reversed name, and letters that stay.
  expect_refusal(tqcache({"info",
                          "/tmp/a\x9b"
                          "31m\xc2\x9b"
                          "2J"}),
                 10, "/tmp/a\\x9b31m\\xc2\\x9b2J: ");
  expect_refusal(tqcache({"info", "/tmp/\xe2\x80\xaevkqt\xe2\x81\xa6"}), 10,
                 "/tmp/\\xe2\\x80\\xaevkqt\\xe2\\x81\\xa6: ");
  expect_refusal(tqcache({"info", "/tmp/\xc3\xa9\xe4\xb8\xad"}), 10, "/tmp/\xc3\xa9\xe4\xb8\xad: ");
}

TEST(Refusals, ControlCharactersAreEscapedInGoodNewsToo) {
  const TempDir dir;
  const std::string cache = write_cache(dir / "a\n\x1b[31m.kv");
  EXPECT_THAT(must({"verify", cache}).out, HasSubstr("a\\x0a\\x1b[31m.kv: OK"));
  EXPECT_THAT(must({"compact", cache}).err, HasSubstr("a\\x0a\\x1b[31m.kv: no dead space"));
}

// They would be .tqkv files that the other program refuses.
TEST(Refusals, NamesOfOtherProgramsFilesAsOutput) {
  const TempDir dir;
  const std::string cache = write_cache(dir / "a.kv");
  for (const std::string name : {"x.bin", "x.gguf", "x.pt", "x.pth", "x.safetensors"}) {
    const std::string out = (dir / name).string();
    const Output output = tqcache({"convert", cache, out});
    EXPECT_EQ(output.exit_code, 2);
    EXPECT_THAT(output.err, HasSubstr(out + ": "));
    EXPECT_THAT(output.err, HasSubstr("--to "));
    EXPECT_FALSE(fs::exists(out));
  }
  must({"convert", cache, (dir / "x.bin").string(), "--to", "tqkv"});
  must({"verify", (dir / "x.bin").string()});
}

TEST(Refusals, AreJsonObjectsWhenAsked) {
  const auto error_of = [](const std::vector<std::string>& args) {
    return nlohmann::json::parse(tqcache(args).err);  // and nothing else
  };
  const nlohmann::json missing = error_of({"info", "/nonexistent", "--json"});
  EXPECT_EQ(missing["schema"], 1);
  EXPECT_EQ(missing["error"]["code"], "not_found");
  EXPECT_EQ(missing["error"]["exit_code"], 10);
  EXPECT_EQ(missing["error"]["file"], "/nonexistent");
  EXPECT_EQ(error_of({"info", kBook, "--json"})["error"]["exit_code"], 21);
  const nlohmann::json usage = error_of({"info", "--frobnicate", "--json"});
  EXPECT_EQ(usage["error"]["code"], "invalid_argument");
  EXPECT_EQ(usage["error"]["exit_code"], 2);
  EXPECT_TRUE(usage["error"]["file"].is_null());
}

}  // namespace refusals_test
}  // namespace tqcache::test
