// Caches of other programs at the command line: in and out, known by their content, and refused
// when they are not of the model that is given.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "cli/demo.h"
#include "interop/turbomlx_builder.h"
#include "model/tiny_files.h"
#include "support/cache_builder.h"
#include "tqcache/decoder.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/hf/hf.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace interop_test {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr int kTokens = 300;

const std::string kFixtures = TQCACHE_TEST_DATA "/llama.cpp/";

std::string write_ids(const TempDir& dir, const std::vector<std::int32_t>& ids) {
  const std::string path = (dir / "ids.json").string();
  write_all(path, std::string_view(json(ids).dump()));
  return path;
}

// No key and no value differs.
void expect_same_values(const std::string& a, const std::string& b) {
  const json diff = json::parse(must({"diff", a, b, "--json"}).out);
  EXPECT_EQ(diff["k"]["max_abs"], 0);
  EXPECT_EQ(diff["v"]["max_abs"], 0);
}

struct Program {
  std::string to;    // of --to
  std::string kind;  // as info names it
  bool has_tokens = false;
  bool needs_model = false;
};

std::ostream& operator<<(std::ostream& out, const Program& program) { return out << program.to; }

class Programs : public testing::TestWithParam<Program> {
 protected:
  std::string file_of(const std::string& cache) const {
    const std::string path = (dir_ / "other.bin").string();
    std::vector<std::string> args = {"convert", cache, path, "--to", GetParam().to};
    if (GetParam().needs_model) args.insert(args.end(), {"-m", kModel});
    must(args);
    return path;
  }
  // A dense .tqkv file of another program's.
  std::string cache_of(const std::string& file, const std::vector<std::int32_t>& ids) const {
    const std::string path = (dir_ / "back.tqkv").string();
    std::vector<std::string> args = {"convert", file, path, "-m", kModel, "--bits", "16"};
    if (!GetParam().has_tokens) args.insert(args.end(), {"--ids", write_ids(dir_, ids)});
    must(args);
    return path;
  }
  TempDir dir_;
};

TEST_P(Programs, GiveBackWhatTheyWereGiven) {
  const std::string dense = prefill_book(dir_, kTokens);
  const std::string back = cache_of(file_of(dense), tokens_of(dense));
  expect_same_values(dense, back);
  EXPECT_EQ(tokens_of(back), tokens_of(dense));
  EXPECT_EQ(info_of(back)["identity"]["weights_fingerprint"],
            info_of(dense)["identity"]["weights_fingerprint"]);
  must({"verify", back, "-m", kModel});
  EXPECT_EQ(generate_ids({"--cache", back, "-n", "4"}),
            generate_ids({"--cache", dense, "-n", "4"}));
}

TEST_P(Programs, AreNamedByInfo) {
  const std::string file = file_of(prefill_book(dir_, kTokens));
  std::vector<std::string> flags;
  if (GetParam().needs_model) flags = {"-m", kModel};
  const json info = info_of(file, flags);
  EXPECT_EQ(info["kind"], GetParam().kind);
  EXPECT_EQ(info["n_tokens"], kTokens);
  EXPECT_EQ(info["layers"].size(), 1u);
  flags.insert(flags.begin(), {"info", file});
  EXPECT_THAT(must(flags).out, HasSubstr(GetParam().kind));
}

TEST_P(Programs, GetWhatPackedTokensDecodeTo) {
  const std::string turbo = pack(prefill_book(dir_, kTokens));
  const std::string back = cache_of(file_of(turbo), tokens_of(turbo));
  const json diff = json::parse(must({"diff", turbo, back, "--json"}).out);
  EXPECT_LT(diff["k"]["relative_mse"], 1e-6);  // rounded to f16
  EXPECT_LT(diff["v"]["relative_mse"], 1e-6);
}

TEST_P(Programs, MayBeCutToTheirFirstTokens) {
  const std::string dense = prefill_book(dir_, kTokens);
  const std::vector<std::int32_t> ids = tokens_of(dense);
  const std::string part = (dir_ / "part.tqkv").string();
  std::vector<std::string> args = {"convert", file_of(dense), part,       "-m", kModel,
                                   "--bits",  "16",           "--tokens", "100"};
  if (!GetParam().has_tokens) args.insert(args.end(), {"--ids", write_ids(dir_, ids)});
  must(args);
  EXPECT_EQ(tokens_of(part), std::vector<std::int32_t>(ids.begin(), ids.begin() + 100));
}

