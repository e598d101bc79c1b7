// What the program loads and needs before it does anything.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cli/demo.h"
#include "cli/program.h"

namespace tqcache::test {
namespace startup_test {

using testing::HasSubstr;
using testing::Not;

const std::string kGolden = TQCACHE_GOLDEN_V2_FILES;

// What `tqcache ARGS...` loads, as the dynamic linker reports it.
std::string loaded_by(const std::vector<std::string>& args) {
  RunOptions options;
  options.environment = {"LD_DEBUG=files"};
  return must(args, options).err;
}

TEST(Startup, InfoWorksInALittleAddressSpace) {
#if TQCACHE_IS_SANITIZED
  GTEST_SKIP() << "sanitizers map terabytes";
#else
  RunOptions options;
  options.address_space = 200'000 * 1024;  // ulimit -v 200000
  EXPECT_THAT(must({"info", kGolden + "/planes.tqkv"}, options).out, HasSubstr("tokens"));
  EXPECT_THAT(must({"verify", kGolden + "/planes.tqkv"}, options).exit_code, 0);
#endif
}

// OpenBLAS asks forever for a buffer that it cannot get: then these would not end.
TEST(Startup, EveryLimitOfMemoryEndsWithAResultOrAMessage) {
#if TQCACHE_IS_SANITIZED || TQCACHE_IS_BLAS_LINKED
  GTEST_SKIP() << "sanitizers map terabytes; a linked OpenBLAS starts before the program";
#else
  const TempDir dir;
  const std::string cache = prefill_book(dir, 300);
  int n_refused = 0, n_done = 0;
  for (const std::uint64_t limit : {200'000, 300'000, 400'000, 600'000, 1'000'000, 3'000'000}) {
    const std::string out = (dir / "out.kv").string();
    for (const std::vector<std::string>& args :
         {std::vector<std::string>{"verify", cache},
          {"verify", cache, "-m", kModel},
          {"convert", cache, out, "-f"},
          {"prefill", "-m", kModel, "--file", kBook, "--max-tokens", "300", "-o", out, "-f"},
          {"generate", "-m", kModel, "--cache", cache, "-p", book_text(900), "-n", "2"}}) {
      SCOPED_TRACE(fmt::format("{} at {} KB", args.front(), limit));
      RunOptions options;
      options.address_space = limit * 1024;
      const Output output = tqcache(args, options);
      if (output.exit_code == 0) {
        ++n_done;
        continue;
      }
      ++n_refused;
      EXPECT_EQ(output.exit_code, 1);
      EXPECT_THAT(output.err, HasSubstr("memory"));
    }
  }
  EXPECT_GT(n_refused, 0);
  EXPECT_GE(n_done, 15);
#endif
}

TEST(Startup, InfoLoadsNoBlas) {
  const std::string loaded = loaded_by({"info", kGolden + "/planes.tqkv"});
  EXPECT_THAT(loaded, HasSubstr("libzstd"));  // the linker has reported
#if !TQCACHE_IS_BLAS_LINKED
  EXPECT_THAT(loaded, Not(HasSubstr("openblas")));
#endif
}

TEST(Startup, APromptLoadsTheBlas) {
  const TempDir dir;
  const std::string loaded =
      loaded_by({"prefill", "-m", kModel, "-p", "Once upon a time", "-o", (dir / "a.kv").string()});
  EXPECT_THAT(loaded, HasSubstr("openblas"));
}

}  // namespace startup_test
}  // namespace tqcache::test
