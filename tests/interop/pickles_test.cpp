#include "tqcache/interop/turbomlx/pickles.h"

#include <gtest/gtest.h>

#include <string>

#include "interop/zip_builder.h"
#include "support/temp_dir.h"

namespace tqcache::interop {
namespace pickles_test {

std::string name_of(Bytes bytes) {
  return name_of_pickle(*memory_source(std::move(bytes))).value_or("none");
}
std::string name_of_file(const std::string& name) {
  return name_of(test::read_all(TQCACHE_TEST_DATA "/interop/" + name));
}

TEST(Pickles, AreToldFromOtherFiles) {
  EXPECT_TRUE(name_of_file("torch.pt").starts_with("a file of torch.save"));
  EXPECT_TRUE(name_of_file("torch_legacy.pt").starts_with("an old file of torch.save"));
  EXPECT_TRUE(name_of_file("protocol4.pkl").starts_with("a pickle"));
  EXPECT_EQ(name_of_file("numpy.npz"), "none");
  EXPECT_EQ(name_of({}), "none");
  EXPECT_EQ(name_of(test::bytes_of("\x80")), "none");
  EXPECT_EQ(name_of(test::bytes_of("\x80\x04hello")), "none");
  EXPECT_EQ(name_of(test::bytes_of("\x80\x06\x95")), "none");
  EXPECT_EQ(name_of(test::bytes_of("PK\x03\x04 and no zip")), "none");
}

TEST(Pickles, AdviceNamesTheScript) {
  EXPECT_NE(name_of_file("torch.pt").find("tools/tqcache_hf.py"), std::string::npos);
}

}  // namespace pickles_test
}  // namespace tqcache::interop