INSTANTIATE_TEST_SUITE_P(
    All, Programs,
    testing::Values(Program{"mlx-lm", "mlx-lm prompt cache", false, false},
                    Program{"hf", "Hugging Face cache (tqcache-hf-1)", true, false},
                    Program{"npz", "NumPy cache (tqcache-npz-1)", true, false},
                    Program{"llama-session", "llama.cpp state file", true, true},
                    Program{"llama-seq", "llama.cpp state file", true, true}),
    [](const auto& each) {
      std::string name = each.param.to;
      std::ranges::replace(name, '-', '_');
      return name;
    });

// --- files that llama.cpp itself wrote

class LlamaFixture : public testing::TestWithParam<std::string> {
 protected:
  std::string path() const { return kFixtures + GetParam(); }
  json expected() const {
    std::ifstream file(kFixtures + GetParam().substr(0, GetParam().rfind('.')) + ".json");
    return json::parse(file);
  }
  TempDir dir_;
};

TEST_P(LlamaFixture, IsGoneOnFromAsLlamaCppGoesOn) {
  const std::string cache = (dir_ / "a.tqkv").string();
  must({"convert", path(), cache, "-m", kOtherModel, "--bits", "16"});
  const json told = expected();
  EXPECT_EQ(tokens_of(cache), told["saved_tokens"].get<std::vector<std::int32_t>>());
  const json answer =
      json::parse(must({"generate", "-m", kOtherModel, "--json", "--cache", cache, "--ids",
                        std::to_string(told["next_token_fed_at_pos_511"].get<int>()), "-n", "33"})
                      .out);
  EXPECT_EQ(answer["token_ids"], told["greedy_33"]);
}

INSTANTIATE_TEST_SUITE_P(All, LlamaFixture, testing::Values("alice_f16.ggsn", "alice_f16.ggsq"),
                         [](const auto& each) {
                           std::string name = each.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

// llama.cpp goes on with keys, values and queries rounded to q8_0, which this decoder does not: so
// each of its tokens is looked at after those before it, and may be second by less than rounding.
TEST(LlamaQuantizedFixture, IsGoneOnFromAsLlamaCppGoesOn) {
  const TempDir dir;
  const std::string path = (dir / "a.tqkv").string();
  must({"convert", kFixtures + "alice_q8_0.ggsn", path, "-m", kOtherModel, "--bits", "16"});
  std::ifstream file(kFixtures + "alice_q8_0.json");
  const json told = json::parse(file);
  const std::vector<std::int32_t> answer = told["greedy_33"];
  std::vector<std::int32_t> ids = {told["next_token_fed_at_pos_511"]};
  ids.insert(ids.end(), answer.begin(), answer.end() - 1);

  const auto model = must(model::load_model(kOtherModel));
  cache::Cache cache = must(format::read_cache(*must(open_file(path))));
  model::Decoder decoder(*model, 2);
  int n_first = 0;
  const auto look = [&](std::int64_t first, std::int64_t n, std::span<const float> logits) {
    const std::size_t n_words = logits.size() / static_cast<std::size_t>(n);
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      const auto row = logits.subspan(i * n_words, n_words);
      const auto token = answer[static_cast<std::size_t>(first) + i];
      const float behind = std::ranges::max(row) - row[static_cast<std::size_t>(token)];
      EXPECT_LT(behind, 0.02) << "token " << static_cast<std::size_t>(first) + i;
      n_first += behind == 0 ? 1 : 0;
    }
  };
  must(decoder.prefill_all_logits(cache, ids, look));
  EXPECT_GE(n_first, 30);
}

TEST(LlamaRotation, IsDecidedByTheModelAndTold) {
  const TempDir dir;
  const std::string file = kFixtures + "alice_q8_0.ggsn";
  const auto convert = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> args = {"convert", file, (dir / "a.tqkv").string(), "-f"};
    args.insert(args.end(), flags.begin(), flags.end());
    return tqcache(args);
  };
  const Output decided = convert({"-m", kOtherModel});
  EXPECT_EQ(decided.exit_code, 0) << decided.err;
  EXPECT_THAT(decided.err, HasSubstr("are Hadamard-rotated"));
  EXPECT_EQ(convert({"-m", kOtherModel, "--llama-rotation", "on"}).exit_code, 0);

  std::filesystem::remove(dir / "a.tqkv");
  const Output wrong = convert({"-m", kOtherModel, "--llama-rotation", "off"});
  EXPECT_EQ(wrong.exit_code, 22) << wrong.err;
  EXPECT_FALSE(std::filesystem::exists(dir / "a.tqkv"));
}

