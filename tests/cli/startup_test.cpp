// What the program loads and needs before it does anything.

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
