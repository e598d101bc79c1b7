// `tqcache doctor`: what reports of faults need, and `tqcache bench --device cuda` where there are
// no kernels.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "cli/program.h"

namespace tqcache::test {
namespace doctor_test {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

json report(std::vector<std::string> environment = {}) {
  RunOptions options;
  options.environment = std::move(environment);
  const Output output = tqcache({"doctor", "--json"}, options);
  EXPECT_EQ(output.exit_code, 0) << output.err;
  return json::parse(output.out);
}

TEST(Doctor, SaysWhatIsUsedOfWhatWasFound) {
  const json all = report();
  const json& processor = all.at("processor");
  EXPECT_THAT(processor.at("kernels"), testing::Contains(processor.at("used")));
  EXPECT_GE(processor.at("threads"), 1);
  const json version = json::parse(must({"--version", "--json"}).out);
  EXPECT_EQ(processor.at("used"), version.at("kernels"));
  EXPECT_EQ(all.at("stores").at("schemes"), version.at("stores"));
  EXPECT_THAT(all.at("libraries").at("pcre2").get<std::string>(), HasSubstr("Unicode"));
  EXPECT_LE(all.at("memory").at("budget_bytes"), all.at("memory").at("bytes"));
  EXPECT_GT(all.at("memory").at("budget_bytes"), 0);
}

TEST(Doctor, ChoicesOfTheEnvironmentAreSeen) {
  const json all = report({"TQCACHE_ISA=scalar", "TMPDIR=/no/such/folder"});
  EXPECT_EQ(all.at("processor").at("used"), "scalar");
  EXPECT_EQ(all.at("settings").at("TQCACHE_ISA"), "scalar");
  EXPECT_EQ(all.at("memory").at("temporary_folder"), "TMPDIR names no folder");
  EXPECT_EQ(all.at("memory").at("temporary_free_bytes"), nullptr);
}

TEST(Doctor, TheTextHasASectionForEach) {
  const Output output = tqcache({"doctor"});
  EXPECT_EQ(output.exit_code, 0);
  for (const char* section : {"\nsystem\n", "\nprocessor\n", "\nlibraries\n", "\ngpu\n",
                              "\nstores\n", "\nmemory\n", "\nsettings\n"}) {
    EXPECT_THAT(output.out, HasSubstr(section));
  }
}

TEST(Doctor, SaysWhyThereIsNoGpu) {
  const json none = report({"TQCACHE_CUDA_LIBRARY=/no/such/file.so"});
  EXPECT_EQ(none.at("gpu").at("available"), false);
  EXPECT_THAT(none.at("gpu").at("reason").get<std::string>(),
              AllOf(HasSubstr("TQCACHE_CUDA_LIBRARY"), HasSubstr("tqcache-cuda")));
}

TEST(Doctor, ControlCharactersOfAVariableAreNotPrinted) {
  RunOptions options;
  options.environment = {"LD_LIBRARY_PATH=/a\x1b[2Jb"};
  EXPECT_THAT(tqcache({"doctor"}, options).out, testing::Not(HasSubstr("\x1b")));
}

TEST(BenchCuda, WithoutKernelsIsUnsupported) {
  RunOptions options;
  options.environment = {"TQCACHE_CUDA_LIBRARY=/no/such/file.so"};
  const Output output = tqcache({"bench", "--device", "cuda"}, options);
  EXPECT_EQ(output.exit_code, 21);
  EXPECT_THAT(output.err, HasSubstr("tqcache-cuda"));
  EXPECT_EQ(output.out, "");
}

TEST(BenchCuda, RefusesWhatItDoesNotMeasure) {
  const auto refused = [](std::vector<std::string> flags, int exit_code, const std::string& part) {
    flags.insert(flags.begin(), {"bench", "--device", "cuda"});
    const Output output = tqcache(flags);
    EXPECT_EQ(output.exit_code, exit_code) << output.err;
    EXPECT_THAT(output.err, HasSubstr(part));
  };
  refused({"--backend", "turbo"}, 2, "--backend");
  refused({"--file", "book.txt"}, 2, "--file");
  refused({"--prompt-tokens", "1000"}, 2, "a multiple of 256");
  refused({"--config", "affine4"}, 21, "mode mse");
  refused({"--config", "turbo99"}, 2, "--config");
}

}  // namespace doctor_test
}  // namespace tqcache::test