// A model that this project does not run says nothing of a cache, and stops nobody from keeping it.
TEST(ModelsThatAreNotRun, LeaveTheOriginUnknown) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 20);
  const std::string folder = (dir / "model").string();
  std::filesystem::copy(kOtherModel, folder);
  json config = json::parse(std::ifstream(folder + "/config.json"));
  config["model_type"] = "another";
  config["architectures"] = {"AnotherForCausalLM"};
  write_all(folder + "/config.json", std::string_view(config.dump()));

  must({"convert", dense, (dir / "a.safetensors").string(), "--to", "hf"});
  const std::string back = (dir / "back.tqkv").string();
  const Output done =
      tqcache({"convert", (dir / "a.safetensors").string(), back, "-m", folder, "--bits", "16"});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("is unknown"));
  expect_same_values(dense, back);
  EXPECT_EQ(tqcache({"generate", "-m", kModel, "-c", back, "-n", "1"}).exit_code, 22);
}

TEST(LlamaFiles, NeedTheirModel) {
  const TempDir dir;
  const Output refused =
      tqcache({"convert", kFixtures + "alice_f16.ggsn", (dir / "a.tqkv").string()});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--model"));
  const json info = info_of(kFixtures + "alice_f16.ggsn");
  EXPECT_EQ(info["kind"], "llama.cpp state file");
  EXPECT_FALSE(info.contains("n_tokens"));
}

// From one program to the next and back, every key and value is what it was.
TEST(Chain, FromLlamaCppToMlxLmAndBackChangesNoByte) {
  const TempDir dir;
  const std::string original = kFixtures + "alice_f16.ggsn";
  const auto path = [&](const char* name) { return (dir / name).string(); };
  must({"convert", original, path("a.tqkv"), "-m", kOtherModel, "--bits", "16"});
  const std::string ids = write_ids(dir, tokens_of(path("a.tqkv")));
  must({"convert", path("a.tqkv"), path("b.safetensors"), "--to", "mlx-lm"});
  must({"convert", path("b.safetensors"), path("c.tqkv"), "-m", kOtherModel, "--ids", ids, "--bits",
        "16"});
  must({"convert", path("c.tqkv"), path("d.ggsn"), "-m", kOtherModel, "--llama-version", "9"});
  EXPECT_EQ(read_all(path("d.ggsn")), read_all(original));
}

// The number of streams, a u32, is behind the list of tokens.
std::uint32_t streams_of(const std::string& sequence_file) {
  const Bytes bytes = read_all(sequence_file);
  std::uint32_t n_tokens = 0, n_streams = 0;
  std::memcpy(&n_tokens, bytes.data() + 8, 4);
  std::memcpy(&n_streams, bytes.data() + 12 + std::size_t{4} * n_tokens, 4);
  return n_streams;
}

