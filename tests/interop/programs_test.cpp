#include "tqcache/interop/programs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "interop/mlx_lm_builder.h"
#include "support/temp_dir.h"

namespace tqcache::interop {
namespace programs_test {

using test::MlxBuilder;
using testing::HasSubstr;
using namespace std::string_literals;

// What `tqcache info` says of a file that no importer reads; "none": nothing.
NamedFile named(const Bytes& bytes) {
  const auto found = test::must(name_file(*memory_source(bytes)));
  return found.value_or(NamedFile{"none", "", "", ""});
}
NamedFile named(const std::string& bytes) { return named(test::bytes_of(bytes)); }

Bytes safetensors(const std::map<std::string, std::string>& metadata,
                  const std::vector<std::string>& names) {
  std::vector<tensors::NewTensor> tensors;
  for (const std::string& name : names) tensors.push_back({name, "F32", {0}});
  return tensors::make_safetensors_header(tensors, metadata);
}

// --- Files as those programs write them, in small

// tools of aither-kvcache 2.4.1: "TQKV", version, bits, head_dim, ...
TEST(Programs, AitherKvcacheHasOurExtension) {
  const NamedFile file = named("TQKV\x01\x04\x80\x00\x08\x00\x02\x00"s);
  EXPECT_EQ(file.program, "aither-kvcache");
  EXPECT_EQ(file.version, "1");
}

// ds4_kvstore_fill_header(): "KVC", version, quant bits, reason, flags, codec, tokens, hits,
// context.
TEST(Programs, Ds4) {
  for (const char version : {'\1', '\2'}) {
    std::string header = "KVC"s + version + "\x02\x01\x00\x00\x00\x10\x00\x00"s;
    header.resize(48);
    const NamedFile file = named(header);
    EXPECT_EQ(file.program, "antirez/ds4");
    EXPECT_EQ(file.version, std::to_string(int{version}));
  }
}

TEST(Programs, SidecarsOfSlots) {
  EXPECT_EQ(named("PKCL\x01\x00\x00\x00"s).program, "TheTom/llama-cpp-turboquant");
  EXPECT_EQ(named("LSCKPT2\0\x01\x00\x00\x00"s).program, "llama.cpp's pull request 24028");
  EXPECT_EQ(named("SCKP\x01\x00\x00\x00"s).program, "llama-server");
}

// llama_state_get_data() begins with the architecture, as LLamaSharp and others keep it.
TEST(Programs, RawStatesOfLlamaCpp) {
  const NamedFile file = named("\x05\x00\x00\x00llama"s + std::string(64, '\1'));
  EXPECT_EQ(file.program, "llama.cpp");
  EXPECT_THAT(file.holds, HasSubstr("of architecture llama without a header"));
  EXPECT_EQ(named("\x05\x00\x00\x00ll\x01ma"s + std::string(64, '\1')).program, "none");
  EXPECT_EQ(named("\x20\x00\x00\x00"s + std::string(64, 'a')).program, "none");
  EXPECT_EQ(named("\x05\x00\x00\x00llama"s).program, "none");  // too short for a state
}

TEST(Programs, LlamaCppPython) {
  EXPECT_EQ(named("SQLite format 3\0\x10\x00"s).program, "llama-cpp-python");
  // pickle.dumps(LlamaState(...)), protocol 4: a frame, and the class by its name.
  const NamedFile file = named(
      "\x80\x04\x95\x40\x00\x00\x00\x00\x00\x00\x00"
      "\x8c\x0fllama_cpp.llama\x94\x8c\x0aLlamaState\x94\x93."s);
  EXPECT_EQ(file.program, "llama-cpp-python");
  EXPECT_THAT(file.holds, HasSubstr("LlamaState"));
}

TEST(Programs, PicklesOfTransformersAndOthers) {
  EXPECT_EQ(named("\x80\x04\x95\x40\x00\x00\x00\x00\x00\x00\x00\x8c\x18transformers.cache_utils"
                  "\x94\x8c\x0c"
                  "DynamicCache\x94\x93."s)
                .program,
            "transformers");
  const NamedFile other = named("\x80\x04\x95\x02\x00\x00\x00\x00\x00\x00\x00}."s);
  EXPECT_EQ(other.program, "PyTorch or Python");
  EXPECT_EQ(other.holds, "a pickle");
}

TEST(Programs, PrefixCachesOnDisk) {
  EXPECT_EQ(
      named(safetensors({{"layout", "exact_cache_v1"}, {"token_ids", "1,2"}}, {"c0_k", "c0_v"}))
          .program,
      "mlx-vlm");
  for (const char* layout : {"layer_major_v1", "layer_major_v2", "token_major_v2"}) {
    EXPECT_EQ(named(safetensors({{"layout", layout}}, {"b0_l0_k"})).program, "mlx-vlm") << layout;
  }
  const NamedFile omlx =
      named(safetensors({{"omlx_cache_format_version", "3"}}, {"layer_0_state_0"}));
  EXPECT_EQ(omlx.program, "omlx");
  EXPECT_EQ(omlx.version, "\"3\"");
  EXPECT_EQ(named(safetensors({}, {"kv_cache"})).program, "vLLM");
  EXPECT_EQ(named(safetensors({}, {"kv_cache", "other"})).program, "none");
  EXPECT_EQ(named(safetensors({{"format", "pt"}}, {"model.norm.weight"})).program, "a model");
}

TEST(Programs, VersionsAreShownInPrintableCharactersAndShort) {
  const NamedFile file =
      named(safetensors({{"omlx_cache_format_version", "\x1b[2J" + std::string(500, 'x')}}, {"k"}));
  EXPECT_LT(file.version.size(), 300u);
  for (const char c : file.version) EXPECT_TRUE(c >= ' ' && c <= '~');
}

TEST(Programs, ClassesOfOtherProgramsInCachesOfMlxLm) {
  for (const ProgramMark& mark : program_marks()) {
    if (mark.in != MarkIn::kClass) continue;
    MlxBuilder file(MlxLayout::kMetaState);
    file.layer("KVCache").pair({1, 8}, test::positions(3)).no_info();
    file.layer(std::string(mark.mark)).pair({1, 8}, test::positions(3));
    for (int i = 0; i < (mark.value.empty() ? 3 : std::stoi(std::string(mark.value))); ++i) {
      file.info(std::to_string(i), "1");
    }
    const NamedFile found = named(file.build());
    EXPECT_EQ(found.program, mark.program) << mark.mark;
    EXPECT_THAT(found.holds, HasSubstr(mark.mark));
  }
}

TEST(Programs, OfOurOwn) {
  EXPECT_EQ(named("TQKB\r\n\x1a\n\x01\x00\x00\x00"s).holds, "a blob of a store");
  EXPECT_EQ(named("\x10\x00\x00\x00TQP2\x00\x00"s).holds, "a profile of a model (.tqprofile)");
}

TEST(Programs, NothingIsSaidOfWhatIsUnknown) {
  for (const std::string& bytes : {""s, "x"s, "GGUF\x03\x00\x00\x00"s, "TQKV\x02"s, "KVC\x09"s,
                                   "{\"koboldcpp\": 1}"s, std::string(100, '\0')}) {
    EXPECT_EQ(named(bytes).program, "none") << bytes;
  }
}

// --- The table

TEST(Programs, EveryMarkSaysWhatToDo) {
  for (const ProgramMark& mark : program_marks()) {
    EXPECT_FALSE(mark.mark.empty() || mark.program.empty() || mark.advice.empty());
    EXPECT_EQ(mark.holds.empty(), mark.in == MarkIn::kClass) << mark.mark;
  }
  for (int kind = 0; kind <= static_cast<int>(FileKind::kTurboMlx); ++kind) {
    EXPECT_FALSE(what_can_be_done(static_cast<FileKind>(kind)).empty());
  }
}

// The page "What each program writes" has all of them.
TEST(Programs, AreAllInTheDocument) {
  std::ifstream stream(TQCACHE_PROGRAMS_DOCUMENT);
  const std::string page{std::istreambuf_iterator<char>(stream), {}};
  ASSERT_FALSE(page.empty());
  for (const ProgramMark& mark : program_marks()) {
    const std::string_view program = mark.program.substr(0, mark.program.find(','));
    EXPECT_THAT(page, HasSubstr(std::string(program)));
    if (mark.in != MarkIn::kClass) continue;
    EXPECT_THAT(page, HasSubstr(std::string(mark.mark)));
  }
}

}  // namespace programs_test
}  // namespace tqcache::interop