TEST(LlamaFiles, HaveTheStreamsOfTheFileThatTheyCameFrom) {
  const TempDir dir;
  const auto path = [&](const char* name) { return (dir / name).string(); };
  const auto convert = [&](const char* from, const char* to, std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"convert", path(from), path(to), "-m", kModel});
    return tqcache(flags);
  };
  std::filesystem::copy_file(prefill_book(dir, 300), path("ours.tqkv"));
  ASSERT_EQ(convert("ours.tqkv", "one.ggsq", {}).exit_code, 0);
  EXPECT_EQ(streams_of(path("one.ggsq")), 1u);
  ASSERT_EQ(convert("ours.tqkv", "four.ggsq", {"--llama-streams", "4"}).exit_code, 0);
  EXPECT_EQ(streams_of(path("four.ggsq")), 4u);

  ASSERT_EQ(convert("four.ggsq", "kept.tqkv", {"--bits", "16"}).exit_code, 0);
  EXPECT_EQ(info_of(path("kept.tqkv"))["identity"]["llama_streams"], 4);
  EXPECT_THAT(must({"info", path("kept.tqkv")}).out, HasSubstr("llama.cpp, 4 streams"));
  ASSERT_EQ(convert("kept.tqkv", "again.ggsq", {}).exit_code, 0);
  EXPECT_EQ(read_all(path("again.ggsq")), read_all(path("four.ggsq")));
  ASSERT_EQ(convert("kept.tqkv", "other.ggsq", {"--llama-streams", "1"}).exit_code, 0);
  EXPECT_EQ(read_all(path("other.ggsq")), read_all(path("one.ggsq")));
  for (const char* n_streams : {"0", "1025", "-1", "two"}) {
    EXPECT_EQ(convert("ours.tqkv", "no.ggsq", {"--llama-streams", n_streams}).exit_code, 2);
  }
  EXPECT_FALSE(std::filesystem::exists(path("no.ggsq")));
}

// --- refusals

// As many layers and heads as the demo model has, and random values in them.
std::string strange_cache(const TempDir& dir) {
  CacheBuilder builder(40);
  for (int i = 0; i < 8; ++i) builder.dense({2, 128});
  cache::Cache made = builder.build();
  std::iota(made.tokens.begin(), made.tokens.end(), 100);
  const auto cache = std::make_shared<const cache::Cache>(std::move(made));
  const std::string path = (dir / "strange.safetensors").string();
  must(interop::export_hf(*cache::reader_of(cache), path, Overwrite::kAllow));
  return path;
}

TEST(Probe, RefusesACacheThatTheModelDoesNotCompute) {
  const TempDir dir;
  const std::string out = (dir / "a.tqkv").string();
  const Output refused = tqcache({"convert", strange_cache(dir), out, "-m", kModel});
  EXPECT_EQ(refused.exit_code, 22) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("recomputed"));
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_EQ(tqcache({"convert", strange_cache(dir), out, "-m", kModel, "--probe", "0"}).exit_code,
            0);
}

TEST(Probe, ComparesTheShapeOfTheCacheWithoutTokens) {
  const TempDir dir;
  const TempDir other;
  tiny::write_model(other.path());
  const std::string mlx = (dir / "a.safetensors").string();
  must({"convert", prefill_book(dir, 40), mlx, "--to", "mlx-lm"});
  const std::string out = (dir / "a.tqkv").string();
  for (const std::string probe : {"0", "16"}) {
    const Output refused =
        tqcache({"convert", mlx, out, "-m", other.path().string(), "--probe", probe});
    EXPECT_EQ(refused.exit_code, 22) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("cache of 8 layers; the model has 2"));
    EXPECT_FALSE(std::filesystem::exists(out));
  }
}

TEST(Probe, FindsWrongTokenIdsAnywhere) {
  const TempDir dir;
  const std::string dense = prefill_book(dir, 300);
  const std::string mlx = (dir / "a.safetensors").string();
  must({"convert", dense, mlx, "--to", "mlx-lm"});
  const std::vector<std::int32_t> ids = tokens_of(dense);
  const auto with = [&](std::size_t place, std::int32_t id) {
    std::vector<std::int32_t> changed = ids;
    changed[place] = id;
    return write_ids(dir, changed);
  };
  const std::string out = (dir / "a.tqkv").string();
  for (const std::size_t place : {5u, 256u, 283u}) {
    const std::string wrong = with(place, ids[place] == 100 ? 101 : 100);
    const Output refused = tqcache({"convert", mlx, out, "-m", kModel, "--ids", wrong});
    EXPECT_EQ(refused.exit_code, 22) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("token " + std::to_string(place) + ": "));
    for (const std::string bits : {"16", "4"}) {  // packed as well
      must({"convert", mlx, out, "-f", "-m", kModel, "--ids", wrong, "--probe", "0", "--bits",
            bits});
      const Output verified = tqcache({"verify", out, "-m", kModel});
      EXPECT_EQ(verified.exit_code, 22) << bits << verified.err;
      EXPECT_THAT(verified.err, HasSubstr("token " + std::to_string(place) + ": "));
    }
    std::filesystem::remove(out);
  }
  const Output beyond =
      tqcache({"convert", mlx, out, "-m", kModel, "--ids", with(5, 8192), "--probe", "0"});
  EXPECT_EQ(beyond.exit_code, 22) << beyond.err;
  EXPECT_THAT(beyond.err, HasSubstr("token 5: id 8192; the model has 8192 tokens"));
}

// A model whose context is shorter than the cache that another program made with it.
TEST(Probe, NeedsNoRoomInTheContext) {
  const TempDir dir;
  const TempDir small;
  for (const auto& file : std::filesystem::directory_iterator(kOtherModel)) {
    std::filesystem::create_symlink(std::filesystem::absolute(file.path()),
                                    small / file.path().filename().string());
  }
  std::ifstream config_file(kOtherModel + "/config.json");
  json config = json::parse(config_file);
  config["max_position_embeddings"] = 64;
  std::filesystem::remove(small / "config.json");
  write_all(small / "config.json", config.dump());
  const std::string made = (dir / "made.kv").string();
  must({"prefill", "-m", kOtherModel, "--file", kBook, "--max-tokens", "100", "-o", made});
  const std::string hf = (dir / "made.safetensors").string();
  must({"convert", made, hf, "--to", "hf"});
  const Output done = must({"convert", hf, (dir / "a.tqkv").string(), "-m", small.path().string()});
  EXPECT_THAT(done.err, HasSubstr("100 tokens; the model was made for 64"));
  EXPECT_THAT(done.err, HasSubstr("its last 16 tokens, computed again"));
}

TEST(Probe, SaysThatValuesWereNotComputed) {
  const TempDir dir;
  const auto zeros = [](std::int64_t, std::int64_t, std::span<std::byte> out) -> Result<void> {
    std::ranges::fill(out, std::byte{0});
    return {};
  };
  interop::ForeignCache cache;
  cache.n_tokens = 20;
  cache.tokens.emplace(20, 100);
  for (int i = 0; i < 8; ++i) {
    cache.layers.push_back(
        interop::attention_layer({2, 128}, {{Dtype::kF16, {}}, zeros}, {{Dtype::kF16, {}}, zeros}));
  }
  const std::string path = (dir / "zeros.safetensors").string();
  must(interop::export_hf(*must(interop::reader_of(std::move(cache))), path, Overwrite::kAllow));
  const Output refused = tqcache({"convert", path, (dir / "a.tqkv").string(), "-m", kModel});
  EXPECT_EQ(refused.exit_code, 22) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("llama_memory_seq_cp"));
}

TEST(OtherPrograms, AreReadByConvertAlone) {
  const TempDir dir;
  const std::string file = strange_cache(dir);
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"verify", file},
                                             {"diff", file, file},
                                             {"generate", "-m", kModel, "-c", file, "-n", "1"}}) {
    const Output refused = tqcache(args);
    EXPECT_EQ(refused.exit_code, 21) << args[0] << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("tqcache convert")) << args[0];
  }
}

TEST(Pickles, AreRefusedWithAWayOut) {
  const TempDir dir;
  const std::string path = (dir / "cache.pkl").string();
  write_all(path, std::string_view("\x80\x02"
                                   "cos\nsystem\n."));
  const Output refused = tqcache({"convert", path, (dir / "out.tqkv").string()});
  EXPECT_EQ(refused.exit_code, 21) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("os.system"));
  EXPECT_THAT(refused.err, HasSubstr("tools/tqcache_hf.py"));
  const Output info = tqcache({"info", path});
  EXPECT_EQ(info.exit_code, 0) << info.err;
  EXPECT_THAT(info.out, HasSubstr("os.system"));
  EXPECT_THAT(info.out, HasSubstr("tools/tqcache_hf.py"));
}

TEST(InfoOfOtherPrograms, NamesThemWithWhatToDo) {
  const TempDir dir;
  const std::string path = (dir / "cache.tqkv").string();
  write_all(path, std::string_view("TQKV\x01\x04\x80\x00\x08\x00\x02\x00", 12));
  const Output info = tqcache({"info", path});
  EXPECT_EQ(info.exit_code, 0) << info.err;
  EXPECT_THAT(info.out, HasSubstr("written by      aither-kvcache, version 1\n"));
  EXPECT_THAT(info.out, HasSubstr("note            decompress it there\n"));
  const auto told = nlohmann::json::parse(must({"info", path, "--json"}).out);
  EXPECT_EQ(told["facts"][0]["value"], "aither-kvcache, version 1");
  EXPECT_EQ(tqcache({"convert", path, (dir / "out.tqkv").string()}).exit_code, 21);
  // Together with others, and as a part of a count.
  write_all(dir / "text", std::string_view("neither"));
  EXPECT_EQ(tqcache({"info", path, (dir / "text").string()}).exit_code, 3);
}

TEST(FileThatIsNoCache, IsReportedAsSuchWhateverTheFlags) {
  const TempDir dir;
  // An empty file was cut; a text is of another kind.
  for (const auto& [text, exit_code] :
       {std::pair<std::string_view, int>{"", 20}, {"{\"a\": 1}", 21}}) {
    write_all(dir / "in", text);
    const Output refused =
        tqcache({"convert", (dir / "in").string(), (dir / "out").string(), "-m", kModel});
    EXPECT_EQ(refused.exit_code, exit_code) << text;
    EXPECT_THAT(refused.err, Not(HasSubstr("--model"))) << text;
  }
}

class ConvertFlagsOfOthers : public testing::Test {
 protected:
  void expect_usage(const std::vector<std::string>& flags, const std::string& message) {
    std::vector<std::string> args = {"convert"};
    args.insert(args.end(), flags.begin(), flags.end());
    const Output refused = tqcache(args);
    EXPECT_EQ(refused.exit_code, 2) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr(message));
  }
  TempDir dir_;
  std::string in_ = prefill_book(dir_, 20);
  std::string out_ = (dir_ / "out").string();
};

TEST_F(ConvertFlagsOfOthers, AreRefusedWhereTheySayNothing) {
  expect_usage({in_, out_, "--to", "mlx-lm", "--bits", "4"}, "--bits applies to .tqkv");
  expect_usage({in_, out_, "--to", "hf", "--no-tokens"}, "--no-tokens applies to .tqkv");
  expect_usage({in_, "-", "--to", "npz"}, "cannot be written to standard output");
  expect_usage({in_, out_ + ".safetensors"}, "--to mlx-lm or --to hf");
  expect_usage({in_, out_, "--to", "pickle"}, "--to");
  expect_usage({in_, out_, "--to", "mlx-lm", "--mlx-lm-version", "new"}, "--mlx-lm-version");
  expect_usage({in_, out_, "-m", kModel}, "applies to files of other programs");
  expect_usage({in_, out_, "--to", "llama-seq"}, "--model");
  EXPECT_FALSE(std::filesystem::exists(out_));
}

TEST_F(ConvertFlagsOfOthers, NameTokensThatAreThoseOfTheCache) {
  must({"convert", in_, out_, "--to", "mlx-lm"});
  const std::string back = (dir_ / "back.tqkv").string();
  const auto with_ids = [&](std::string_view text) {
    write_all(dir_ / "ids.json", text);
    return tqcache({"convert", out_, back, "--ids", (dir_ / "ids.json").string()});
  };
  EXPECT_EQ(with_ids("[1, 2]").exit_code, 2);
  for (const char* text : {"", "{}", "[1, -2]", "[1.5]", "[[1]]", "[1", "[1] 2", "[2147483648]",
                           "{\"ids\": [1]}", "[null]"}) {
    const Output refused = with_ids(text);
    EXPECT_EQ(refused.exit_code, 20) << text << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("ids.json")) << text;
  }
  EXPECT_FALSE(std::filesystem::exists(back));
}

TEST_F(ConvertFlagsOfOthers, LeaveUnknownTokensUnknown) {
  must({"convert", in_, out_, "--to", "mlx-lm"});
  const std::string back = (dir_ / "back.tqkv").string();
  const Output done = tqcache({"convert", out_, back, "-m", kModel, "--bits", "16"});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("--ids"));
  EXPECT_EQ(info_of(back)["token_hashes"], 0);
  expect_same_values(in_, back);
}

// --- TurboMLX, whose codes are kept

class TurboMlx : public testing::Test {
 protected:
#ifndef TQCACHE_TURBOMLX
  void SetUp() override { GTEST_SKIP() << "built without TurboMLX"; }
#endif

  // Packed keys and dense values, 300 tokens.
  std::string file() const {
    TurboMlxBuilder builder(300);
    builder.turbo({.shape = {1, 64}, .bits = 4}).turbo({.shape = {1, 64}, .bits = 4});
    const std::string path = (dir_ / "a.tqs3").string();
    write_all(path, builder.file());
    return path;
  }
  std::string target() const { return (dir_ / "a.tqkv").string(); }

  TempDir dir_;
};

TEST_F(TurboMlx, CodesAreKeptIfNobodyAsksForOthers) {
  const Output done = must({"convert", file(), target()});
  EXPECT_THAT(done.err, HasSubstr("dropped: The lengths of TurboQuant keys are rounded to f16"));
  must({"verify", target()});
  const json k = info_of(target())["layers"][0]["k"];
  EXPECT_EQ(k["cache_type_id"], "tqcache.turbo_mse.v1");
  EXPECT_EQ(k["parts"][0]["rotation"], "matrix.v1");
  EXPECT_EQ(k["parts"][0]["matrix_xxh3_128"].get<std::string>().size(), 32u);
  EXPECT_THAT(must({"info", target()}).out,
              HasSubstr("turbo 4 bits, rotation by value, scale raw, centering none"));
  EXPECT_EQ(info_of(file())["layers"][0]["k"], k);  // as the file before
  // Values, which were dense, are packed as ever.
  EXPECT_EQ(info_of(target())["layers"][0]["v"]["cache_type_id"], "tqcache.turbo_mse.v1");
}

TEST_F(TurboMlx, FlagsForValuesLeaveKeysAlone) {
  must({"convert", file(), target(), "--config", "v=dense"});
  EXPECT_EQ(info_of(target())["layers"][0]["k"]["parts"][0]["rotation"], "matrix.v1");
  EXPECT_EQ(info_of(target())["layers"][0]["v"]["cache_type_id"], "tqcache.dense.v1");
}

TEST_F(TurboMlx, OtherBitsAreRefused) {
  const std::vector<std::vector<std::string>> asked = {
      {"--bits", "4"}, {"--config", "k=mse:3"}, {"--config", "turbo4"}, {"--config", "boundary=1"}};
  for (std::vector<std::string> flags : asked) {
    flags.insert(flags.begin(), {"convert", file(), target(), "--force"});
    const Output refused = tqcache(flags);
    EXPECT_NE(refused.exit_code, 0);
    EXPECT_THAT(refused.err,
                HasSubstr("layer 0 k: is packed already, in codes that are kept without "
                          "--bits and --config; --bits 16 decodes them"));
  }
}

TEST_F(TurboMlx, SixteenBitsDecode) {
  must({"convert", file(), target(), "--bits", "16"});
  EXPECT_EQ(info_of(target())["layers"][0]["k"]["cache_type_id"], "tqcache.dense.v1");
  // So do files of other programs: what they get was never rounded to f16.
  const std::string mlx = (dir_ / "a.safetensors").string();
  must({"convert", file(), mlx, "--to", "mlx-lm"});
  const std::string back = (dir_ / "back.tqkv").string();
  must({"convert", mlx, back, "--bits", "16"});
  expect_same_values(target(), back);
}

}  // namespace interop_test
}  // namespace tqcache::test
